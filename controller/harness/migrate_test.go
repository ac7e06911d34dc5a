package harness

import (
	"strings"
	"testing"
)

func TestMigrateMovesRunnerEnvAndKeepsTheRest(t *testing.T) {
	for _, c := range []struct{ what, text, want string }{
		{"alone", `# top
agent: agents/a.md # the agent
role: r

# about it
runner_env: # old
  # first
  A: "${A}"   # said

  B: |
    two
      lines
  # last
# after
slug: s
`, `# top
agent: agents/a.md # the agent
role: r

# about it
env:
  runner: # old
    # first
    A: "${A}"   # said

    B: |
      two
        lines
    # last
# after
slug: s
`},
		{"with env.sandbox", "runner_env:\n    A: 1 # one\n    B: 2\nenv:\n  sandbox:\n    S: 1\nrole: r\n", "env:\n  sandbox:\n    S: 1\n  runner:\n    A: 1 # one\n    B: 2\nrole: r\n"},
		{"with env.runner, which wins", "env:\n    runner:\n        A: new # kept\nrunner_env:\n  A: old\n  B: |\n    x\n  # c\n  C: 3\n", "env:\n    runner:\n        A: new # kept\n        B: |\n          x\n        # c\n        C: 3\n"},
		{"without a last line end", "role: r\nenv:\n  runner:\n    X: 1\nrunner_env:\n  A: 1", "role: r\nenv:\n  runner:\n    X: 1\n    A: 1\n"},
		{"env last without a line end", "runner_env:\n  A: 1\nenv:\n  runner:\n    X: 1", "env:\n  runner:\n    X: 1\n    A: 1\n"},
		{"in braces", "runner_env: {A: 1, B: 2}\nrole: r\n", "env:\n  runner: {A: 1, B: 2}\nrole: r\n"},
		{"in braces on several lines", "runner_env: {\n  A: 1\n  }\nrole: r\n", "env:\n  runner: {\n    A: 1\n    }\nrole: r\n"},
		{"in a forge block", "forge:\n  github:\n    runner_env:\n      A: 1\n  gitlab:\n    runner_env: {B: 2}\n    policy: p\n", "forge:\n  github:\n    env:\n      runner:\n        A: 1\n  gitlab:\n    env:\n      runner: {B: 2}\n    policy: p\n"},
		{"in an overlay", "overlays:\n- when: 'true'\n  runner_env:\n    A: 1\n- runner_env: {B: 1}\n  when: 'true'\n", "overlays:\n- when: 'true'\n  env:\n    runner:\n      A: 1\n- env:\n    runner: {B: 1}\n  when: 'true'\n"},
		{"null", "runner_env: ~\nrole: r\n", "env:\n  runner: ~\nrole: r\n"},
		{"empty beside env", "runner_env: ~\nenv:\n  sandbox: {A: 1}\n", ""},
		{"only what env.runner has", "runner_env:\n  A: 1\nenv:\n  runner:\n    A: 2\n", "env:\n  runner:\n    A: 2\n"},
		{"a null inside", "runner_env:\n  A: ~\nenv:\n  runner:\n    B: 2\n", "env:\n  runner:\n    B: 2\n    A: ~\n"},
		{"windows line ends", "runner_env:\r\n  A: 1\r\nrole: r\r\n", "env:\n  runner:\r\n    A: 1\r\nrole: r\r\n"},
	} {
		out, changed, err := Migrate("a.yaml", []byte(c.text))
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: no error but\n%s", c.what, out)
			}
			continue
		}
		if err != nil || !changed || string(out) != c.want {
			t.Errorf("%s: %v %v\n%s\nwant\n%s", c.what, changed, err, out, c.want)
		}
		again, changed, err := Migrate("a.yaml", out)
		if err != nil || changed || string(again) != string(out) {
			t.Errorf("%s: a second time: %v %v", c.what, changed, err)
		}
	}
}

func TestMigrateRefusesWhatItCannotRewrite(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"{runner_env: {A: 1}}\n", "a.yaml:1:1: the block is written in braces: move runner_env to env.runner by hand"},
		{"runner_env: {A: 1}\nenv: {sandbox: {}}\n", "a.yaml:1:1: env or runner_env is written in braces"},
		{"runner_env:\n  A: 1\nenv:\n  runner: {B: 1}\n", "a.yaml:1:1: env.runner is written in braces"},
		{"forge: {github: {runner_env: {A: 1}}}\n", "a.yaml:1:17: the block is written in braces"},
		{"runner_env: [x]\n", "a.yaml:1:13: error: runner_env is a mapping"},
		{"a: [", "a.yaml:1:"},
		{"", "the file is empty"},
		{"bad_key: 1\nrunner_env: {A: 1}\n", `no key "bad_key"`},
	} {
		out, changed, err := Migrate("a.yaml", []byte(c.text))
		if err == nil || changed || out != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v %v %q, want %s", c.text, changed, err, out, c.want)
		}
	}
}

// Migrating never changes the meaning, and a second migration changes nothing.
func FuzzMigrateKeepsTheMeaning(f *testing.F) {
	f.Add("runner_env:\n  A: 1\nenv:\n  runner:\n    B: 2\n")
	f.Add("forge:\n  github:\n    runner_env:\n      A: |2\n          x\n    env:\n      sandbox: {}\n")
	f.Add("runner_env:\n  A: \"a\n  b\"\n  # c\n\nrole: r")
	f.Add("overlays:\n  - when: x\n    runner_env: {A: 1}\n")
	f.Fuzz(func(t *testing.T, text string) {
		before, err := meaning("a.yaml", []byte(text))
		if err != nil {
			return
		}
		out, changed, err := Migrate("a.yaml", []byte(text))
		if err != nil {
			return // rejected; nothing is written
		}
		if !changed {
			if string(out) != text {
				t.Fatal("not changed, but another text")
			}
			return
		}
		after, err := meaning("a.yaml", out)
		if err != nil || !equal(before, after) {
			t.Fatalf("%v\n%s\nbecame\n%s", err, text, out)
		}
	})
}

// Any bytes give a harness, or problems with positions.
func FuzzLoadingNeverFailsWithoutAPosition(f *testing.F) {
	f.Add(head + "env: {sandbox: {A: '${B:-c}'}}\nskills: [a, {b: {c: d}}]\noverlays: [{when: 'true'}]\nforge: {github: {}}\n")
	for _, text := range portable {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := NewLoader(Options{Forge: "github"})
		n, ps := parse("a.yaml", []byte(text))
		if n != nil {
			fl := &file{name: "a.yaml", forges: map[string]*tree{}}
			l.build(n, fl, l.forgeNames())
			ps = fl.problems
			if fl.top != nil {
				h := &Harness{}
				h.merged, _ = l.merge([]*file{fl, fl}, &ps)
				decode(h.merged, h)
			}
		}
		for _, p := range ps {
			if p.At.Line < 1 || p.Message == "" || p.Rule == "" {
				t.Fatalf("%+v", p)
			}
		}
	})
}
