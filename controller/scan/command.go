package scan

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"agentsh/internal/secretfiles"
)

// attack is a pattern of harmful shell commands.
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
	)
	secret := `(?:\.ssh/|\.aws/credentials|\.docker/config|\.kube/config|/etc/shadow|\.env(?:[\s"';|&)]|$)|\.env\.(?:local|production)|gh/hosts\.yml|/proc/[^ ]*/environ|` +
		secretfiles.Pattern() + `)`
	list := []struct {
		severity      Severity
		message, text string
	}{
		{
			Critical,
			"opens a shell to another machine",
			`/dev/(?:tcp|udp)/|\b(?:nc|ncat|netcat)\b[^|;\n]*\s-[a-z]*[ec]\b|socat\b[^|;\n]*exec:|import\s+socket[^\n]*(?:subprocess|os\.dup2|pty)|mkfifo\b[^\n]*\|[^\n]*\bnc\b`,
		},
		{
			Critical,
			"runs what was encoded",
			`(?:base64\s+(?:-d|-D|--decode)|xxd\s+-r|openssl\s+enc[^|]*-d)[^|\n]*\|\s*(?:` + shell + `)|eval\b[^\n]*base64|exec\(\s*(?:base64|__import__\(['"]base64)`,
		},
		{Critical, "sends secrets away", secret + `[^\n]*\|[^\n]*` + upload + `|` + upload + `[^\n]*@?[^\n]*` + secret},
		{
			Critical,
			"sends the environment away",
			`\b(?:env|printenv|set|export -p)\b\s*\|[^\n]*` + upload + `|` + upload + `[^\n]*\$\(\s*(?:env|printenv)\b`,
		},
		{
			Critical,
			"deletes everything",
			`\brm\s+(?:-\S+\s+)*-\S*[rR]\S*\s+(?:-\S+\s+)*(?:--no-preserve-root\s+)?["']?(?:/\*?|~/?|\$HOME/?|\$\{HOME\}/?)["']?\s*(?:$|[;&|]|--no-preserve-root)|\bmkfs\b|\bdd\b[^\n]*of=/dev/(?:sd|nvme|vd)`,
		},
		{Critical, "is a fork bomb", `:\(\)\s*\{\s*:\|:`},
		{
			High,
			"runs what it downloads",
			fetch + `[^|;\n]*\|\s*(?:` + shell + `)|(?:` + shell + `)\s+(?:-c\s+)?["']?(?:<\(|\$\(|` + "`" + `)\s*` + fetch + `|eval\b[^\n]*` + fetch,
		},
		{
			High,
			"lets a way in stay",
			`authorized_keys|\bcrontab\b|/etc/cron|\bsystemctl\s+enable|(?:>>?|tee\s+(?:-a\s+)?)\s*\S*(?:\.bashrc|\.zshrc|\.profile|\.bash_profile)`,
		},
		{
			High,
			"makes git start a program",
			`git(?:\s+-[cC]\s+\S+|\s+--\S+)*\s+config\b[^\n]*(?:core\.(?:hooksPath|fsmonitor|sshCommand|pager|editor)|filter\.\S+\.(?:clean|smudge)|diff\.\S*(?:textconv|external)|alias\.\S+\s+["']?!)|GIT_(?:SSH_COMMAND|EXTERNAL_DIFF)=|GIT_PAGER=["']?(?:\S*/)?(?:[abd-km-z\d$.!]|c[^a]|l[^e])|GIT_PAGER=["'][^"'\n]*[|;&$]`,
		},
		{
			High,
			"loads code into other programs",
			`\bLD_(?:PRELOAD|AUDIT)=|\bLD_LIBRARY_PATH=[^\s;]*/(?:tmp|shm)\b|\b(?:NODE_OPTIONS|PYTHONSTARTUP|PERL5OPT|RUBYOPT|BASH_ENV)=`,
		},
		{High, "reads secrets", `\b(?:cat|less|head|tail|cp|tar|strings|xxd|base64)\b[^\n]*` + secret},
		{Medium, "raises privileges", `\bchmod\b[^\n]*(?:[ugo]*\+s|[0-7]?[4-7][0-7]{3})\b|\bsetcap\b`},
	}
	out := make([]attack, len(list))
	for i, a := range list {
		out[i] = attack{a.severity, a.message, regexp.MustCompile(a.text)}
	}
	return out
})

// Command judges a shell command before it runs: its effect, its hidden parts
// and the hosts it names. Quotes do not hide anything. Text that no program runs
// has no effect.
func (s *Scanner) Command(command string) []Finding { return s.parts(command, withoutData(command)) }

// Code judges like [Scanner.Command] what something else than a shell reads, or a
// shell in the middle of something: nothing in it is left out.
func (s *Scanner) Code(text string) []Finding { return s.parts(text, text) }

