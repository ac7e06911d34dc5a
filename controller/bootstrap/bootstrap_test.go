package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/layout"

	"agentsh/controller/git"
	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

var update = flag.Bool("update", false, "rewrite golden files")

// host makes a directory of the host from lines of "name content". A name with
// -> is a symbolic link; one with a trailing slash is a directory.
func host(t *testing.T, lines ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, line := range lines {
		name, content, _ := strings.Cut(line, " ")
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(file, 0o755)
		case strings.HasPrefix(content, "-> "):
			err = os.Symlink(content[3:], file)
		case strings.HasSuffix(name, ".sh"):
			err = os.WriteFile(file, []byte(content), 0o755)
		default:
			err = os.WriteFile(file, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// input is an input with every field set.
func input(t *testing.T) Input {
	h := host(t, "agents/reviewer.md # Reviewer", "skills/code-review/SKILL.md ---", "skills/code-review/scripts/run.sh #!/bin/sh",
		"skills/code-review/alias -> SKILL.md", "plugins/lint/plugin.json {}", "key.json secret", "in/task.json {}", "in/.git/config x")
	repo := host(
		t,
		"src/main.go package-main",
		"README hello",
		"link -> src/main.go",
		".git/HEAD ref:-refs/heads/main",
		".git/info/exclude *.o",
		".git/refs/heads/",
	)
	return Input{
		Agent: "reviewer", Definition: filepath.Join(h, "agents/reviewer.md"),
		Skills: []Skill{{Dir: filepath.Join(h, "skills/code-review")}}, Plugins: []string{filepath.Join(h, "plugins/lint")},
		Repo: repo, RepoName: "app", AgentsMD: []byte("# Rules\n"), Bridge: true,
		Files: []File{
			{Dest: layout.EnvDir + "/tool.env", Data: []byte("A='b'\n"), Mode: 0o600},
			{Dest: "/tmp/key.json", Source: filepath.Join(h, "key.json"), Mode: 0o400},
		},
		Internal: []File{
			{Dest: layout.EnvFile, Data: []byte("export CLAUDE_CONFIG_DIR=/sandbox/claude-config\n"), Mode: 0o600},
			{Dest: layout.GeneratedEnv, Data: []byte("X='1'\n"), Mode: 0o600},
			{Dest: layout.RuntimeDir + "/settings.json", Data: []byte("{}"), Mode: 0o644},
			{Dest: layout.RuntimeDir + "/hooks/pre", Data: []byte("#!"), Mode: 0o755},
		},
		Input: filepath.Join(h, "in"),
	}
}

func lines(p Plan) []string {
	var all []string
	for _, e := range p.Entries {
		all = append(
			all,
			strings.TrimSpace(fmt.Sprintf("%-7s %04o %5d %.12s %s %s", e.Kind, e.Mode, e.Size, e.SHA256+strings.Repeat("-", 12), e.Dest, e.Target)),
		)
	}
	for _, s := range p.Skipped {
		all = append(all, "skipped "+s)
	}
	return all
}

func TestAPlanOfEverything(t *testing.T) {
	p, err := New(input(t))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(lines(p), "\n") + "\n"
	golden := filepath.Join("testdata", "everything.golden")
	if *update {
		os.MkdirAll("testdata", 0o755)
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("plan differs from %s:\n%s", golden, got)
	}
}

func find(p Plan, dest string) *Entry {
	for i, e := range p.Entries {
		if e.Dest == dest {
			return &p.Entries[i]
		}
	}
	return nil
}

func TestRulesAreInjectedWhereTheRepositoryHasNone(t *testing.T) {
	tests := map[string]struct {
		repo           []string
		rules          string
		bridge         bool
		agents, claude string // content that is added
		exclude        string
	}{
		"neither":                   {nil, "org", true, "org", bridge, "/AGENTS.md\n/CLAUDE.md\n"},
		"neither, another runtime":  {nil, "org", false, "org", "", "/AGENTS.md\n"},
		"own rules":                 {[]string{"AGENTS.md own"}, "org", true, "", bridge, "/CLAUDE.md\n"},
		"own rules, other runtime":  {[]string{"AGENTS.md own"}, "org", false, "", "", ""},
		"both":                      {[]string{"AGENTS.md own", "CLAUDE.md own"}, "org", true, "", "", ""},
		"own CLAUDE.md only":        {[]string{"CLAUDE.md own"}, "org", true, "org", "", "/AGENTS.md\n"},
		"no default, nothing own":   {nil, "", true, "", "", ""},
		"rules only in a directory": {[]string{"doc/AGENTS.md own"}, "", true, "", "", ""},
		"rules are a link":          {[]string{"AGENTS.md -> doc/rules", "doc/rules r"}, "org", true, "", bridge, "/CLAUDE.md\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t)
			in.Repo, in.Bridge, in.AgentsMD = host(t, append(tt.repo, ".git/HEAD x")...), tt.bridge, nil
			if tt.rules != "" {
				in.AgentsMD = []byte(tt.rules)
			}
			p, err := New(in)
			if err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]string{"AGENTS.md": tt.agents, "CLAUDE.md": tt.claude, ".git/info/exclude": tt.exclude} {
				e := find(p, "/sandbox/workspace/app/"+file)
				switch {
				case want == "" && e != nil && e.Source() == "":
					t.Errorf("%s was added: %q", file, e.data)
				case want != "" && (e == nil || string(e.data) != want):
					t.Errorf("%s: %+v, want %q", file, e, want)
				}
			}
		})
	}
}

func TestAnExcludeFileKeepsItsLines(t *testing.T) {
	p, err := New(input(t))
	if err != nil {
		t.Fatal(err)
	}
	if e := find(p, "/sandbox/workspace/app/.git/info/exclude"); e == nil || string(e.data) != "*.o\n/AGENTS.md\n/CLAUDE.md\n" {
		t.Errorf("%+v", e)
	}
}

func TestAnInputThatWritesOutsideItsDirectoryIsRefused(t *testing.T) {
	file := func(dest string) func(*testing.T, *Input) {
		return func(_ *testing.T, in *Input) { in.Files = []File{{Dest: dest, Data: []byte("x"), Mode: 0o600}} }
	}
	tests := map[string]func(*testing.T, *Input){
		"agent name above":              func(_ *testing.T, in *Input) { in.Agent = "../x" },
		"agent name empty":              func(_ *testing.T, in *Input) { in.Agent = "" },
		"repository name with a slash":  func(_ *testing.T, in *Input) { in.RepoName = "a/b" },
		"repository name hidden":        func(_ *testing.T, in *Input) { in.RepoName = ".claude" },
		"repository named agent-input":  func(_ *testing.T, in *Input) { in.RepoName = "agent-input" },
		"two skills of one name":        func(_ *testing.T, in *Input) { in.Skills = append(in.Skills, Skill{Dir: "/x/code-review"}) },
		"a skill named dot":             func(_ *testing.T, in *Input) { in.Skills = []Skill{{Dir: "/"}} },
		"a skill with a link out":       func(t *testing.T, in *Input) { os.Symlink("/etc/passwd", filepath.Join(in.Skills[0].Dir, "l")) },
		"a skill with a fifo":           func(t *testing.T, in *Input) { syscall.Mkfifo(filepath.Join(in.Skills[0].Dir, "p"), 0o600) },
		"a missing definition":          func(_ *testing.T, in *Input) { in.Definition = "/nonexistent" },
		"a definition that is a folder": func(_ *testing.T, in *Input) { in.Definition = "/" },
		"a missing repository":          func(_ *testing.T, in *Input) { in.Repo = "/nonexistent" },
		"a runtime file above":          func(_ *testing.T, in *Input) { in.Internal = []File{{Dest: layout.RuntimeDir + "/../.env"}} },
		"a runtime file elsewhere":      func(_ *testing.T, in *Input) { in.Internal = []File{{Dest: "/etc/passwd"}} },
		"a set-user-id file":            func(_ *testing.T, in *Input) { in.Files[0].Mode = os.ModeSetuid | 0o755 },
		"one destination twice":         func(_ *testing.T, in *Input) { in.Files = append(in.Files, in.Files[0]) },
		"below a file":                  file("/sandbox/workspace/app/README/x"),
		"outside":                       file("/etc/passwd"),
		"dot-dot":                       file("/sandbox/../etc/passwd"),
		"relative":                      file("sandbox/x"),
		"the root itself":               file("/sandbox"),
		"the workspace itself":          file("/sandbox/workspace"),
		"a name that only begins so":    file("/sandboxed/x"),
		"generated.env":                 file(layout.GeneratedEnv),
		"the env file":                  file(layout.EnvFile),
		"settings":                      file(layout.RuntimeDir + "/settings.json"),
		"a hook":                        file(layout.RuntimeDir + "/hooks/x"),
		"another agent":                 file(layout.ConfigDir + "/agents/x.md"),
		"a program":                     file("/sandbox/bin/claude"),
		"a line break":                  file("/sandbox/a\nb"),
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(t)
			change(t, &in)
			if p, err := New(in); err == nil {
				t.Errorf("planned %q", lines(p))
			}
		})
	}
}

