package harness

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/probe"
)

func TestBadFilesAreRefusedWithTheirPosition(t *testing.T) {
	deep := strings.Repeat("{a: ", 40) + "1" + strings.Repeat("}", 40)
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	for _, c := range []struct{ what, text, want string }{
		{"an empty file", "", "a.yaml:1:1: error: the file is empty"},
		{"only a comment", "# x\n", "a.yaml:1:1: error: the file is empty"},
		{"a text", "hello\n", "a.yaml:1:1: error: the file is a mapping of keys to values, this is the text"},
		{"a list", "- a\n", "a.yaml:1:1: error: the file is a mapping of keys to values, this is a list"},
		{"a NUL byte", head + "slug: a\x00b\n", "a.yaml:3:8: error: a NUL byte"},
		{"not UTF-8", head + "slug: \xff\n", "a.yaml:3:7: error: not UTF-8"},
		{"a tab as indentation", head + "env:\n\trunner: {}\n", "found character that cannot start any token"},
		{"an open bracket", head + "skills: [a\n", "did not find expected ',' or ']'"},
		{"two documents", head + "---\n" + head, "a.yaml:3:1: error: a second document"},
		{"an unknown alias", head + "slug: *m\n", "unknown anchor 'm' referenced"},
		{"an alias in its own anchor", head + "env: &e {runner: *e}\n", "a.yaml:3:18: error: the alias e stands within its own anchor"},
		{"a merge of a text", head + "env: {<<: x}\n", "a.yaml:3:11: error: a merge key names a mapping, or a list of mappings"},
		{"a bomb of aliases", bomb.String(), "error: aliases make the file larger than 100000 entries"},
		{"a foreign tag", head + "slug: !x y\n", "a.yaml:3:7: error: the tag !x is not accepted"},
		{"binary", head + "slug: !!binary aGk=\n", "the tag !!binary is not accepted"},
		{"deep nesting", head + "env: " + deep + "\n", "nested deeper than 32 levels"},
		{"a bomb of brackets", strings.Repeat("[", 20000), "exceeded max depth"},
		{"a bomb of braces", strings.Repeat("{a: ", 20000), "exceeded max depth"},
		{"a bomb of question marks", strings.Repeat("? ", 20000), "a.yaml:1:"},
		{"a list as a key", head + "[a]: b\n", "a.yaml:3:1: error: a key is a word, this is a list"},
		{"a million keys", head + "env: {runner: {" + strings.Repeat("A, ", 100000) + "}}\n", "more than 200 problems"},
		{"larger than read", head + "# " + strings.Repeat("x", 10<<20) + "\n", "a.yaml:1:1: error: is larger than 1048576 bytes"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := lay(t, tests{"a.yaml": c.text})
			h, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
			if got := short(dir, ps); h != nil || !strings.Contains(got, c.want) {
				t.Errorf("%.300s, want %s", got, c.want)
			}
		})
	}
}

func TestMissingAndNonRegularFilesAreRefused(t *testing.T) {
	dir := lay(
		t,
		tests{
			"dir.yaml/x":        "",
			"base-is-dir.yaml":  "base: dir.yaml\n",
			"base-is-pipe.yaml": "base: pipe\n",
			"base-missing.yaml": "base: none.yaml\n",
		},
	)
	if err := syscall.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop.yaml", dir+"/loop.yaml"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"none.yaml":         "none.yaml:1:1: error: none.yaml: no such file or directory",
		"dir.yaml":          "dir.yaml:1:1: error: is a directory, not a file",
		"pipe":              "pipe:1:1: error: is not a regular file",
		"loop.yaml":         "too many links",
		"base-is-dir.yaml":  "dir.yaml:1:1: error: is a directory, not a file",
		"base-is-pipe.yaml": "pipe:1:1: error: is not a regular file",
		"base-missing.yaml": "base-missing.yaml:1:7: error: none.yaml: no such file or directory",
		"none/a.yaml":       "no such file or directory",
	} {
		if _, ps := Load(filepath.Join(dir, name), Options{}); !strings.Contains(short(dir, ps), want) || len(ps) != 1 {
			t.Errorf("%s: %s, want %s", name, short(dir, ps), want)
		}
	}
}

