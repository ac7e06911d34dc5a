package batch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/controller/harness"
	"agentsh/internal/lazy"
	"agentsh/internal/strictyaml"
)

// Stdin is the name of a file that stands for the standard input.
const Stdin = "-"

// Load reads a batch file, or stdin for [Stdin]. See [Read]. The digest tells files apart.
func Load(name string, stdin io.Reader) (s *Spec, digest string, ps harness.Problems) {
	start := harness.Origin{File: name, Line: 1, Column: 1}
	data, err := readAll(name, stdin)
	if err != nil {
		return nil, "", harness.Problems{{At: start, Severity: harness.Error, Rule: harness.RuleFile, Message: err.Error()}}
	}
	sum := sha256.Sum256(data)
	s, ps = Read(name, data)
	return s, hex.EncodeToString(sum[:]), ps
}

// Is reports whether a file is a batch by its keys.
func Is(name string) bool {
	data, err := harness.ReadFile(name)
	if err != nil {
		return false
	}
	root := strictyaml.Parse(name, data, &dialect, func(strictyaml.Problem) {})
	return root != nil && strictyaml.KindOf(root) == strictyaml.Batch
}

func readAll(name string, stdin io.Reader) ([]byte, error) {
	if name != Stdin {
		return harness.ReadFile(name)
	}
	data, err := io.ReadAll(io.LimitReader(stdin, int64(dialect.MaxBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	return data, nil
}

// Read reads a batch. Paths in it start from the directory of name; those of [Stdin] from the
// current directory. If a problem is an error, the batch is nil.
func Read(name string, data []byte) (*Spec, harness.Problems) {
	var ps harness.Problems
	r := newReader(name, &ps)
	root := strictyaml.Parse(name, data, &dialect, r.report(harness.RuleSyntax))
	if root == nil || r.OtherKind(root, strictyaml.Batch) {
		return nil, ps.Sorted()
	}
	s := &Spec{
		Labels: map[string]string{}, vars: map[string]string{},
		Caps:    Caps{Runs: DefaultAtOnce, at: map[string]harness.Origin{}},
		Retries: Retries{Attempts: DefaultAttempts, Delay: DefaultDelay, MaxDelay: DefaultMaxDelay},
	}
	object(r, root, "a batch", fileKeys, s)
	r.check(root, s)
	if ps.HasErrors() {
		return nil, ps.Sorted()
	}
	s.complete(r, root, name)
	if ps.HasErrors() {
		return nil, ps.Sorted()
	}
	return s, ps.Sorted()
}

// check checks what no key alone can have wrong.
func (r *reader) check(root *strictyaml.Node, s *Spec) {
	switch {
	case root.Kind != strictyaml.Mapping: // it was reported
	case strictyaml.Value(root, "runs") == nil && strictyaml.Value(root, "matrix") == nil:
		r.Fail(root, "write runs: [{harness: FILE, repo: DIR}], or matrix", "the batch has no runs")
	case len(s.Items) == 0 && !r.problems.HasErrors():
		r.Fail(strictyaml.Value(root, "matrix"), "leave an entry of exclude out", "exclude leaves no run")
	case len(s.Items) > maxRuns:
		r.Fail(root, "write several batches", "the batch has %d runs, at most %d", len(s.Items), maxRuns)
	}
	if s.Retries.Delay > s.Retries.MaxDelay {
		s.Retries.MaxDelay = s.Retries.Delay
	}
}

// complete sets what follows from the name of the file, and the names of runs.
func (s *Spec) complete(r *reader, root *strictyaml.Node, file string) {
	dir, stem := ".", "batch"
	if file != Stdin {
		dir, stem = filepath.Dir(file), stemOf(file)
	}
	if s.Name == "" {
		s.Name = plain(stem)
	}
	if s.Out == "" {
		s.Out = filepath.Join("out", s.Name)
	} else {
		s.Out = below(dir, s.Out)
	}
	size, shared := 0, sizeOf(s.vars)+sizeOf(s.Labels)+2*len(dir)
	for i := range s.Items {
		one := &s.Items[i]
		size += shared + len(one.Harness) + len(one.Repo) + sizeOf(one.Vars) + sizeOf(one.Labels)
	}
	if size > maxTexts {
		r.tooMuch(root)
		return
	}
	for i := range s.Items {
		one := &s.Items[i]
		one.Harness, one.Repo = below(dir, one.Harness), below(dir, one.Repo)
		one.Vars, one.Labels = merged(s.vars, one.Vars), merged(s.Labels, one.Labels)
	}
	s.nameItems(r)
}

// sizeOf is the size of variables or labels in bytes.
func sizeOf(all map[string]string) int {
	n := 0
	for name, value := range all {
		n += entryBytes + len(name) + len(value)
	}
	return n
}

// tooMuch reports a file that makes more text than a batch may have.
func (r *reader) tooMuch(n *strictyaml.Node) {
	r.Fail(n, "write several batches, or put long texts into files of the harness",
		"the paths, variables and labels of all runs have more than %d MB", maxTexts>>20)
}

// below is a path relative to a directory.
func below(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}

func merged(weak, strong map[string]string) map[string]string {
	if len(weak)+len(strong) == 0 {
		return nil
	}
	out := maps.Clone(weak)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, strong)
	return out
}

// stemOf is the name of a file without its directories and its extension.
func stemOf(file string) string {
	base := filepath.Base(file)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

var notPlain = lazy.Regexp(`[^A-Za-z0-9_.]+`)

// longestName is the longest name that is made of other texts.
const longestName = 80

// plain is a text as a name; it may be empty.
func plain(text string) string {
	text = strings.Trim(notPlain().ReplaceAllString(text, "-"), "-._")
	return strings.Trim(text[:min(len(text), longestName)], "-._")
}

// nameItems names the runs without a name, and rejects names that two runs have.
func (s *Spec) nameItems(r *reader) {
	taken := map[string]harness.Origin{}
	for _, one := range s.Items {
		if one.Name == "" {
			continue
		}
		if first, twice := taken[one.Name]; twice {
			*r.problems = append(*r.problems, harness.Problem{
				At: one.at.item, Severity: harness.Error, Rule: harness.RuleDuplicate,
				Message: fmt.Sprintf("two runs have the name %s, the first in line %d", one.Name, first.Line),
			})
		}
		taken[one.Name] = one.at.item
	}
	parts := s.naming()
	next := map[string]int{} // so that many equal names take no longer
	for i := range s.Items {
		one := &s.Items[i]
		if one.Name != "" {
			continue
		}
		base := parts(one)
		for one.Name == "" {
			name := base
			if n := next[base]; n > 0 {
				name = fmt.Sprintf("%s-%d", base, n+1)
			}
			next[base]++
			if _, used := taken[name]; !used {
				one.Name = name
				taken[name] = one.at.item
			}
		}
	}
}

// naming returns the name of a run: what it has that not all runs have in common.
func (s *Spec) naming() func(*Item) string {
	harnesses, repos := map[string]bool{}, map[string]bool{}
	for _, one := range s.Items {
		harnesses[one.Harness], repos[one.Repo] = true, true
	}
	return func(one *Item) string {
		parts := []string{harnessName(one.Harness)}
		if len(harnesses) == 1 && len(repos) > 1 {
			parts = nil
		}
		if len(repos) > 1 {
			parts = append(parts, filepath.Base(one.Repo))
		}
		for _, name := range slices.Sorted(maps.Keys(one.Vars)) {
			if _, all := s.vars[name]; !all {
				parts = append(parts, one.Vars[name])
			}
		}
		if name := plain(strings.Join(parts, "-")); name != "" {
			return name
		}
		return "run"
	}
}

// harnessName is the name of a harness for people: of the file, or of its directory.
func harnessName(file string) string {
	stem := stemOf(file)
	if dir := filepath.Base(filepath.Dir(file)); stem == "harness" && dir != "." && dir != "/" && dir != ".." {
		return dir
	}
	return stem
}

// Described is what a harness says about the runs of it.
type Described struct {
	Backend  string // name
	Provider string // of the model; empty: not known
}

// Check reports harnesses and repositories that are not there. describe tells what a harness says, with
// its problems; it is called once for each.
func (s *Spec) Check(describe func(file string) (Described, harness.Problems)) harness.Problems {
	var ps harness.Problems
	known := map[string]Described{}
	repos := map[string]bool{}
	for i := range s.Items {
		one := &s.Items[i]
		a, asked := known[one.Harness]
		if !asked {
			var more harness.Problems
			a, more = describe(one.Harness)
			ps = append(ps, more...)
			known[one.Harness] = a
		}
		one.Backend, one.Provider = a.Backend, a.Provider
		if repos[one.Repo] {
			continue
		}
		repos[one.Repo] = true
		if info, err := os.Stat(one.Repo); err != nil || !info.IsDir() {
			ps = append(ps, harness.Problem{
				At: one.at.repo, Severity: harness.Error, Rule: harness.RulePath,
				Message: fmt.Sprintf(
					"repo: %s is no directory",
					strictyaml.Shorten(one.Repo),
				), Hint: "paths start from the directory of the batch file",
			})
		}
	}
	return append(ps, s.unused()...).Sorted()
}

// unused warns about caps of names that no run has.
func (s *Spec) unused() harness.Problems {
	var ps harness.Problems
	if len(s.Items) == 0 {
		return nil
	}
	backends, models := map[string]bool{}, map[string]bool{}
	for i := range s.Items {
		backends[s.Items[i].Backend], models[s.Items[i].Provider] = true, true
	}
	warn := func(kind, name, hint string) {
		ps = append(ps, harness.Problem{
			At: s.Caps.at[kind+"."+name], Severity: harness.Warning, Rule: harness.RuleNoEffect,
			Message: fmt.Sprintf("caps.%s: no run has %s", kind, name), Hint: hint,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.Caps.Backends)) {
		if !backends[name] {
			warn("backends", name, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Caps.Models)) {
		if !models[name] {
			warn("models", name, "a provider is that of the runtime, or the part of model before a slash")
		}
	}
	return ps
}