func TestAHostFileMayReplaceOneOfTheRepository(t *testing.T) {
	in := input(t)
	in.Files = []File{{Dest: "/sandbox/workspace/app/README", Data: []byte("ours"), Mode: 0o644}}
	p, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	if e := find(p, "/sandbox/workspace/app/README"); e == nil || string(e.data) != "ours" {
		t.Errorf("%+v", e)
	}
}

func TestALinkOfTheRepositoryThatLeavesItIsNamed(t *testing.T) {
	in := input(t)
	for name, target := range map[string]string{"abs": "/etc/passwd", "up": "../x", "crooked": "src/../../x", "src/fine": "../README"} {
		os.Symlink(target, filepath.Join(in.Repo, name))
	}
	p, err := New(in)
	if err != nil || len(p.Skipped) != 3 || find(p, "/sandbox/workspace/app/src/fine") == nil {
		t.Errorf("%q %v", p.Skipped, err)
	}
}

// countingFiles serves two directories as /sandbox and /tmp and counts the archives.
type countingFiles struct {
	channel.Files
	archives int
}

func (p *countingFiles) CopyIn(ctx context.Context, dest string, r io.Reader) (wire.Manifest, error) {
	p.archives++
	return p.Files.CopyIn(ctx, dest, r)
}

// server is the supervisor's end of the channel.
type server struct{ files *countingFiles }