// Root can read every file, so the thread reads with the rights of nobody. See
// setfsuid(2).
func TestAnUnreadableFileIsRefused(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head})
	name := filepath.Join(dir, "a.yaml")
	if err := os.Chmod(name, 0); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		const nobody = 65534
		if err := unix.Setfsuid(nobody); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Setfsuid(0); err != nil {
				t.Error(err)
			}
		}()
	}
	_, ps := Load(name, Options{})
	equalText(t, "problems", short(dir, ps), "a.yaml:1:1: error: permission denied")
}

func TestBasesGoAtMostFiveDeep(t *testing.T) {
	files := tests{"b0.yaml": head}
	for i := 1; i <= 6; i++ {
		files[fmt.Sprintf("b%d.yaml", i)] = fmt.Sprintf("base: b%d.yaml\n", i-1)
	}
	dir := lay(t, files)
	loaded(t, dir, "b5.yaml", Options{})
	_, ps := Load(filepath.Join(dir, "b6.yaml"), Options{})
	equalText(
		t,
		"problems",
		strings.ReplaceAll(short(dir, ps), dir+"/", ""),
		"b1.yaml:1:7: error: more than 5 bases: b6.yaml -> b5.yaml -> b4.yaml -> b3.yaml -> b2.yaml -> b1.yaml -> b0.yaml",
	)
}

func TestACircleOfBasesNamesTheChain(t *testing.T) {
	dir := lay(
		t,
		tests{
			"a.yaml":    "base: b.yaml\n",
			"b.yaml":    "base: sub/../c.yaml\n",
			"c.yaml":    "base: link.yaml\n",
			"self.yaml": "base: self.yaml\n",
			"sub/x":     "",
		},
	)
	if err := os.Symlink("b.yaml", dir+"/link.yaml"); err != nil {
		t.Fatal(err)
	}
	_, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
	equalText(t, "problems", short(dir, ps), "c.yaml:1:7: error: the bases go in a circle: b.yaml -> c.yaml -> link.yaml")
	_, ps = Load(filepath.Join(dir, "self.yaml"), Options{})
	equalText(t, "problems", short(dir, ps), "self.yaml:1:7: error: the bases go in a circle: self.yaml -> self.yaml")
}

