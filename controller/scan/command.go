package scan

import (
	"regexp"
	"sync"
)

// attack is a shape of shell commands that does harm.
type attack struct {
	severity Severity
	message  string
	re       *regexp.Regexp
}

// attacks are compiled at first use.
var attacks = sync.OnceValue(func() []attack {
	const (
		fetch  = `(?:curl|wget|fetch|aria2c|http|lwp-download)\b`
		shell  = `(?:sudo\s+)?(?:\S*/)?(?:ba|z|da|k|a|fi)?sh\b|(?:\S*/)?(?:python[0-9.]*|perl|ruby|node|php)\b`
		upload = `(?:curl\b[^|;&\n]*(?:\s-[a-zA-Z]*[dFT]\b?|--data\S*|--form|--upload-file|--json)|wget\b[^|;&\n]*--(?:post|body)|nc\b|ncat\b|socat\b|scp\b|rsync\b|https?\s+post)`
		secret = `(?:\.ssh/|id_rsa|id_ed25519|\.aws/credentials|\.netrc|\.npmrc|\.pypirc|\.docker/config|\.kube/config|/etc/shadow|\.env(?:[\s"';|&)]|$)|\.env\.(?:local|production)|\.git-credentials|gh/hosts\.yml|/proc/[^ ]*/environ)`
	)
	list := []struct {
		severity      Severity
		message, text string
	}{
		{Critical, "opens a shell to another machine", `/dev/(?:tcp|udp)/|\b(?:nc|ncat|netcat)\b[^|;\n]*\s-[a-z]*[ec]\b|socat\b[^|;\n]*exec:|import\s+socket[^\n]*(?:subprocess|os\.dup2|pty)|mkfifo\b[^\n]*\|[^\n]*\bnc\b`},
		{Critical, "runs what was encoded", `(?:base64\s+(?:-d|-D|--decode)|xxd\s+-r|openssl\s+enc[^|]*-d)[^|\n]*\|\s*(?:` + shell + `)|eval\b[^\n]*base64|exec\(\s*(?:base64|__import__\(['"]base64)`},
		{Critical, "sends secrets away", secret + `[^\n]*\|[^\n]*` + upload + `|` + upload + `[^\n]*@?[^\n]*` + secret},
		{Critical, "sends the environment away", `\b(?:env|printenv|set|export -p)\b\s*\|[^\n]*` + upload + `|` + upload + `[^\n]*\$\(\s*(?:env|printenv)\b`},
		{Critical, "deletes everything", `\brm\s+(?:-\S+\s+)*-\S*[rR]\S*\s+(?:-\S+\s+)*(?:--no-preserve-root\s+)?["']?(?:/\*?|~/?|\$HOME/?|\$\{HOME\}/?)["']?\s*(?:$|[;&|])|\bmkfs\b|\bdd\b[^\n]*of=/dev/(?:sd|nvme|vd)`},
		{Critical, "is a fork bomb", `:\(\)\s*\{\s*:\|:`},
		{High, "runs what it downloads", fetch + `[^|;\n]*\|\s*(?:` + shell + `)|(?:` + shell + `)\s+(?:-c\s+)?["']?(?:<\(|\$\(|` + "`" + `)\s*` + fetch + `|eval\b[^\n]*` + fetch},
		{High, "lets a way in stay", `authorized_keys|\bcrontab\b|/etc/cron|\bsystemctl\s+enable|(?:>>?|tee\s+(?:-a\s+)?)\s*\S*(?:\.bashrc|\.zshrc|\.profile|\.bash_profile)`},
		{High, "makes git start a program", `git\s+config\b[^\n]*(?:core\.(?:hooksPath|fsmonitor|sshCommand|pager|editor)|filter\.\S+\.(?:clean|smudge)|diff\.\S*(?:textconv|external)|alias\.\S+\s+["']?!)|GIT_(?:SSH_COMMAND|EXTERNAL_DIFF|PAGER)=`},
		{High, "loads code into other programs", `\bLD_(?:PRELOAD|AUDIT|LIBRARY_PATH)=|\b(?:NODE_OPTIONS|PYTHONSTARTUP|PERL5OPT|RUBYOPT|BASH_ENV)=`},
		{High, "reads secrets", `\b(?:cat|less|head|tail|cp|tar|strings|xxd|base64)\b[^\n]*` + secret},
		{Medium, "raises privileges", `\bchmod\b[^\n]*(?:[ugo]*\+s|[0-7]?[4-7][0-7]{3})\b|\bsetcap\b`},
	}
	out := make([]attack, len(list))
	for i, a := range list {
		out[i] = attack{a.severity, a.message, regexp.MustCompile(a.text)}
	}
	return out
})

// Command judges a shell command that is about to run: what it does, what it
// hides, which hosts it names.
func (s *Scanner) Command(command string) []Finding {
	j := &job{scanner: s, name: "command", kind: Settings, seen: map[Finding]bool{}, line: 1, column: 1}
	b := []byte(command)
	sp := span{job: j, raw: b}
	s.findPlanted(&sp)
	sp.command(0, len(b))
	if s.options.Unicode {
		sp.unicode()
	}
	if s.options.URLs {
		sp.urls()
	}
	return j.found
}

// command reports the attacks in bytes [from, to) of the span.
func (s *span) command(from, to int) {
	for _, a := range attacks() {
		if at := a.re.FindIndex(s.raw[from:to]); at != nil {
			s.report(from+at[0], from+at[1], Finding{Rule: RuleCommand, Severity: a.severity, Message: "a command that " + a.message, Hint: "look at who wrote it"})
		}
	}
}