// parts judges a text, and the part of it that programs run, with and without quotes.
func (s *Scanner) parts(command, run string) []Finding {
	found := s.commandText(command, run)
	if plain := unquoted(command); plain != command {
		for _, f := range s.commandText(plain, unquoted(run)) {
			if !slices.ContainsFunc(found, func(x Finding) bool { return x.Rule == f.Rule && x.Message == f.Message }) {
				f.Line, f.Column = 1, 1 // places of another text
				found = append(found, f)
			}
		}
	}
	return found
}

// commandText judges a text, and the part of it that programs run.
func (s *Scanner) commandText(command, run string) []Finding {
	j := &job{scanner: s, name: "command", kind: Settings, seen: map[Finding]bool{}, line: 1, column: 1}
	b := []byte(command)
	sp := span{job: j, raw: b}
	s.findPlanted(&sp)
	effect := span{job: j, raw: []byte(run)}
	effect.command(0, len(run))
	if s.options.Unicode {
		sp.unicode()
	}
	if s.options.URLs {
		sp.urls()
	}
	return j.found
}

// unquoted returns a command without quotes, backslashes, and variables that
// stand for a space. The result is for matching only.
func unquoted(command string) string {
	plain := strings.NewReplacer("\\\n", "", "${IFS}", " ", "$IFS$9", " ", "$IFS", " ").Replace(command)
	if strings.Contains(plain, "$'") {
		plain = unescape([]byte(strings.ReplaceAll(plain, "$'", "'")))
	}
	return strings.NewReplacer("'", "", `"`, "", `\`, "", "$@", "", "${@}", "").Replace(plain)
}

// fetchers are programs whose operands are hosts and URLs.
var fetchers = map[string]bool{
	"curl": true, "wget": true, "aria2c": true, "http": true, "https": true, "xh": true, "nc": true, "ncat": true, "netcat": true,
	"telnet": true, "socat": true,
	"lynx": true, "links": true, "w3m": true, "fetch": true, "openssl": true, "ssh": true, "ping": true, "httpie": true,
	"lwp-request": true, "GET": true,
}

// Requests judges the hosts that a shell command names: URLs anywhere in it,
// and operands of programs that fetch. The loopback host under its usual names
// is not reported, because in a sandbox it is the sandbox.
func Requests(command string) []Finding { return RequestsOfCode(withoutData(command)) }

// RequestsOfCode judges like [Requests] what something else than a shell reads.
func RequestsOfCode(command string) []Finding {
	var found []Finding
	for _, text := range []string{command, unquoted(command)} {
		fetch := false
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n\r;|&()<>`{}\"',", r) }) {
			if fetchers[path.Base(word)] {
				fetch = true
				continue
			}
			for _, f := range request(word, fetch) {
				if !slices.ContainsFunc(found, func(x Finding) bool { return x.Message == f.Message }) {
					found = append(found, f)
				}
			}
		}
	}
	return found
}

// request judges one word of a command; operand is true after a program that
// fetches.
func request(word string, operand bool) []Finding {
	if i := strings.Index(word, "://"); i >= 0 {
		start := i
		for start > 0 && (isLetter(word[start-1]) || word[start-1] == '+') {
			start--
		}
		return ownMachine(word[start:], URL(word[start:]))
	}
	host := word[strings.LastIndexByte(word, '=')+1:]
	if !operand || host == "" || host[0] == '-' || host[0] == '$' || !addressLike(host) {
		return nil
	}
	return ownMachine("http://"+host, URL("http://"+host))
}

// ownMachine drops the finding of a loopback host with a usual spelling.
func ownMachine(raw string, found []Finding) []Finding {
	scheme, _, _ := strings.Cut(strings.ToLower(raw), ":")
	if h, err := ParseHost(raw); err != nil || h.Kind == hostLoopback && h.Odd == "" && !oddSchemes[scheme] {
		return nil
	}
	if scheme == "file" {
		return nil // the file rules are about that
	}
	return found
}

// addressLike reports words that fetching programs read as an address or an
// internal name. Versions and counts are not among them.
func addressLike(host string) bool {
	h, err := ParseHost("http://" + host)
	if err != nil {
		return false
	}
	if !h.Addr.IsValid() {
		return h.Kind != hostPublic || h.Odd != ""
	}
	name := strings.Trim(host, "[]")
	if !strings.ContainsAny(name, ".:x") {
		n, err := strconv.ParseUint(name, 0, 64)
		return err == nil && n >= 1<<24 && n < 1<<32
	}
	return strings.Count(name, ".") == 3 || strings.Contains(name, ":") || strings.HasPrefix(name, "0x") || strings.Contains(name, ".0x")
}

// command reports the attacks in bytes [from, to) of the span.
func (s *span) command(from, to int) {
	for _, a := range attacks() {
		if at := a.re.FindIndex(s.raw[from:to]); at != nil {
			s.report(
				from+at[0],
				from+at[1],
				Finding{Rule: RuleCommand, Severity: a.severity, Message: "a command that " + a.message, Hint: "look at who wrote it"},
			)
		}
	}
}
