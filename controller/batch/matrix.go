package batch

import (
	"agentsh/controller/harness"
	"agentsh/internal/strictyaml"
)

// matrix are the dimensions of a matrix.
type matrix struct {
	harnesses, repos []located
	vars             []dimension
	labels           map[string]string
	exclude          []exclusion
}

// located is a text with its position.
type located struct {
	text string
	at   harness.Origin
}

// dimension is a variable with its values.
type dimension struct {
	name   string
	values []string
}

// exclusion leaves out the combinations that have all its values.
type exclusion struct {
	harness, repo string // as in the file; empty: any
	vars          map[string]string
}

var matrixKeys = []key[matrix]{
	{name: "harness", doc: "Files of harnesses, relative to this file.", required: true, schema: oneOrMore(textSchema),
		read: func(r *reader, n *strictyaml.Node, m *matrix) { m.harnesses = r.paths(n) }},
	{name: "repo", doc: "Directories of repositories, relative to this file.", required: true, schema: oneOrMore(textSchema),
		read: func(r *reader, n *strictyaml.Node, m *matrix) { m.repos = r.paths(n) }},
	{name: "vars", doc: "Values of variables.", schema: mapSchema(varPattern, oneOrMore(textSchema)), read: readDimensions},
	{name: "labels", doc: "Labels of the runs.", schema: mapSchema(namePattern, textSchema),
		read: func(r *reader, n *strictyaml.Node, m *matrix) { r.labels(n, m.labels) }},
	{name: "exclude", doc: "Combinations that are left out: those that have all that an entry names.",
		schema: listSchema(objectSchema(exclusionKeys)), read: readExclusions},
}

var exclusionKeys = []key[exclusion]{
	{name: "harness", doc: "A harness of the matrix.", schema: textSchema,
		read: func(r *reader, n *strictyaml.Node, x *exclusion) { x.harness, _ = r.path(n) }},
	{name: "repo", doc: "A repository of the matrix.", schema: textSchema,
		read: func(r *reader, n *strictyaml.Node, x *exclusion) { x.repo, _ = r.path(n) }},
	{name: "vars", doc: "Values of variables of the matrix.", schema: mapSchema(varPattern, textSchema),
		read: func(r *reader, n *strictyaml.Node, x *exclusion) { r.oneEach(n, x.vars) }},
}

func (r *reader) paths(n *strictyaml.Node) []located {
	var out []located
	r.list(n, func(n *strictyaml.Node) {
		if s, ok := r.path(n); ok {
			out = append(out, located{s, r.at(n)})
		}
	})
	return out
}

func readDimensions(r *reader, n *strictyaml.Node, m *matrix) {
	r.variables(n, func(name string, v *strictyaml.Node) {
		d := dimension{name: name}
		r.list(v, func(n *strictyaml.Node) {
			if s, ok := r.Text(n); ok {
				d.values = append(d.values, s)
			}
		})
		m.vars = append(m.vars, d)
	})
}

func readExclusions(r *reader, n *strictyaml.Node, m *matrix) {
	r.Items(n, func(n *strictyaml.Node) {
		x := exclusion{vars: map[string]string{}}
		before := len(*r.problems)
		object(r, n, "an exclusion", exclusionKeys, &x)
		if x.harness == "" && x.repo == "" && len(x.vars) == 0 && len(*r.problems) == before {
			r.Fail(n, "", "the exclusion names nothing")
			return
		}
		m.exclude = append(m.exclude, x)
	})
}

// readMatrix adds the runs of a matrix.
func readMatrix(r *reader, n *strictyaml.Node, s *Spec) {
	m := matrix{labels: map[string]string{}}
	if !object(r, n, "matrix", matrixKeys, &m) || r.problems.HasErrors() {
		return
	}
	size := 1
	for _, dimension := range append([]int{len(m.harnesses), len(m.repos)}, sizes(m.vars)...) {
		if size *= dimension; size > maxRuns {
			r.Fail(n, "write several batches", "the matrix has more than %d runs", maxRuns)
			return
		}
	}
	if len(m.exclude) > maxExclusions {
		r.Fail(strictyaml.Value(n, "exclude"), "write the runs as a list", "%d exclusions, at most %d", len(m.exclude), maxExclusions)
		return
	}
	if one := m.largest(); size*one > maxTexts {
		r.tooMuch(n)
		return
	}
	used := make([]bool, len(m.exclude))
	for _, h := range m.harnesses {
		for _, repo := range m.repos {
			m.each(0, map[string]string{}, func(vars map[string]string) {
				if !m.excluded(h.text, repo.text, vars, used) {
					s.Items = append(s.Items, Item{
						Harness: h.text, Repo: repo.text, Vars: merged(nil, vars), Labels: merged(nil, m.labels),
						at: places{item: r.at(n), harness: h.at, repo: repo.at},
					})
				}
			})
		}
	}
	for i, was := range used {
		if !was {
			r.Fail(strictyaml.Value(n, "exclude").Content[i], "write values as the matrix has them", "the matrix has no such run")
		}
	}
}

func sizes(all []dimension) []int {
	out := make([]int, len(all))
	for i, d := range all {
		out[i] = len(d.values)
	}
	return out
}

// largest is the size of the texts of a run of the matrix, in bytes. No run has more.
func (m *matrix) largest() int {
	most := func(all []located) (n int) {
		for _, l := range all {
			n = max(n, len(l.text))
		}
		return n
	}
	size := most(m.harnesses) + most(m.repos) + sizeOf(m.labels)
	for _, d := range m.vars {
		n := 0
		for _, v := range d.values {
			n = max(n, len(v))
		}
		size += entryBytes + len(d.name) + n
	}
	return size
}

// each calls do with every combination of the variables from a dimension on.
func (m *matrix) each(from int, vars map[string]string, do func(map[string]string)) {
	if from == len(m.vars) {
		do(vars)
		return
	}
	d := m.vars[from]
	for _, v := range d.values {
		vars[d.name] = v
		m.each(from+1, vars, do)
	}
}

// excluded reports whether an exclusion names a combination, and marks it as used.
func (m *matrix) excluded(harness, repo string, vars map[string]string, used []bool) bool {
	found := false
	for i, x := range m.exclude {
		hit := (x.harness == "" || x.harness == harness) && (x.repo == "" || x.repo == repo)
		for name, v := range x.vars {
			got, has := vars[name]
			hit = hit && has && got == v
		}
		used[i] = used[i] || hit
		found = found || hit
	}
	return found
}
