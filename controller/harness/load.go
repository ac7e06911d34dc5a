package harness

import (
	"os"
	"path"
	"path/filepath"
	"strings"

	"agentsh/internal/layout"
)

// Load reads the harness at name with all its layers. If one of the problems is
// an error, the harness is nil.
func (l *Loader) Load(name string) (*Harness, Problems) {
	var ps Problems
	start := Origin{File: name, Line: 1, Column: 1}
	if forge := l.options.Forge; forge != "" && !contains(l.forgeNames(), forge) {
		ps.errorf(start, RuleForge, "%s is not a forge that is known: %s", quoted(forge), strings.Join(l.forgeNames(), ", "))
		return nil, ps
	}
	root, err := l.root(name)
	if err != nil {
		ps.errorf(start, RuleFile, "%v", withoutPath(err))
		return nil, ps
	}
	files := l.chain(name, root, &ps)
	if ps.HasErrors() || len(files) == 0 {
		return nil, ps.merged()
	}
	if forge := l.options.Forge; forge != "" && !configures(files, forge) {
		l.noForge(name, forge, &ps)
		return nil, ps.merged()
	}
	h := &Harness{File: name, Root: root, Forge: l.options.Forge, requested: l.options.Requested}
	h.merged, h.skipped = l.merge(files, &ps)
	ps = append(ps, h.skipped...)
	decode(h.merged, h)
	h.check(&ps)
	ps = append(ps, h.unsupported(Warning)...)
	if ps.HasErrors() {
		return nil, ps.merged()
	}
	return h, ps.merged()
}

// noForge reports a forge that no layer configures.
func (l *Loader) noForge(name, forge string, ps *Problems) {
	ps.errorf(Origin{File: name, Line: 1, Column: 1}, RuleForge, "no layer configures the forge %s", forge)
	if known := l.Forges(name); len(known) > 0 {
		ps.hint("configured are: %s", strings.Join(known, ", "))
	} else {
		ps.hint("leave --forge out, or write forge: {%s: {}}", forge)
	}
}

func (l *Loader) root(name string) (string, error) {
	if l.options.Root == "" {
		return rootOf(name)
	}
	return resolve(l.options.Root)
}

// Forges are the forges for which the file at name or its bases have blocks.
func (l *Loader) Forges(name string) []string {
	var out []string
	for _, f := range l.known(name) {
		for _, forge := range f.order {
			if !contains(out, forge) {
				out = append(out, forge)
			}
		}
	}
	return out
}

// Bases are the bases of the file at name, the nearest first.
func (l *Loader) Bases(name string) []string {
	var out []string
	for _, f := range l.known(name) {
		if f.name != name {
			out = append([]string{f.name}, out...)
		}
	}
	return out
}

func (l *Loader) known(name string) []*file {
	var ps Problems
	root, err := l.root(name)
	if err != nil {
		return nil
	}
	return l.chain(name, root, &ps)
}

// AsBaseOf is a loader for the bases of the file at name: paths start from its root.
func (l *Loader) AsBaseOf(name string) *Loader {
	out := l.With(l.options.Forge)
	if root, err := l.root(name); err == nil {
		out.options.Root = root
	}
	return out
}

// With is a loader for another forge that shares the files already read.
func (l *Loader) With(forge string) *Loader {
	out := &Loader{options: l.options, files: map[string]*file{}}
	out.options.Forge = forge
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, v := range l.files {
		out.files[k] = v
	}
	return out
}

// check reports the problems of the merged harness as a whole.
func (h *Harness) check(ps *Problems) {
	start := Origin{File: h.File, Line: 1, Column: 1}
	for i := range fields {
		if f := &fields[i]; f.required && h.merged.dict[f.name] == nil {
			ps.errorf(start, RuleRequired, "no layer writes %s", f.name)
		}
	}
	if h.Agent.IsSet() && !isURL(h.Agent.V) && !nameRE().MatchString(h.AgentName()) {
		ps.errorf(h.Agent.At, RuleValue, "agent: the name %s is not letters, digits, _ and -", quoted(h.AgentName()))
	}
	if h.Runtime.V == "command" && len(h.Command) == 0 {
		ps.errorf(h.Runtime.At, RuleRequired, "the runtime command needs command, the program and its arguments")
	}
	if v := h.merged.dict["validation_loop"]; v != nil && !h.ValidationLoop.Script.IsSet() {
		ps.errorf(v.at, RuleRequired, "validation_loop has no script")
	}
	leaves(fields, h.merged, "", func(where string, f *field, t *tree) {
		if f.path != notPath && f.path != pathHost {
			h.checkPath(ps, where, f.path, t)
			h.checkExecutable(ps, where, t)
		}
	})
	h.checkOverrides(ps)
	if schema, ok := h.known(h.ValidationLoop.Schema); ok {
		h.checkSchema(ps, schema)
	}
	for _, f := range h.HostFiles {
		checkDest(ps, f.Dest)
	}
	h.loadProviders(ps)
	h.loadProfiles(ps)
	h.checkEnvFiles(ps)
	h.checkSizes(ps)
	h.checkVariables(ps)
}

