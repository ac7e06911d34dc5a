package notify

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/seccomp/target"

	"agentsh/internal/testenv"
)

// rooted makes a root with programs in /bin.
func rooted(t *testing.T) (dir string, root Root) {
	t.Helper()
	dir = t.TempDir()
	for name, data := range map[string]string{"kill": "\x7fELF kill", "ls": "\x7fELF list", "python3.11": "\x7fELF python",
		"killer": "\x7fELF x"} {
		write(t, filepath.Join(dir, "bin", name), data)
	}
	write(t, filepath.Join(dir, "lib64/ld-linux-x86-64.so.2"), "\x7fELF loader")
	for name, to := range map[string]string{"python3": "python3.11", "slay": "/bin/kill", "away": "/missing"} {
		if err := os.Symlink(to, filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return dir, Root{Dir: f, Path: []string{"/missing", "/bin"}}
}

func write(t *testing.T, name, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(data), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreRecognisedUnderOtherNames(t *testing.T) {
	dir, root := rooted(t)
	ids, err := BuildIdentities([]string{"kill", "/bin/python3", "/opt/*"}, root)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "copy"), "\x7fELF kill")
	write(t, filepath.Join(dir, "same-size"), "\x7fELF lilk")
	write(t, filepath.Join(dir, "loader"), "\x7fELF loader")
	if err := os.Link(filepath.Join(dir, "bin/kill"), filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file   string
		want   FileIdentity
		reason string
	}{
		{"/bin/kill", FileIdentity{Names: []string{"/bin/slay"}, Same: []string{"/bin/kill"}}, "the program itself"},
		{"/bin/slay", FileIdentity{Names: []string{"/bin/slay"}, Same: []string{"/bin/kill"}}, "a link to it"},
		{"/copy", FileIdentity{Same: []string{"/bin/kill"}}, "a copy"},
		{"/hard", FileIdentity{Names: []string{"/bin/slay"}, Same: []string{"/bin/kill"}}, "a hard link"},
		{"/same-size", FileIdentity{}, "a file of the same size"},
		{"/bin/ls", FileIdentity{}, "another program"},
		{"/bin/killer", FileIdentity{}, "a longer name"},
		{"/bin/python3.11", FileIdentity{Names: []string{"/bin/python3"}, Same: []string{"/bin/python3"}}, "what a denied link leads to"},
		{"/loader", FileIdentity{Loader: true}, "a copy of the loader"},
	} {
		t.Run(c.reason, func(t *testing.T) {
			for range 2 { // the second time from the cache
				h, err := target.ResolveIn(root.Dir, c.file)
				if err != nil {
					t.Fatal(err)
				}
				got, err := ids.Of(h)
				h.Close()
				if err != nil || !slices.Equal(got.Names, c.want.Names) || !slices.Equal(got.Same, c.want.Same) || got.Loader != c.want.Loader {
					t.Errorf("%s is %+v %v, want %+v", c.file, got, err, c.want)
				}
			}
		})
	}
}

// A directory that has two names on the PATH is read once, and its programs have both.
func TestADirectoryWithTwoNames(t *testing.T) {
	dir, root := rooted(t)
	if err := os.Symlink("bin", filepath.Join(dir, "sbin")); err != nil {
		t.Fatal(err)
	}
	root.Path = []string{"/bin", "/sbin", "/bin"}
	ids, err := BuildIdentities([]string{"kill", "/sbin/l?", "/sbin/python3.11"}, root)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]FileIdentity{
		"/sbin/kill":       {Names: []string{"/bin/slay", "/sbin/slay", "/bin/slay"}, Same: []string{"/bin/kill", "/sbin/kill"}},
		"/bin/ls":          {Same: []string{"/sbin/ls"}},
		"/sbin/python3.11": {Names: []string{"/bin/python3", "/sbin/python3", "/bin/python3"}, Same: []string{"/sbin/python3.11"}},
	} {
		h, err := target.ResolveIn(root.Dir, file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ids.Of(h)
		h.Close()
		if err != nil || !slices.Equal(got.Names, want.Names) || !slices.Equal(got.Same, want.Same) {
			t.Errorf("%s is %+v %v, want %+v", file, got, err, want)
		}
	}
}

func TestADeniedProgramThatWasReplacedCannotBeCompared(t *testing.T) {
	dir, root := rooted(t)
	ids, err := BuildIdentities([]string{"kill"}, root)
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(filepath.Join(dir, "bin/kill")) // keeps its inode number from being used again
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	write(t, filepath.Join(dir, "new"), "\x7fELF KILL")
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "bin/kill")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "copy"), "\x7fELF kill")
	h, err := target.ResolveIn(root.Dir, "/copy")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if like, err := ids.Of(h); err == nil || !strings.Contains(err.Error(), "replaced since the session began") {
		t.Errorf("the copy is %+v %v", like, err)
	}
}

