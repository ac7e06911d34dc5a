package harness

import (
	"path/filepath"
	"strings"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

// MayWrite reports whether a block that a run with more inputs merges writes a key: a
// forge block where the options name no forge, or an overlay.
func (l *Loader) MayWrite(name, key string) bool {
	writes := func(t *tree) bool { v := t.get(key); return v != nil && v.shape != shapeNull }
	for _, f := range l.known(name) {
		if l.options.Forge == "" {
			for _, block := range f.forges {
				if writes(block) {
					return true
				}
			}
		}
		if l.options.Forge == "" || l.options.Event == nil {
			for _, o := range f.overlays {
				if writes(o.block) {
					return true
				}
			}
		}
	}
	return false
}

// Named are the real names of the policies, profiles and providers that any block of
// the file at name or of its bases names. The files that a policy extends and its tests
// are among them.
func (l *Loader) Named(name string) []string {
	root, err := l.root(name)
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range l.known(name) {
		blocks := []*tree{f.top}
		for _, block := range f.forges {
			blocks = append(blocks, block)
		}
		for _, o := range f.overlays {
			blocks = append(blocks, o.block)
		}
		for _, block := range blocks {
			out = append(out, policyFiles(root, block.get("policy"))...)
			for _, list := range []*tree{block.get("openshell.profiles"), block.get("providers")} {
				if list == nil {
					continue
				}
				for _, item := range list.items {
					out = append(out, realFiles(fileOf(root, item))...)
				}
			}
		}
	}
	return out
}

// policyFiles are the real names of a policy, of its tests and of what it extends.
func policyFiles(root string, t *tree) []string {
	if t == nil || t.text == "" {
		return nil
	}
	name := fileOf(root, t)
	data, err := ReadFile(name)
	if err != nil {
		return nil // checkPath reports it
	}
	names := []string{name}
	read := func(extended string) ([]byte, error) {
		names = append(names, extended)
		return readPolicy(extended)
	}
	// A problem of the policy is that of the harness, which names it.
	_, _ = syntax.Load(policy.Source{Name: name, Data: data}, syntax.Options{Vars: policyVars, ReadFile: read})
	for _, name := range names {
		ext := filepath.Ext(name)
		names = append(names, strings.TrimSuffix(name, ext)+"_test"+ext)
	}
	return realFiles(names...)
}

// fileOf is the file that a text names.
func fileOf(root string, t *tree) string {
	return (&Harness{Root: root}).Path(Text{V: filepath.FromSlash(t.text)})
}

// realFiles are the real names of those files that exist.
func realFiles(names ...string) []string {
	var out []string
	for _, name := range names {
		if full, err := resolve(name); err == nil {
			out = append(out, full)
		}
	}
	return out
}
