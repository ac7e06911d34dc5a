package harness

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"agentsh/internal/strictyaml"
)

// maxBases is the highest number of bases in a chain.
const maxBases = 5

// knownForges are the forges that are known without configuration.
var knownForges = []string{"github", "gitlab", "forgejo", "jira"}

// Loader loads several harnesses and reads each file once. It is safe for
// concurrent use.
type Loader struct {
	options Options
	mu      sync.Mutex
	files   map[string]*file // by name as shown, and what a fetched file may name
}

// NewLoader returns a loader with an empty cache.
func NewLoader(o Options) *Loader {
	return &Loader{options: o, files: map[string]*file{}}
}

// file is one parsed file. It does not change after it is built.
type file struct {
	name     string
	problems Problems
	top      *tree // the fields outside of forge and overlay blocks
	base     *tree // nil: no base
	forges   map[string]*tree
	order    []string          // the forges in the order of the file
	removed  map[string]Origin // forges whose blocks in weaker files are removed
	overlays []overlay
}

// overlay is a block with a guard.
type overlay struct {
	when  guard
	block *tree
}

// read parses and checks one file, once. from is the origin of a fetched file.
func (l *Loader) read(name string, from *remote) *file {
	key := name
	if from != nil {
		key += "\x00" + strings.Join(from.store.Allowed, "\x00")
	}
	l.mu.Lock()
	f, ok := l.files[key]
	l.mu.Unlock()
	if ok {
		return f
	}
	f = l.load(name, from)
	l.mu.Lock()
	l.files[key] = f
	l.mu.Unlock()
	return f
}

func (l *Loader) load(name string, from *remote) *file {
	f := &file{name: name, forges: map[string]*tree{}, removed: map[string]Origin{}}
	data, err := ReadFile(name)
	if err != nil {
		f.problems.errorf(Origin{File: name, Line: 1, Column: 1}, RuleFile, "%v", err)
		return f
	}
	n, ps := parse(name, data)
	f.problems = ps
	if n == nil || f.otherKind(n) {
		return f
	}
	l.build(n, f, l.forgeNames())
	if from != nil && f.top != nil {
		from.localize(f)
	}
	return f
}

// otherKind reports a file that is no harness.
func (f *file) otherKind(n *strictyaml.Node) bool {
	r := strictyaml.NewReader(f.name, &dialect, func(p strictyaml.Problem) {
		f.problems.errorf(Origin{File: p.File, Line: p.Line, Column: p.Column}, RuleSyntax, "%s", p.Message)
		f.problems.hint("%s", p.Hint)
	})
	return r.OtherKind(n, strictyaml.Harness)
}

// build checks the nodes of a file and builds its layers.
func (l *Loader) build(n *strictyaml.Node, f *file, forges []string) {
	b := &builder{file: f.name, ps: &f.problems}
	top := b.mapping(n, fields, "")
	if top == nil {
		return
	}
	f.base = top.dict["base"]
	if f.base != nil && f.base.shape == shapeNull {
		f.base = nil
	}
	f.top = b.fold(top.without("base", "forge", "overlays"), "")
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch value := n.Content[i+1]; n.Content[i].Value {
		case "forge":
			b.forgeBlocks(value, f, forges)
		case "overlays":
			b.overlayBlocks(value, f)
		}
	}
}

// forgeBlocks builds the blocks of forge. An unknown forge is an error.
func (b *builder) forgeBlocks(n *strictyaml.Node, f *file, known []string) {
	if strictyaml.IsNull(n) {
		for _, forge := range known {
			if !blank(n) {
				f.removed[forge] = b.at(n)
			}
		}
		return
	}
	if n.Kind != strictyaml.Mapping {
		b.ps.errorf(b.at(n), RuleType, "forge is a mapping of forges to settings, this is %s", describe(n))
		return
	}
	seen := map[string]*strictyaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !b.freshKey(key, seen) {
			continue
		}
		if !contains(known, key.Value) {
			b.ps.errorf(b.at(key), RuleForge, "%s is not a forge that is known: %s", quoted(key.Value), strings.Join(known, ", "))
			if s := strictyaml.Nearest(key.Value, known); s != "" {
				b.ps.hint("did you mean %q?", s)
			}
			continue
		}
		if strictyaml.IsNull(value) {
			b.emptyForge(key, value, f)
			continue
		}
		in := &builder{file: b.file, layer: "forge." + key.Value, ps: b.ps}
		if t := in.mapping(value, layered, in.layer); t != nil {
			f.forges[key.Value] = in.fold(t, in.layer)
			f.order = append(f.order, key.Value)
		}
	}
}

// emptyForge builds a block without settings. An explicit null removes the
// blocks of weaker files.
func (b *builder) emptyForge(key, value *strictyaml.Node, f *file) {
	f.order = append(f.order, key.Value)
	if blank(value) {
		f.forges[key.Value] = newDict(b.at(key))
		b.ps.warnf(b.at(key), RuleNoEffect, "forge.%s is empty, and changes nothing", key.Value)
		b.ps.hint("write ~ to remove what a base wrote for this forge")
		return
	}
	f.removed[key.Value] = b.at(key)
}

// overlayBlocks builds the overlays with their guards.
func (b *builder) overlayBlocks(n *strictyaml.Node, f *file) {
	if strictyaml.IsNull(n) {
		return
	}
	if n.Kind != strictyaml.List {
		b.ps.errorf(b.at(n), RuleType, "overlays is a list, this is %s", describe(n))
		return
	}
	for i, c := range n.Content {
		in := &builder{file: b.file, layer: "overlays[" + strconv.Itoa(i) + "]", ps: b.ps}
		t := in.mapping(c, overlayFields, in.layer)
		if t == nil {
			continue
		}
		when := t.dict["when"]
		if when == nil || when.shape == shapeNull {
			if when != nil || !hasKey(c, "when") {
				b.ps.errorf(in.at(c), RuleRequired, "%s has no when", in.layer)
			}
			continue
		}
		f.overlays = append(f.overlays, overlay{when: parseGuard(when), block: in.fold(t.without("when"), in.layer)})
	}
}