func TestABaseStaysBeneathTheRoot(t *testing.T) {
	outside := lay(t, tests{"out.yaml": head})
	dir := lay(t, tests{
		"harness/dots.yaml": "base: ../../out.yaml\n", "harness/abs.yaml": "base: " + outside + "/out.yaml\n",
		"harness/link.yaml": "base: to-out.yaml\n", "harness/dirlink.yaml": "base: d/out.yaml\n", "harness/up.yaml": "base: ../common.yaml\n",
		"harness/inner.yaml": "base: to-common.yaml\n", "harness/url.yaml": "base: https://example.com/x.yaml#sha256=00\n",
		"common.yaml": head, "harness/absin.yaml": "",
	})
	put(t, filepath.Join(filepath.Dir(dir), "out.yaml"), head)
	put(t, filepath.Join(dir, "harness/absin.yaml"), "base: "+dir+"/common.yaml\n")
	for link, to := range map[string]string{"to-out.yaml": outside + "/out.yaml", "d": outside, "to-common.yaml": "../common.yaml"} {
		if err := os.Symlink(to, filepath.Join(dir, "harness", link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"dots", "abs", "link", "dirlink"} {
		_, ps := Load(filepath.Join(dir, "harness", name+".yaml"), Options{})
		if len(ps) != 1 || ps[0].Rule != RuleBase || ps[0].At.Line != 1 || ps[0].At.Column != 7 ||
			!strings.Contains(ps[0].Message, "leaves the root "+dir) {
			t.Errorf("%s: %v", name, ps)
		}
	}
	for _, name := range []string{"up", "inner", "absin"} {
		loaded(t, dir, "harness/"+name+".yaml", Options{})
	}
	// With the directory of the file as root, its parent is outside.
	if _, ps := Load(filepath.Join(dir, "harness/up.yaml"), Options{Root: filepath.Join(dir, "harness")}); len(ps) != 1 ||
		ps[0].Rule != RuleBase {
		t.Errorf("%v", ps)
	}
	_, ps := Load(filepath.Join(dir, "harness/url.yaml"), Options{})
	if len(ps) != 1 || !strings.Contains(ps[0].Message, "the URL has no #sha256= with 64 digits") {
		t.Errorf("%v", ps)
	}
}

func TestAnUnknownForgeIsRefusedAndAConfiguredOneIsNot(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + "forge: {gerrit: {env: {runner: {A: 1}}}}\n"})
	if _, ps := Load(dir+"/a.yaml", Options{}); !strings.Contains(short(dir, ps), `"gerrit" is not a forge that is known`) {
		t.Errorf("%v", ps)
	}
	if _, ps := Load(dir+"/a.yaml", Options{Forge: "gerrit"}); !ps.HasErrors() {
		t.Errorf("%v", ps)
	}
	h, _ := loaded(t, dir, "a.yaml", Options{Forge: "gerrit", Forges: []string{"gerrit"}})
	equalText(t, "runner", show(h.Env.Runner), "A=1")
}

func TestBadProviderFilesAreRefused(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"type: t\n", "the provider has no name"},
		{"name: n\n", "the provider has no type"},
		{"name: a b\ntype: t\n", `name: "a b" is not letters`},
		{"name: n\ntype: t\ncredentialz: {}\n", `a provider has no key "credentialz"`},
		{"name: n\ntype: t\ncredentials: {K: secret}\n", "credentials.K is not ${NAME}: a secret is never written into a file"},
		{"name: n\ntype: t\ncredentials: {K: 'x${A}'}\n", "credentials.K is not ${NAME}"},
		{"name: n\ntype: t\ncredentials: {K: '${A:-s}'}\n", "credentials.K is not ${NAME}"},
		{"name: n\ntype: t\ncredentials: {9: '${A}'}\n", `the key "9" is not`},
		{"name: n\ntype: t\nendpoints: [https://x/]\n", `"https://x/" is not a host name`},
		{"name: n\ntype: t\nendpoints: [x]\nheader: A\nquery: b\n", "header and query are both written"},
		{"name: n\ntype: t\nheader: A\n", "header needs endpoints"},
		{"name: n\ntype: t\nendpoints: [x]\nheader: A\npath: true\n", "header and path are both written"},
		{"name: n\ntype: t\npath: true\n", "path needs endpoints"},
		{"name: n\ntype: t\ncredentials: {K: '${A}'}\nendpoints: [x]\n", "names no place for its credentials in a request"},
		{"name: n\ntype: t\nheader: 'A: b'\nendpoints: [x]\n", "is not the name of an HTTP header"},
		{"name: n\ntype: t\nversion: 2\n", "version 2 is not known"},
	} {
		dir := lay(t, tests{"providers/n.yaml": c.text, "a.yaml": head + "providers: [n]\n", "b.yaml": head + "providers: [providers/n.yaml]\n"})
		for _, name := range []string{"a.yaml", "b.yaml"} {
			h, ps := Load(filepath.Join(dir, name), Options{})
			if h != nil || !strings.Contains(short(dir, ps), c.want) {
				t.Errorf("%q in %s gives %q, want %q", c.text, name, short(dir, ps), c.want)
			}
		}
		if strings.Contains(c.want, "secret is never") {
			_, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
			if strings.Contains(ps.Error(), ": secret\"") {
				t.Errorf("the value is shown: %v", ps)
			}
		}
	}
}

