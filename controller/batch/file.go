package batch

import (
	"math"
	"strconv"
	"time"

	"agentsh/controller/harness"
	"agentsh/internal/strictyaml"
)

// Defaults of a batch.
const (
	DefaultAtOnce   = 4
	DefaultAttempts = 3
	DefaultDelay    = 10 * time.Second
	DefaultMaxDelay = 5 * time.Minute
)

// Bounds of a batch.
const (
	maxRuns     = 10_000
	maxAtOnce   = 1000
	maxAttempts = 100
	maxTokens   = 1_000_000_000_000_000
	maxDollars  = 1_000_000_000

	maxExclusions = 1000
	maxTexts      = 16 << 20 // bytes of the texts of all runs: those that runs share count for each
	entryBytes    = 64       // of an entry of a map, besides its texts
)

// Spec is what a batch does. It is stored with the batch.
type Spec struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"` // of every run
	Out         string            `json:"out"`              // directory of the results, with a directory for each run
	Caps        Caps              `json:"caps"`
	Retries     Retries           `json:"retries"`
	Deadline    time.Duration     `json:"deadline_ns,omitempty"` // from the start of the batch; 0: none
	Budget      Budget            `json:"budget,omitzero"`
	Items       []Item            `json:"runs"`

	vars map[string]string // of every run
}

// Caps bound the runs that go on at the same time. A missing one is no bound.
type Caps struct {
	Runs     int            `json:"runs"`
	Backends map[string]int `json:"backends,omitempty"` // by name
	Models   map[string]int `json:"models,omitempty"`   // by provider of the model

	at map[string]harness.Origin // of each cap by a name, as backends.local
}

// Retries say what follows a failure of the infrastructure.
type Retries struct {
	Attempts int           `json:"attempts"` // of one run, with the first
	Delay    time.Duration `json:"delay_ns"` // before the second one; it doubles for each further one
	MaxDelay time.Duration `json:"max_delay_ns"`
}

// Budget bounds what the agents of all runs use, as their programs report it. 0: no bound.
type Budget struct {
	Tokens int64   `json:"tokens,omitempty"` // read, written, and read from and written to caches
	USD    float64 `json:"usd,omitempty"`
}