func (s server) Files() channel.Files                                                   { return s.files }
func (s server) Changes(context.Context) ([]wire.Change, error)                         { return nil, nil }
func (s server) Events(context.Context, wire.EventRequest) iter.Seq2[wire.Event, error] { return nil }
func (s server) Exec(context.Context, wire.ExecRequest, wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	return wire.Exit{}, wire.TreeEmpty{}, errors.ErrUnsupported
}

// connect returns a sandbox over a real channel, and the paths of its
// directories.
func connect(t *testing.T) (c *channel.Client, p *countingFiles, sandbox, tmp string) {
	t.Helper()
	sandbox, tmp = t.TempDir(), t.TempDir()
	var mounts []channel.Mount
	for at, dir := range map[string]string{"/sandbox": sandbox, "/tmp": tmp} {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
		mounts = append(mounts, channel.Mount{Path: at, Root: root})
	}
	files, err := channel.NewRoots(channel.RootsConfig{Mounts: mounts})
	if err != nil {
		t.Fatal(err)
	}
	p = &countingFiles{Files: files}
	hostKey, hostPub, _ := channel.NewKeyPair()
	key, pub, _ := channel.NewKeyPair()
	conn, f, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	peer, err := channel.FromFile(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- channel.NewServer(peer, channel.ServerConfig{HostKey: hostKey, AuthorizedKey: pub,
			Handler: server{p}}).Serve(context.Background())
	}()
	if c, err = channel.NewClient(context.Background(), conn, channel.ClientConfig{Key: key, HostKey: hostPub}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-served })
	return c, p, sandbox, tmp
}