func TestProvidersAreFoundByNameAndByPath(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml":             head + "providers: [one, providers/two.yaml, extra/three.yaml]\n",
		"clash.yaml":         head + "providers: [one, extra/one.yaml]\n",
		"providers/one.yaml": "name: one\ntype: t\ncredentials: {TOKEN: '${TOK}'}\nconfig: {region: '${REGION:-eu}'}\nendpoints: ['*.example.com', 'x:443']\nheader: Authorization\n",
		"providers/two.yaml": "name: two\ntype: t\n", "extra/three.yaml": "name: three\ntype: t\n", "extra/one.yaml": "name: one\ntype: t\n",
		"providers/README.md": "x", "providers/sub/x.yaml": "!",
	})
	h, _ := loaded(t, dir, "a.yaml", Options{})
	if len(h.Definitions) != 3 || h.Definitions["one"].Header.V != "Authorization" ||
		list(h.Definitions["one"].Endpoints) != "*.example.com x:443" {
		t.Errorf("%+v", h.Definitions)
	}
	if _, ps := h.Expand(hostEnv(nil)); len(ps) != 1 || !strings.Contains(ps[0].Message, "TOK ("+dir+"/providers/one.yaml:3)") {
		t.Errorf("%v", ps)
	}
	x, _ := h.Expand(hostEnv(map[string]string{"TOK": "s"}))
	equalText(t, "credentials", show(x.Credentials["one"].Credentials)+" "+show(x.Credentials["one"].Config), "TOKEN=s region=eu")
	if _, ps := Load(dir+"/clash.yaml", Options{}); !strings.Contains(short(dir, ps), "the provider one is defined in ") {
		t.Errorf("%v", ps)
	}
}

// The names that a harness may have are those of the supervisor, without those that no sandbox
// of a run goes without.
func TestDegradedAndRequireHaveTheNamesOfTheSupervisor(t *testing.T) {
	fallbacks := append(slices.Sorted(maps.Keys(runNeeds)), fallbackNames...)
	slices.Sort(fallbacks)
	all := append(probe.Mechanisms(), probe.AnyMechanism)
	slices.Sort(all)
	if !slices.Equal(fallbacks, all) || !slices.Equal(requirementNames, probe.Requirements()) {
		t.Errorf("degraded %q, require %q; the supervisor has %q, %q", fallbacks, requirementNames, all, probe.Requirements())
	}
	above := lay(t, tests{"a.yaml": head, "b.yaml": "base: a.yaml\npolicy: p.yaml\ndegraded: [mapped_files]\n", "p.yaml": "version: 1\nname: p\n"})
	if h, ps := Load(filepath.Join(above, "b.yaml"), Options{}); len(ps) > 0 || len(h.Degraded) != 1 {
		t.Errorf("degraded in a harness with a base: %v, %s", h, short(above, ps))
	}
	for text, want := range map[string]string{
		"degraded: [cgroups]":     `a.yaml:3:12: error: degraded[0]: "cgroups" is not one of any, call_rules, cgroup`,
		"degraded: [file_server]": `a.yaml:3:12: error: degraded[0]: "file_server" is not supported here: ` + needsFileServer,
		"require: [engine_none]":  `a.yaml:3:11: error: require[0]: "engine_none" is not one of abstract_sockets`,
		"require: cgroup":         "a.yaml:3:10: error: require is a list",
	} {
		dir := lay(t, tests{"a.yaml": head + text + "\n"})
		if _, ps := Load(filepath.Join(dir, "a.yaml"), Options{}); !strings.Contains(short(dir, ps), want) {
			t.Errorf("%s: %s, want %s", text, short(dir, ps), want)
		}
	}
}