// Item is one run of a batch.
type Item struct {
	Name    string            `json:"name"`
	Harness string            `json:"harness"`
	Repo    string            `json:"repo"`
	Vars    map[string]string `json:"vars,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	// Backend and Provider are what the harness says, see [Spec.Describe].
	Backend  string `json:"backend,omitempty"`
	Provider string `json:"provider,omitempty"`

	at places
}

// places are the positions of an item's values in the file.
type places struct {
	item, harness, repo harness.Origin
}

var fileKeys = []key[Spec]{
	{name: "version", doc: "Version of this language; 1.", schema: countSchema(1), read: func(r *reader, n *strictyaml.Node, _ *Spec) {
		r.Int(n, 1, 1)
	}},
	{
		name:   "name",
		doc:    "Name of the batch, for people and the directory of its results.",
		schema: schema{"type": "string", "pattern": namePattern},
		read:   func(r *reader, n *strictyaml.Node, s *Spec) { s.Name, _ = r.name(n, "a batch") },
	},
	{name: "description", doc: "One line for people.", schema: textSchema,
		read: func(r *reader, n *strictyaml.Node, s *Spec) { s.Description, _ = r.Text(n) }},
	{
		name:   "out",
		doc:    "Directory of the results, relative to the file; out/NAME beside the current directory unless given.",
		schema: textSchema,
		read:   func(r *reader, n *strictyaml.Node, s *Spec) { s.Out, _ = r.path(n) },
	},
	{name: "labels", doc: "Labels of every run.", schema: mapSchema(namePattern, textSchema),
		read: func(r *reader, n *strictyaml.Node, s *Spec) { r.labels(n, s.Labels) }},
	{name: "vars", doc: "Variables of every run, in the place of those of the host.", schema: mapSchema(varPattern, textSchema),
		read: func(r *reader, n *strictyaml.Node, s *Spec) { r.oneEach(n, s.vars) }},
	{name: "caps", doc: "Runs that may go on at the same time.", schema: objectSchema(capKeys),
		read: func(r *reader, n *strictyaml.Node, s *Spec) { object(r, n, "caps", capKeys, &s.Caps) }},
	{name: "retries", doc: "Further attempts after trouble of the infrastructure; an agent that failed is not started again.",
		schema: objectSchema(retryKeys),
		read:   func(r *reader, n *strictyaml.Node, s *Spec) { object(r, n, "retries", retryKeys, &s.Retries) }},
	{name: "deadline", doc: "Time after which runs are stopped and none is started, as 2h.", schema: durationSchema,
		read: func(r *reader, n *strictyaml.Node, s *Spec) { s.Deadline, _ = r.Duration(n) }},
	{name: "budget", doc: "What the agents of all runs may use together, as they report it.", schema: objectSchema(budgetKeys),
		read: func(r *reader, n *strictyaml.Node, s *Spec) { object(r, n, "budget", budgetKeys, &s.Budget) }},
	{name: "runs", doc: "The runs, each with its harness, repository and variables.", schema: listSchema(objectSchema(itemKeys)),
		read: readRuns},
	{name: "matrix", doc: "Runs of every combination.", schema: objectSchema(matrixKeys), read: readMatrix},
}

var capKeys = []key[Caps]{
	{name: "runs", doc: "Of all runs; 4 unless given.", schema: countSchema(maxAtOnce),
		read: func(r *reader, n *strictyaml.Node, c *Caps) { r.count(n, maxAtOnce, &c.Runs) }},
	{name: "backends", doc: "Of the runs of a backend, by its name.", schema: mapSchema(namePattern, countSchema(maxAtOnce)),
		read: func(r *reader, n *strictyaml.Node, c *Caps) {
			c.Backends = r.counts(n, "backends", harness.Backends(), c)
		}},
	{
		name:   "models",
		doc:    "Of the runs whose model a provider serves, by its name: anthropic, openai, google, or the part of model before a slash.",
		schema: mapSchema(namePattern, countSchema(maxAtOnce)),
		read:   func(r *reader, n *strictyaml.Node, c *Caps) { c.Models = r.counts(n, "models", nil, c) },
	},
}

var retryKeys = []key[Retries]{
	{name: "attempts", doc: "Of one run, with the first; 3 unless given.", schema: countSchema(maxAttempts),
		read: func(r *reader, n *strictyaml.Node, t *Retries) { r.count(n, maxAttempts, &t.Attempts) }},
	{name: "delay", doc: "Before the second attempt; it doubles for each further one; 10s unless given.", schema: durationSchema,
		read: func(r *reader, n *strictyaml.Node, t *Retries) { r.duration(n, &t.Delay) }},
	{name: "max_delay", doc: "Longest delay; 5m unless given.", schema: durationSchema,
		read: func(r *reader, n *strictyaml.Node, t *Retries) { r.duration(n, &t.MaxDelay) }},
}

var budgetKeys = []key[Budget]{
	{name: "tokens", doc: "Tokens that models read and wrote, those of caches included.", schema: countSchema(maxTokens),
		read: func(r *reader, n *strictyaml.Node, b *Budget) { b.Tokens, _ = r.Int(n, 1, maxTokens) }},
	{name: "usd", doc: "US dollars.", schema: schema{"type": "number", "exclusiveMinimum": 0, "maximum": maxDollars}, read: readDollars},
}

var itemKeys = []key[Item]{
	{name: "name", doc: "Name of the run; made of the harness, the repository and the variables unless given.",
		schema: schema{"type": "string", "pattern": namePattern},
		read:   func(r *reader, n *strictyaml.Node, i *Item) { i.Name, _ = r.name(n, "a run") }},
	{name: "harness", doc: "File of the harness, relative to this file.", required: true, schema: textSchema,
		read: func(r *reader, n *strictyaml.Node, i *Item) {
			i.Harness, _ = r.path(n)
			i.at.harness = r.at(n)
		}},
	{name: "repo", doc: "Directory of the repository, relative to this file.", required: true, schema: textSchema,
		read: func(r *reader, n *strictyaml.Node, i *Item) {
			i.Repo, _ = r.path(n)
			i.at.repo = r.at(n)
		}},
	{name: "vars", doc: "Variables of the run, in the place of those of the host.", schema: mapSchema(varPattern, textSchema),
		read: func(r *reader, n *strictyaml.Node, i *Item) { r.oneEach(n, i.Vars) }},
	{name: "labels", doc: "Labels of the run.", schema: mapSchema(namePattern, textSchema),
		read: func(r *reader, n *strictyaml.Node, i *Item) { r.labels(n, i.Labels) }},
}

// readRuns reads the list of runs.
func readRuns(r *reader, n *strictyaml.Node, s *Spec) {
	if r.Items(n, func(n *strictyaml.Node) {
		i := Item{Vars: map[string]string{}, Labels: map[string]string{}, at: places{item: r.at(n)}}
		if object(r, n, "a run", itemKeys, &i) {
			s.Items = append(s.Items, i)
		}
	}) && len(n.Content) == 0 {
		r.Fail(n, "", "the list of runs is empty")
	}
}

func readDollars(r *reader, n *strictyaml.Node, b *Budget) {
	if t := strictyaml.TypeOf(n); n.Kind != strictyaml.Scalar || t != strictyaml.Int && t != strictyaml.Float {
		r.Fail(n, "", "must be a number of US dollars")
		return
	}
	v, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || math.IsNaN(v) || v <= 0 || v > maxDollars {
		r.Fail(n, "", "%s is out of range, above 0 to %d", strictyaml.Shorten(n.Value), maxDollars)
		return
	}
	b.USD = v
}

func (r *reader) count(n *strictyaml.Node, high int64, into *int) {
	if v, ok := r.Int(n, 1, high); ok {
		*into = int(v)
	}
}

func (r *reader) duration(n *strictyaml.Node, into *time.Duration) {
	if d, ok := r.Duration(n); ok {
		*into = d
	}
}

// counts reads caps by names. known are all possible names; nil: any.
func (r *reader) counts(n *strictyaml.Node, what string, known []string, of *Caps) map[string]int {
	out := map[string]int{}
	r.Keys(n, "caps."+what, func() []string { return known }, func(k *strictyaml.Node) func(*strictyaml.Node) {
		if known != nil && strictyaml.Nearest(k.Value, known) != k.Value {
			return nil
		}
		return func(v *strictyaml.Node) {
			var c int
			if _, ok := r.name(k, what); ok {
				r.count(v, maxAtOnce, &c)
				out[k.Value], of.at[what+"."+k.Value] = c, r.at(k)
			}
		}
	})
	return out
}

// oneEach reads variables with one value each.
func (r *reader) oneEach(n *strictyaml.Node, into map[string]string) {
	r.variables(n, func(name string, v *strictyaml.Node) {
		if s, ok := r.Text(v); ok {
			into[name] = s
		}
	})
}
