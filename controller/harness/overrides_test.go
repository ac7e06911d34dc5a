package harness

import (
	"strings"
	"testing"
)

func TestOverridesOfOneSkillAreMerged(t *testing.T) {
	dir := lay(t, tests{
		"base.yaml":  head + "skills: [{s/x: {a.md: own/a.md, b.md: own/b.md}}]\n",
		"child.yaml": "base: base.yaml\nskills: [{path: t/x, overrides: {b.md: ~, sub/c.md: own/a.md}}]\n",
		"plain.yaml": "base: base.yaml\nskills: [t/x]\n",
		"own/a.md":   "a", "own/b.md": "b", "s/x/SKILL.md": "", "t/x/SKILL.md": "", "t/x/b.md": "",
	})
	h, ps := loaded(t, dir, "child.yaml", Options{})
	if len(ps) != 0 || len(h.Refusals()) != 0 {
		t.Fatalf("%v %v", ps, h.Refusals())
	}
	o := h.Skills[0].Overrides
	if len(h.Skills) != 1 || h.Skills[0].Path.V != "t/x" || len(o) != 3 ||
		o["a.md"].V != "own/a.md" || o["b.md"].V != "" || !o["b.md"].IsSet() {
		t.Errorf("%+v", h.Skills)
	}
	if h, _ := loaded(t, dir, "plain.yaml", Options{}); len(h.Skills[0].Overrides) != 2 {
		t.Errorf("%+v", h.Skills)
	}
}

func TestBadOverrides(t *testing.T) {
	for overrides, want := range map[string]string{
		"../x: own.md":      "is not a clean path inside the skill",
		"/x: own.md":        "is not a clean path inside the skill",
		"a//x: own.md":      "is not a clean path inside the skill",
		".: own.md":         "is not a clean path inside the skill",
		"x: none.md":        "x: none.md: no such file",
		"x: s":              "s is not a regular file",
		"x: ''":             "is replaced by nothing",
		"x: ~":              "s/x/x: no such file",
		"SKILL.md: ~":       "is what makes the directory a skill",
		"x: https://h/a.md": "skills.overrides names a URL, which is not supported here",
		"x: [own.md]":       "is a text, this is a list",
	} {
		dir := lay(t, tests{"a.yaml": head + "skills:\n  - s/x: {" + overrides + "}\n", "own.md": "", "s/x/SKILL.md": ""})
		_, ps := Load(dir+"/a.yaml", Options{})
		if len(ps) != 1 || ps[0].At.Line != 4 || !strings.Contains(ps[0].Message, want) {
			t.Errorf("%s: %v, want %s", overrides, ps, want)
		}
	}
}