func TestCopiesAndLoadersOfDeniedProgramsAreDenied(t *testing.T) {
	bin, dir := place(t)
	top, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	ids, err := BuildIdentities([]string{"hello-dynamic"}, Root{Dir: top, Path: []string{bin}})
	if err != nil {
		t.Fatal(err)
	}
	dynamic := filepath.Join(bin, "hello-dynamic")
	loaders, err := filepath.Glob("/lib64/ld-linux*.so*")
	if err != nil || len(loaders) == 0 {
		if loaders, err = filepath.Glob("/lib/ld-linux*.so*"); err != nil || len(loaders) == 0 {
			t.Fatal("no dynamic loader")
		}
	}
	loader := loaders[0]
	for name, script := range map[string]string{
		"by its path":            dynamic + " ran",
		"a copy":                 "cp " + dynamic + " " + dir + "/x; " + dir + "/x ran",
		"a hard link":            "ln " + dynamic + " " + bin + "/y; " + bin + "/y ran",
		"a symbolic link":        "ln -s " + dynamic + " " + dir + "/z; " + dir + "/z ran",
		"the loader":             loader + " " + dynamic + " ran",
		"the loader, a copy":     "cp " + loader + " " + dir + "/l; " + dir + "/l " + dynamic + " ran",
		"the loader of a copy":   "cp " + dynamic + " " + dir + "/x2; " + loader + " " + dir + "/x2 ran",
		"the loader with option": loader + " --argv0 ls --library-path /lib " + dynamic + " ran",
		"the loader of itself":   loader + " " + loader + " " + dynamic + " ran",
		"an unknown option":      loader + " --unknown " + dynamic + " ran",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Rules: Rules{Identify: ids.Of, Evaluate: denying("hello-dynamic")}}
			s := run(t, cfg, "/bin/sh", "-c", "{ "+script+"; } 2>/dev/null || echo no")
			s.printed("no\n")
		})
	}
	t.Run("the loader of an allowed program", func(t *testing.T) {
		truth, err := exec.LookPath("echo")
		if err != nil {
			t.Fatal(err)
		}
		s := run(t, Config{Rules: Rules{Identify: ids.Of, Evaluate: denying("hello-dynamic")}}, loader, truth, "fine")
		s.printed("fine\n")
	})
}

// A multi-call program is one by its content: its applets are judged whatever it
// is called.
func TestAppletsOfACopyAreJudged(t *testing.T) {
	testenv.Need(t, testenv.Program("busybox"))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	place(t)
	top, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	text := "version: 1\nname: t\ncommand_rules:\n- {name: no-hostid, commands: [hostid], decision: deny}\n- {name: all, commands: ['*'], decision: allow}\n"
	p, err := syntax.Load(policy.Source{Name: "t.yaml", Data: []byte(text)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := BuildIdentities(p.DeniedPrograms(), Root{Dir: top, Path: []string{filepath.Dir(busybox)}})
	if err != nil {
		t.Fatal(err)
	}
	for line, ran := range map[string]bool{
		"./x hostid":                                    false, // busybox knows no applet x
		"exec -a busybox ./x hostid":                    false,
		"exec -a busyboxes ./x hostid":                  false,
		"exec -a -busybox.static ./x busybox hostid":    false,
		"exec -a hostid ./x":                            false,
		"exec -a /a/busybox ./x env hostid":             false,
		"exec -a busybox1 " + busybox + " hostid":       false,
		"ln x hostid; ./hostid":                         false,
		"ln -s x busybox; ./busybox hostid":             false,
		"printf '#!./x hostid\\n' >s; chmod 755 s; ./s": false,
		"exec -a busybox ./x echo 12345678":             true,
		"exec -a busyboxes ./x echo 12345678":           true,
		"exec -a echo ./x 12345678":                     true,
	} {
		t.Run(line, func(t *testing.T) {
			s := run(
				t,
				Config{Rules: Rules{Evaluate: p.Evaluate, Identify: ids.Of}},
				"/bin/bash",
				"-c",
				"cd "+t.TempDir()+"; cp "+busybox+" x; "+line,
			)
			if printed := regexp.MustCompile(`^[0-9a-f]{8}\n$`).MatchString(s.out.String()); printed != ran {
				t.Errorf("printed %q", &s.out)
			}
		})
	}
}
