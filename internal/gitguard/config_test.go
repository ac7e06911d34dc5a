package gitguard

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var here = Location{Dir: "/ws/.git", Roots: []string{"/ws"}}

func TestOrdinarySettingsPass(t *testing.T) {
	for _, text := range []string{
		"",
		"# a comment\n; another\n\n",
		"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n",
		"[core]\r\n\tbare = false\r\n[User]\r\n\tName = \"A \\\"B\\\" C\" ; comment\r\n\tEMAIL = a@b # comment\r\n",
		"[remote \"origin\"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
		"[remote \"origin\"]\n\turl = git@example.org:x/y.git\n\tpushurl = ssh://git@[::1]:22/x\n\ttagOpt = --no-tags\n",
		"[remote \"a/b\"]\n\turl = ../other\n[remote \"c\"]\n\turl = file:///srv/x.git\n",
		"[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n\trebase = merges\n[branch \"x\"]\n\tremote = .\n",
		"[submodule \"a\"]\n\tactive = true\n\turl = ../a\n\tupdate = none\n\tbranch = .\n",
		"[core]\n\tworktree = ../../../sub\n",
		"[core]\n\tworktree = /ws/sub\n\thooksPath = /dev/null\n\tfsmonitor = false\n\tpager\n",
		"[extensions]\n\tworktreeConfig\n\tobjectFormat = sha256\n\tpartialClone = origin\n[remote \"origin\"]\n\tpromisor = true\n\tpartialclonefilter = blob:none\n",
		"[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n\tprocess = git-lfs filter-process\n\trequired = true\n" +
			"[lfs]\n\trepositoryformatversion = 0\n\turl = https://lfs.example.org/x\n[lfs \"https://lfs.example.org/x\"]\n\taccess = basic\n\tlocksverify = true\n",
		"[gc]\n\tauto = 0\n[pull]\n\trebase = true\n[push]\n\tdefault = current\n\tautoSetupRemote = true\n[advice]\n\tdetachedHead = false\n",
	} {
		at := here
		at.Dir = "/ws/.git/modules/x"
		text = strings.ReplaceAll(text, "\tpager\n", "\tpager = cat\n")
		if got := CheckConfig([]byte(text), nil, at); len(got) > 0 {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// refused are settings that run something or lead outside, as section, key, value.
var refused = [][3]string{
	{
		"core",
		"fsmonitor",
		"/ws/evil",
	}, {"core", "fsmonitor", "true"}, {"core", "hooksPath", ".hooks"}, {"core", "sshCommand", "evil"}, {"core", "pager", "evil"},
	{"core", "editor", "evil"}, {"core", "gitProxy", "evil"}, {"core", "askPass", "evil"}, {"core", "alternateRefsCommand", "evil"},
	{
		"core",
		"attributesFile",
		"/etc/passwd",
	}, {"core", "excludesFile", "/etc/passwd"}, {"core", "worktree", "/home/op"}, {"core", "worktree", "."}, {"core", "worktree", "hooks"},
	{"rebase", "instructionFormat", "%n"}, {"core", "worktree", "../../../../.."},
	{
		"core",
		"worktree",
		"a/../../../../..",
	}, {"core", "protectNTFS", "false"}, {"core", "preferSymlinkRefs", "true"}, {"core", "repositoryformatversion", "2"},
	{
		"include",
		"path",
		"x",
	}, {`includeIf "gitdir:/"`, "path", "x"}, {`filter "x"`, "clean", "evil"}, {`filter "lfs"`, "smudge", "evil"}, {`filter "lfs"`,
		"process", `"git-lfs filter-process; evil"`},
	{
		`diff "x"`,
		"command",
		"evil",
	}, {`diff "x"`, "textconv", "evil"}, {"diff", "external", "evil"}, {"diff", "orderFile", "/etc/passwd"}, {"diff", "tool", "x"},
	{`merge "x"`, "driver", "evil"},
	{
		"merge",
		"tool",
		"x",
	}, {`mergetool "x"`, "cmd", "evil"}, {`difftool "x"`, "cmd", "evil"}, {"credential", "helper", "!evil"}, {`credential "https://x"`,
		"helper", "evil"},
	{
		"gpg",
		"program",
		"evil",
	}, {`gpg "ssh"`, "program", "evil"}, {`gpg "ssh"`, "defaultKeyCommand", "evil"}, {`gpg "ssh"`, "allowedSignersFile", "/x"}, {"alias",
		"st", "!evil"},
	{
		`url "ext::evil"`,
		"insteadOf",
		"https://",
	}, {`url "x"`, "pushInsteadOf", "y"}, {`remote "o"`, "uploadpack", "evil"}, {`remote "o"`, "receivepack", "evil"}, {`remote "o"`, "vcs",
		"evil"},
	{
		`remote "o"`,
		"proxy",
		"x",
	}, {`remote "o"`, "push", "+refs/*:refs/*"}, {`remote "o"`, "mirror", "true"}, {`remote "o"`, "url", "ext::sh -c evil"}, {`remote "o"`,
		"url", "fd::3"},
	{
		`remote "o"`,
		"url",
		"foo://x",
	}, {`remote "o"`, "url", "HTTPS://x"}, {`remote "o"`, "url", "-oProxyCommand=evil"}, {`remote "o"`, "url", "ssh://-oProxyCommand=evil/x"},
	{
		`remote "o"`,
		"url",
		"ssh://u@-oProxyCommand=evil/x",
	}, {`remote "o"`, "url", "u@-oProxyCommand=evil:x"}, {`branch "m"`, "remote", "ext::evil"}, {`branch "m"`, "mergeOptions", "-s x/evil"},
	{
		`submodule "a"`,
		"update",
		"!evil",
	}, {`submodule "a"`, "url", "ext::evil"}, {"protocol", "allow", "always"}, {`protocol "ext"`, "allow", "always"}, {"http", "proxy", "x"},
	{
		"http",
		"sslKey",
		"/x",
	}, {"http", "cookieFile", "/x"}, {`browser "x"`, "cmd", "evil"}, {`man "x"`, "cmd", "evil"}, {"web", "browser", "evil"}, {"instaweb",
		"httpd", "evil"},
	{
		"sendemail",
		"smtpServer",
		"/evil",
	}, {"uploadpack", "packObjectsHook", "evil"}, {"gc", "recentObjectsHook", "evil"}, {"sequence", "editor", "evil"}, {"interactive",
		"diffFilter", "evil"},
	{
		`trailer "x"`,
		"command",
		"evil",
	}, {`trailer "x"`, "cmd", "evil"}, {`tar "x"`, "command", "evil"}, {"pager", "log", "evil"}, {"pull", "twohead", "x/evil"}, {"pull",
		"octopus", "evil"},
	{
		`lfs "customtransfer.x"`,
		"path",
		"evil",
	}, {`lfs "extension.x"`, "clean", "evil"}, {"lfs", "standalonetransferagent", "x"}, {"lfs", "storage", "/x"}, {"commit", "template",
		"/etc/passwd"},
	{
		"init",
		"templateDir",
		"/x",
	}, {"blame", "ignoreRevsFile", "/x"}, {"mailmap", "file", "/x"}, {"fsck", "skipList", "/x"}, {"guitool \"x\"", "cmd", "evil"}, {"ssh",
		"variant", "simple"},
	{
		"extensions",
		"refStorage",
		"files:///x",
	}, {"extensions", "unknown", "1"}, {`hook "x"`, "command", "evil"}, {"user", "signingKey", "/home/op/.ssh/id"}, {"gpg", "format", "ssh"},
	{
		"core",
		"gitProxy",
		"",
	}, {"safe", "directory", "*"}, {"receive", "procReceiveRefs", "x"}, {"transfer", "credentialsInUrl", "allow"}, {"imap", "tunnel",
		"evil"}, {"svn", "x", "y"},
}

func TestSettingsThatRunOrLeadOutsideAreRefused(t *testing.T) {
	for _, r := range refused {
		text := "[user]\n\tname = x\n[" + r[0] + "]\n\t" + r[1] + " = " + r[2] + "\n"
		got := CheckConfig([]byte(text), []byte("[user]\n\tname = x\n"), here)
		if len(got) != 1 || got[0].Line != 4 || !strings.HasSuffix(got[0].Key, "."+lower(r[1])) || got[0].Reason == "" {
			t.Errorf("%q: %v", text, got)
		}
		section, sub, _ := strings.Cut(r[0], " ")
		other := "[" + strings.ToUpper(section) + " \t" + sub + "] # x\r\n" + strings.ToUpper(r[1]) + "=" + r[2]
		if got := CheckConfig([]byte(other), nil, here); len(got) == 0 {
			t.Errorf("%q passes", other)
		}
		if got := CheckConfig([]byte("[core]\n\tbare = false\n"+text), []byte(text), here); len(got) > 0 {
			t.Errorf("%q was there before, and is refused: %v", text, got)
		}
	}
}

func TestASettingOfTheOperatorStaysWithItsValueOnly(t *testing.T) {
	old := []byte("[core]\n\thooksPath = .husky\n\tworktree = /home/op/x\n")
	if got := CheckConfig([]byte("[core]\n\thooksPath = .evil\n"), old, here); len(got) != 1 || got[0].Key != "core.hookspath" {
		t.Errorf("another value: %v", got)
	}
	if got := CheckConfig([]byte("[Core]\n\tHooksPath = \".husky\"\n\tworktree = /home/op/x\n"), old, here); len(got) > 0 {
		t.Errorf("the same value in another form: %v", got)
	}
	moved := here
	moved.Moved = true
	if got := CheckConfig(old, old, moved); len(got) != 1 || got[0].Key != "core.worktree" {
		t.Errorf("a path that moved: %v", got)
	}
}

func TestAmbiguousConfigurationIsRefused(t *testing.T) {
	for _, text := range []string{
		"\ufeff[core]\n\tbare = false\n", "[core] bare = false\n", "[core.x]\n\tbare = false\n", "[core]\n\tbare = fal\\\nse\n",
		"[core]\n\tbare = false \\\n",
		"bare = false\n", "[core]\n\tbare = false\x00\n", "[core]\n\tbare\r = false\n", "[core\n]\n\tbare = false\n",
		"[core \"a\\nb\"]\n\tbare = false\n",
		"[user]\n\tname = \"x\n\tfsmonitor = y\"\n", "[user]\n\tname = x\\\n[core]\n\tbare = y\n", "[core]\n\tb_are = false\n",
		"[user]\n\tname = \xff\n", "[user]\n\tname = a\\bb\n",
		"[a\"b\"]\n\tc = d\n", "[core]]\n", "[]\n", "[core \"x\" ]\n\ta = b\n", "[user]\n\tname # x\n", "[user]\n\tname = x\ty\n",
		"[user]\n\tname = \"\" x\n", "[user \"\"]\n\tname = x\n",
	} {
		if got := CheckConfig([]byte(text), nil, here); len(got) == 0 {
			t.Errorf("%q passes", text)
		}
	}
}

// gitSees are the settings that git reads in a file, as key, and "key\nvalue".
func gitSees(t testing.TB, dir string, data []byte) ([]string, bool) {
	t.Helper()
	name := filepath.Join(dir, "config")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "config", "--list", "-z", "--no-includes", "-f", name)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, false
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), true
}

// agree fails when a file that passes the parser means something else to git.
func agree(t testing.TB, dir string, data []byte) {
	t.Helper()
	ours, problems := parseConfig(data)
	if len(problems) > 0 {
		return // refused
	}
	git, ok := gitSees(t, dir, data)
	if !ok {
		return // git refuses it too, and runs nothing
	}
	var list []string
	for _, s := range ours {
		if s.blank {
			list = append(list, s.key())
		} else {
			list = append(list, s.key()+"\n"+s.value)
		}
	}
	if len(list) == 0 {
		list = []string{""}
	}
	if strings.Join(git, "\x00") != strings.Join(list, "\x00") {
		t.Errorf("%q: git reads %q, the guard %q", data, git, list)
	}
}

func TestTheGuardReadsWhatGitReads(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{
		"[a]\nb=c\n", "[A]\n\tB = \"c ; d\" ; e\n", "[a \"B c\"]\nd = e\\\\f\\\"g\\n\\t\n", "[a]\nb\nc = \n", "[a]\nb = c  # d\\\ne = f\n",
		"[a]\r\nb = c\r\n", "[a] # x\nb = \"# c  d\"\n",
		"[a \"]\"]\nb = ]\n", "[a]\nb = [c]\n[d]\n", "[a]\n b = c", "[a \"x\\\\y\\\"\"]\nb=1\n", "[a]\nb = \" c \"\n", "[a-b]\nc-d = é\n",
		"[a]\nb = 'c'\n", "[a]\nb==c\n",
	} {
		if _, problems := parseConfig([]byte(text)); len(problems) > 0 {
			t.Errorf("%q: %v", text, problems)
		}
		agree(t, dir, []byte(text))
	}
}

func FuzzTheGuardReadsWhatGitReads(f *testing.F) {
	for _, seed := range []string{
		"[core]\n\tbare = false\n", "[remote \"a\\\"b\"]\n\turl = \"x\" # y\n", "[a]\nb = c\\\nd = e\n", "[a.b]\nc\n", "\ufeff[a]\nb\n",
		"[a]\r\nb = \"c\r\n", "[a] b = c\n", "[a \"b\"]c=d\n[e]\n;f\\\ng=h\n",
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.ContainsAny(data, "\x00") {
			return
		}
		sub := filepath.Join(dir, "w")
		_ = os.MkdirAll(sub, 0o700)
		own, err := os.MkdirTemp(sub, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(own)
		agree(t, own, data)
	})
}