// checkOverrides checks the files that replace files of skills.
func (h *Harness) checkOverrides(ps *Problems) {
	skills := h.merged.dict["skills"]
	if skills == nil {
		return
	}
	for _, skill := range skills.items {
		overrides := skill.get("overrides")
		if overrides == nil || overrides.shape != shapeDict {
			continue
		}
		for _, name := range overrides.keys {
			t, where := overrides.dict[name], "skills.overrides: "+clip(name)
			switch {
			case !filepath.IsLocal(name) || path.Clean(name) != name || name == ".":
				ps.errorf(t.at, RulePath, "%s is not a clean path inside the skill", where)
			case t.shape != shapeNull && t.text == "":
				ps.errorf(t.at, RulePath, "%s is replaced by nothing", where)
				ps.hint("write null to leave the file out")
			case t.shape != shapeNull:
				h.checkPath(ps, where, pathFile, t)
			case name == "SKILL.md":
				ps.errorf(t.at, RulePath, "%s is what makes the directory a skill", where)
			case !isURL(skill.get("path").text):
				h.checkPath(ps, where, notPath, &tree{at: t.at, text: filepath.Join(skill.get("path").text, name)})
			}
		}
	}
}

// checkPath checks that a path exists and has the wanted type.
func (h *Harness) checkPath(ps *Problems, where string, want pathKind, t *tree) {
	if isURL(t.text) {
		return // never fetched, see unsupported
	}
	resolved, err := filepath.EvalSymlinks(h.Path(Text{V: filepath.FromSlash(t.text)}))
	if err != nil {
		ps.errorf(t.at, RulePath, "%s: %s: %v", where, clip(t.text), withoutPath(err))
		ps.hint("paths start from %s", h.Root)
		return
	}
	info, err := os.Stat(resolved)
	switch {
	case err != nil:
		ps.errorf(t.at, RulePath, "%s: %s: %v", where, clip(t.text), withoutPath(err))
	case want == pathDir && !info.IsDir():
		ps.errorf(t.at, RulePath, "%s: %s is not a directory", where, clip(t.text))
	case want == pathFile && !info.Mode().IsRegular():
		ps.errorf(t.at, RulePath, "%s: %s is not a regular file", where, clip(t.text))
	}
	if want == pathDir && where == "skills.path" && err == nil {
		if _, err := os.Stat(filepath.Join(resolved, "SKILL.md")); err != nil {
			ps.errorf(t.at, RulePath, "%s: %s has no SKILL.md", where, clip(t.text))
		}
	}
}

// checkExecutable warns of a script that nobody may execute: a run refuses it.
func (h *Harness) checkExecutable(ps *Problems, where string, t *tree) {
	if !strings.HasSuffix(where, "script") || isURL(t.text) {
		return
	}
	info, err := os.Stat(h.Path(Text{V: filepath.FromSlash(t.text)}))
	if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 == 0 {
		ps.warnf(t.at, RuleRun, "%s: %s is not executable, and a run refuses it", where, clip(t.text))
		ps.hint("chmod +x %s", h.Path(Text{V: filepath.FromSlash(t.text)}))
	}
}

// checkDest rejects destinations outside the sandbox's directories, and those
// that replace a file of the supervisor.
func checkDest(ps *Problems, d Text) {
	switch {
	case !path.IsAbs(d.V):
		ps.errorf(d.At, RulePath, "host_files.dest: %s is not an absolute path", quoted(d.V))
		return
	case path.Clean(d.V) != d.V:
		ps.errorf(d.At, RulePath, "host_files.dest: %s is not clean, write %s", quoted(d.V), path.Clean(d.V))
		return
	case !strings.HasPrefix(d.V, layout.Sandbox+"/") && !strings.HasPrefix(d.V, "/tmp/"):
		ps.errorf(d.At, RulePath, "host_files.dest: %s is not under /sandbox or /tmp", quoted(d.V))
		return
	case strings.ContainsAny(d.V, "\x00\n\r"):
		ps.errorf(d.At, RulePath, "host_files.dest: %s holds a line break", quoted(d.V))
		return
	}
	if layout.Reserved(d.V) {
		ps.errorf(d.At, RuleReserved, "host_files.dest: %s belongs to the supervisor", d.V)
	}
}