func (l *Loader) forgeNames() []string {
	return append(append([]string(nil), knownForges...), l.options.Forges...)
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// fold replaces short forms within one layer. runner_env and env.both become
// env.runner and env.sandbox, where the long form has precedence.
func (b *builder) fold(t *tree, where string) *tree {
	old, env := t.dict["runner_env"], t.dict["env"]
	if old != nil {
		b.deprecated(old, env, where)
	}
	both := env.get("both")
	if old == nil && both == nil {
		b.checkNames(env)
		return t
	}
	folded := newDict(t.at)
	if env != nil && env.shape == shapeDict {
		folded = env.without("both")
		folded.at = env.at
	} else if old != nil {
		folded.at = old.at
	}
	for _, to := range []string{"runner", "sandbox"} {
		v := folded.dict[to]
		if to == "runner" {
			v = under(v, old)
		}
		if v = under(v, both); v != nil {
			folded.put(to, v)
		}
	}
	if removes := firstNull(env, env.get("runner"), env.get("sandbox")); removes != nil && (both != nil || removes == env) {
		b.ps.errorf(removes.at, RuleNoEffect, "%s is removed here, so %s cannot set it", join(where, "env"), shortForm(both))
		b.ps.hint("write the variables in env.runner and env.sandbox, null for each one to remove")
	}
	out := t.without("runner_env", "env")
	out.put("env", folded)
	b.checkNames(out.dict["env"])
	return out
}

// firstNull is the first of the values that is an explicit null.
func firstNull(list ...*tree) *tree {
	for _, t := range list {
		if t != nil && t.shape == shapeNull {
			return t
		}
	}
	return nil
}

func shortForm(both *tree) string {
	if both != nil {
		return "env.both"
	}
	return "runner_env"
}

// under returns strong with those keys of weak that strong does not set.
func under(strong, weak *tree) *tree {
	if weak == nil || strong != nil && (strong.shape != shapeDict || weak.shape != shapeDict) {
		return strong
	}
	if strong == nil {
		return weak
	}
	out := newDict(strong.at)
	for _, t := range []*tree{weak, strong} {
		for _, k := range t.keys {
			out.put(k, t.dict[k])
		}
	}
	return out
}

// deprecated reports how to replace runner_env.
func (b *builder) deprecated(old, env *tree, where string) {
	name := join(where, "runner_env")
	if env.get("runner") != nil {
		b.ps.warnf(old.at, RuleDeprecated, "%s is deprecated and env.runner is written too: env.runner wins", name)
	} else {
		b.ps.warnf(old.at, RuleDeprecated, "%s is deprecated: migrate to env.runner", name)
	}
	b.ps.hint("agentctl migrate %s", b.file)
}

// chain returns the files of a harness from the root-most base to the file
// itself.
func (l *Loader) chain(name, root string, ps *Problems) []*file {
	var files []*file
	var names, real []string
	var from *remote // origin of a fetched file
	for at := (Origin{File: name, Line: 1, Column: 1}); ; {
		resolved, err := resolve(name)
		if err != nil {
			ps.errorf(at, RuleFile, "%s: %v", name, withoutPath(err))
			break
		}
		if len(files) > 0 && from == nil && !beneath(root, resolved) {
			ps.errorf(at, RuleBase, "the base %s leaves the root %s", name, root)
			break
		}
		if i := index(real, resolved); i >= 0 {
			ps.errorf(at, RuleBase, "the bases go in a circle: %s", strings.Join(append(names[i:], name), " -> "))
			break
		}
		if len(files) > maxBases {
			ps.errorf(at, RuleBase, "more than %d bases: %s", maxBases, strings.Join(append(names, name), " -> "))
			break
		}
		f := l.read(name, from)
		*ps = append(*ps, f.problems...)
		files, names, real = append(files, f), append(names, name), append(real, resolved)
		if f.base == nil {
			break
		}
		at = f.base.at
		if isURL(f.base.text) {
			if name, from = l.fetchBase(f, root, ps); from == nil {
				break
			}
			continue
		}
		if from != nil {
			ps.errorf(at, RuleBase, "the base of a fetched file is a URL with #sha256=")
			break
		}
		next := filepath.Join(filepath.Dir(name), filepath.FromSlash(f.base.text))
		if filepath.IsAbs(f.base.text) {
			next = filepath.Clean(f.base.text)
		}
		name = next
	}
	for i, j := 0, len(files)-1; i < j; i, j = i+1, j-1 {
		files[i], files[j] = files[j], files[i]
	}
	return files
}

// resolve is the absolute name of a file, symbolic links resolved.
func resolve(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

func index(list []string, s string) int {
	for i, x := range list {
		if x == s {
			return i
		}
	}
	return -1
}

// beneath reports whether an absolute clean path is root or below it.
func beneath(root, name string) bool {
	return name == root || root == "/" || strings.HasPrefix(name, root+"/")
}

// rootOf is the root of a harness file: the directory of the file, or its
// parent if that directory is named harness.
func rootOf(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(abs)
	if filepath.Base(dir) == "harness" {
		dir = filepath.Dir(dir)
	}
	return filepath.EvalSymlinks(dir)
}