func TestPlannedFilesAreDelivered(t *testing.T) {
	c, place, sandbox, tmp := connect(t)
	p, err := New(input(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := Apply(context.Background(), c, p); err != nil {
		t.Fatal(err)
	}
	if place.archives != 2 {
		t.Errorf("%d archives", place.archives)
	}
	for _, e := range p.Entries {
		file := filepath.Join(sandbox, strings.TrimPrefix(e.Dest, "/sandbox"))
		if strings.HasPrefix(e.Dest, "/tmp/") {
			file = filepath.Join(tmp, strings.TrimPrefix(e.Dest, "/tmp"))
		}
		info, err := os.Lstat(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if e.Kind != KindSymlink && info.Mode().Perm() != e.Mode {
			t.Errorf("%s has mode %v, want %v", e.Dest, info.Mode(), e.Mode)
		}
		if e.Kind != KindFile {
			continue
		}
		data, _ := os.ReadFile(file)
		sum := sha256.Sum256(data)
		if hex.EncodeToString(sum[:]) != e.SHA256 {
			t.Errorf("%s arrived as %q", e.Dest, data)
		}
	}
}

func TestAHostFileThatChangedSinceItWasPlannedIsNotSent(t *testing.T) {
	for name, content := range map[string]string{"same length": "# Revealer", "longer": "# Reviewer and more", "shorter": "#", "gone": ""} {
		t.Run(name, func(t *testing.T) {
			c, _, sandbox, _ := connect(t)
			in := input(t)
			p, err := New(in)
			if err != nil {
				t.Fatal(err)
			}
			if content == "" {
				os.Remove(in.Definition)
			} else {
				os.WriteFile(in.Definition, []byte(content), 0o644)
			}
			if err := Apply(context.Background(), c, p); err == nil || !strings.Contains(err.Error(), "reviewer.md") {
				t.Errorf("%v", err)
			}
			if names, _ := os.ReadDir(sandbox); len(names) != 0 {
				t.Errorf("arrived: %v", names)
			}
		})
	}
}

func TestARefusalOfTheSandboxIsReported(t *testing.T) {
	c, _, sandbox, _ := connect(t)
	os.MkdirAll(filepath.Join(sandbox, "claude-config/agents/reviewer.md"), 0o755)
	p, err := New(input(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := Apply(context.Background(), c, p); err == nil || !strings.Contains(err.Error(), "a directory and something else meet") {
		t.Errorf("%v", err)
	}
}

func TestAPlanIsTheSameTwice(t *testing.T) {
	in := input(t)
	a, err := New(in)
	b, err2 := New(in)
	if err != nil || err2 != nil || !slices.Equal(lines(a), lines(b)) {
		t.Errorf("%v %v", err, err2)
	}
}

func TestHiddenFilesDoNotTravel(t *testing.T) {
	tests := []struct {
		name string
		blob git.TreeEntry
		want bool
	}{
		{"a hidden file", git.TreeEntry{Path: ".gemini/settings.json", Kind: KindFile}, true},
		{"what lies below a hidden directory", git.TreeEntry{Path: ".gemini/agents/a/b.md", Kind: KindFile}, true},
		{"a hidden link", git.TreeEntry{Path: ".gemini/settings.json", Kind: KindSymlink, Target: "x"}, true},
		{"a link in the place of a directory above", git.TreeEntry{Path: ".gemini", Kind: KindSymlink, Target: "conf"}, true},
		{"a directory, which is empty then", git.TreeEntry{Path: ".gemini/agents", Kind: KindDir}, false},
		{"a file beside", git.TreeEntry{Path: ".gemini/settings.json5", Kind: KindFile}, false},
		{"one of the same name elsewhere", git.TreeEntry{Path: "docs/.gemini/settings.json", Kind: KindFile}, false},
		{"a file in the place of a directory above", git.TreeEntry{Path: ".gemini", Kind: KindFile}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := hidden(tt.blob, []string{".gemini/settings.json", ".gemini/agents"}); got != tt.want {
				t.Errorf("hidden: %v", got)
			}
		})
	}
}

func TestLinksOfTheProgramStayInTheSandbox(t *testing.T) {
	for target, want := range map[string]bool{"../../claude-config/skills": true, "../../../etc": false, "/etc": false} {
		b := newBuilder(0)
		b.internalFile(File{Dest: layout.Sandbox + "/home/.agents/skills", Target: target})
		e := b.entry(layout.Sandbox + "/home/.agents/skills")
		if (e != nil) != want || (len(b.problems) == 0) != want || want && (e.Kind != KindSymlink || e.Target != target) {
			t.Errorf("%s: %+v, %v", target, e, b.problems)
		}
	}
}

func TestTheDefinitionEndsWithTheNote(t *testing.T) {
	in := input(t)
	text, err := os.ReadFile(in.Definition)
	if err != nil {
		t.Fatal(err)
	}
	in.Note = []byte("\nnote\n")
	p, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	dest := layout.ConfigDir + "/agents/" + in.Agent + ".md"
	for _, e := range p.Entries {
		if e.Dest == dest {
			if string(e.data) != string(text)+"\nnote\n" || e.Size != int64(len(e.data)) {
				t.Errorf("%q", e.data)
			}
			return
		}
	}
	t.Errorf("no %s", dest)
}
