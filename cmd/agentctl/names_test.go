package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"agentsh/internal/wire"
)

func TestNamesThatAreNotUTF8ComeOutAsTheyAre(t *testing.T) {
	t.Parallel()
	p := newFixture(t, `printf 2 >>"$(printf 'mod\377')"; rm "$(printf 'gone\376')"; mkdir "$(printf 'd\375')"
printf new >"$(printf 'd\375/new\374')"; mv "$(printf 'old\373')" "$(printf 'moved\372')"
ln -s "$(printf 'mod\377')" "$(printf 'link\371')"; printf text >'te\xffxt'
printf out >"$AGENTSH_OUTPUT_DIR/$(printf 'report\370')"`, "")
	for name, text := range map[string]string{"mod\xff": "1", "gone\xfe": "1", "old\xfb": "1"} {
		p.write("repo/"+name, text, 0o644)
	}
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "second")
	result, code := p.run()
	if code != 0 || result.Partial || len(result.Skipped) > 0 {
		t.Fatalf("exit %d, partial %v, skipped %q", code, result.Partial, result.Skipped)
	}
	for name, text := range map[string]string{
		"files/mod\xff": "12", "files/d\xfd/new\xfc": "new", "files/moved\xfa": "1", `files/te\xffxt`: "text", "output/report\xf8": "out",
	} {
		if got := p.read("out/" + name); got != text {
			t.Errorf("%q holds %q, want %q", name, got, text)
		}
	}
	if target, err := os.Readlink(p.path("out/files/link\xf9")); err != nil || target != "mod\xff" {
		t.Errorf("the link leads to %q: %v", target, err)
	}
	var changed []string
	for _, c := range result.Changed {
		changed = append(changed, c.Status+" "+string(c.Path))
	}
	want := []string{
		"added d\xfd/new\xfc", "deleted gone\xfe", "added link\xf9", "modified mod\xff", "added moved\xfa", "deleted old\xfb", `added te\xffxt`,
	}
	if !slices.Equal(changed, want) {
		t.Errorf("changed %q, want %q", changed, want)
	}
	var m wire.Manifest
	manifests, err := filepath.Glob(p.path("out/manifest*.json"))
	if err != nil || len(manifests) != 1 {
		t.Fatalf("manifests %q: %v", manifests, err)
	}
	data, err := os.ReadFile(manifests[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	for _, e := range m.Entries {
		if _, err := os.Lstat(p.path("out/files/" + string(e.Path))); err != nil {
			t.Errorf("the manifest names %q: %v", e.Path, err)
		}
	}
	if want := []string{"gone\xfe", "old\xfb"}; !slices.Equal([]string(m.Deleted), want) {
		t.Errorf("deleted %q, want %q", m.Deleted, want)
	}
}
