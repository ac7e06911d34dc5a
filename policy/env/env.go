// Package env builds the environment of one command from ordered [Layers], and
// reads and writes .env files. No other package builds an environment.
//
// [Build] applies the layers in order. A later layer replaces the variables of
// an earlier one. Only the request is filtered by an allow list:
//
//	result, err := env.Build(env.Layers{
//		Baseline: env.Baseline(env.Environment{Home: "/home/sandbox"}),
//		Request:  []string{"GOFLAGS=-mod=mod", "LD_PRELOAD=/tmp/x.so"},
//		Filter:   p.EnvFilter(rule),
//	})
//	// result.Env: NAME=value, sorted. result.Origins: the layer of each variable.
//	// result.Dropped: LD_PRELOAD, with the reason.
//
// If err is not nil, the command must not start. Reasons and errors contain
// names, never values.
//
// [Parse] returns the variables of a .env file, or one *[SyntaxError] for each
// problem. [Format] writes such a file. [Filter] is the form of env_policy.
package env

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Var is one variable.
type Var struct{ Name, Value string }

// Layers are the inputs of [Build]. A later field has precedence over an
// earlier one.
type Layers struct {
	Baseline   []Var    // variables of every command of the sandbox, see [Baseline]
	Request    []string // "NAME=value" as received, including duplicates and malformed entries
	Filter     Filter   // applied to Request
	Files      []File   // .env files in reading order, generated.env last
	Network    []Var    // addresses of the session's proxy, paths of its certificate authorities
	Supervisor []Var    // the supervisor's own AGENTSH_*
	Inject     []Inject // env_inject of the operator's config, then of the policy
}

// File is the content of one .env file.
type File struct {
	Name string // shown in positions
	Data []byte
}

// Inject is one env_inject map. Its variables pass every filter, and no other
// layer can set them.
type Inject struct {
	Source string // shown as origin, for example "config" or "policy"
	Vars   map[string]string
}

// Layer is the origin of a variable.
type Layer uint8

// The layers, in the order in which they are applied.
const (
	LayerBaseline Layer = iota
	LayerRequest
	LayerFile
	LayerNetwork
	LayerSupervisor
	LayerInject
)

// String returns the name of a layer for messages.
func (l Layer) String() string {
	switch l {
	case LayerBaseline:
		return "baseline"
	case LayerRequest:
		return "request"
	case LayerFile:
		return "file"
	case LayerNetwork:
		return "network"
	case LayerSupervisor:
		return "supervisor"
	case LayerInject:
		return "env_inject"
	}
	return fmt.Sprintf("layer %d", uint8(l))
}

// Origin is the origin of one variable of a result.
type Origin struct {
	Name     string
	Layer    Layer
	Source   string  // file:line:column or name of the env_inject; empty for the other layers
	Rule     string  // request: the rule that allowed it
	Replaces []Layer // lower layers that had set it, lowest first
}

// Dropped is a variable of a layer that is not in the result from that layer.
type Dropped struct {
	Name   string // as received, may contain any byte; empty if the entry has no name
	Layer  Layer
	Reason string // contains no value
}

// Result is the environment of one command.
type Result struct {
	Env     []string  // NAME=value, sorted by name, names unique
	Origins []Origin  // one for each entry of Env, in the same order
	Dropped []Dropped // in the order of the layers
}

// MaxVar is the maximum length of "NAME=value" in an execve, in bytes. See
// execve(2), MAX_ARG_STRLEN.
const MaxVar = 32*4096 - 1

// MaxTotal is the maximum size of the environment of one command, in bytes of
// "NAME=value". By default the kernel allows 2 MiB for arguments and
// environment together, a quarter of the stack limit.
const MaxTotal = 1 << 20

// build is the state of one call of [Build].
type build struct {
	vars     map[string]entry
	injected map[string]string // name to source
	dropped  []Dropped
}

type entry struct {
	value  string
	origin Origin
}

// Build returns the environment of one command. On an error the command must
// not start. Errors are: a .env file that cannot be parsed, a request that
// exceeds a limit of the filter, and an operator's variable that execve cannot
// pass.
func Build(l Layers) (Result, error) {
	b := &build{vars: map[string]entry{}, injected: map[string]string{}}
	for _, i := range l.Inject {
		for name := range i.Vars {
			b.injected[name] = i.Source
		}
	}
	b.baseline(l.Baseline, l.Filter)
	err := errors.Join(
		b.request(l.Request, l.Filter),
		b.files(l.Files, l.Filter),
		b.network(l.Network, l.Filter),
		b.supervisor(l.Supervisor),
		b.inject(l.Inject),
	)
	if err != nil {
		return Result{}, err
	}
	return b.result()
}

// reserved drops a variable that an env_inject sets.
func (b *build) reserved(name string, layer Layer) bool {
	source, yes := b.injected[name]
	if yes {
		b.drop(name, layer, "reserved: env_inject of "+source+" sets it")
	}
	return yes
}

func (b *build) drop(name string, layer Layer, reason string) {
	b.dropped = append(b.dropped, Dropped{Name: name, Layer: layer, Reason: reason})
}

// set stores a variable and replaces that of a lower layer.
func (b *build) set(o Origin, value string) {
	if old, ok := b.vars[o.Name]; ok {
		o.Replaces = slices.Clone(old.origin.Replaces)
		if old.origin.Layer != o.Layer {
			o.Replaces = append(o.Replaces, old.origin.Layer)
		}
	}
	b.vars[o.Name] = entry{value: value, origin: o}
}

// baseline adds the baseline. The allow list does not apply, because the caller
// did not request it.
func (b *build) baseline(vars []Var, f Filter) {
	for _, v := range vars {
		if b.reserved(v.Name, LayerBaseline) {
			continue
		}
		if reason, denied := f.denies(v.Name); denied && !pinned(v.Name) {
			b.drop(v.Name, LayerBaseline, reason)
			continue
		}
		b.set(Origin{Name: v.Name, Layer: LayerBaseline}, v.Value)
	}
}

func (b *build) request(entries []string, f Filter) error {
	last := map[string]int{}
	for i, e := range entries {
		if name, _, ok := strings.Cut(e, "="); ok {
			last[name] = i
		}
	}
	bytes, keys := 0, 0
	for i, e := range entries {
		name, value, _ := strings.Cut(e, "=")
		if reason := malformed(e, i); reason != "" {
			b.drop(shown(e), LayerRequest, reason)
			continue
		}
		if last[name] != i {
			b.drop(name, LayerRequest, "the request sets it again later")
			continue
		}
		if b.reserved(name, LayerRequest) {
			continue
		}
		rule, reason := f.decide(name)
		if reason != "" {
			b.drop(name, LayerRequest, reason)
			continue
		}
		bytes, keys = bytes+len(e), keys+1
		b.set(Origin{Name: name, Layer: LayerRequest, Rule: rule}, value)
	}
	return f.fits(bytes, keys)
}

// shown returns the part of an entry that messages may contain: the name, never
// the value.
func shown(entry string) string {
	name, _, ok := strings.Cut(entry, "=")
	if !ok {
		return ""
	}
	return name
}

// malformed returns why an entry of a request is not a variable. It is empty
// for a valid entry.
func malformed(e string, index int) string {
	name, _, ok := strings.Cut(e, "=")
	switch {
	case !ok:
		return fmt.Sprintf("entry %d has no =", index+1)
	case !ValidName(name):
		return "malformed name: letters, digits and _, not starting with a digit"
	case strings.ContainsRune(e, 0):
		return "the value has a NUL byte"
	case len(e) > MaxVar:
		return fmt.Sprintf("longer than the %d bytes a program can be given", MaxVar)
	}
	return ""
}

func (b *build) files(files []File, f Filter) error {
	var errs []error
	for _, file := range files {
		vars, err := parse(file.Name, file.Data)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, v := range vars {
			b.fileVar(v, f)
		}
	}
	return errors.Join(errs...)
}

func (b *build) fileVar(v located, f Filter) {
	if b.reserved(v.Name, LayerFile) {
		return
	}
	if Reserved(v.Name) {
		b.drop(v.Name, LayerFile, v.at+": reserved: a .env file cannot set it")
		return
	}
	if reason, denied := f.denies(v.Name); denied {
		b.drop(v.Name, LayerFile, v.at+": "+reason)
		return
	}
	b.set(Origin{Name: v.Name, Layer: LayerFile, Source: v.at}, v.Value)
}

// network adds the variables of the proxy. The allow list does not apply,
// because programs cannot reach the network without them. Values of these
// variables in the request or in files are dropped, as they would be wrong.
func (b *build) network(vars []Var, f Filter) error {
	for _, v := range vars {
		if err := checkVar(v); err != nil {
			return fmt.Errorf("network variable %w", err)
		}
		if b.reserved(v.Name, LayerNetwork) {
			continue
		}
		if reason, denied := f.denies(v.Name); denied {
			b.drop(v.Name, LayerNetwork, reason)
			continue
		}
		b.set(Origin{Name: v.Name, Layer: LayerNetwork}, v.Value)
	}
	return nil
}

func (b *build) supervisor(vars []Var) error {
	for _, v := range vars {
		if !strings.HasPrefix(v.Name, supervisorPrefix) {
			return fmt.Errorf("supervisor variable %s: its name must start with %s", v.Name, supervisorPrefix)
		}
		if err := checkVar(v); err != nil {
			return fmt.Errorf("supervisor variable %w", err)
		}
		if b.reserved(v.Name, LayerSupervisor) {
			continue
		}
		b.set(Origin{Name: v.Name, Layer: LayerSupervisor}, v.Value)
	}
	return nil
}

func (b *build) inject(list []Inject) error {
	var errs []error
	for _, i := range list {
		for _, name := range slices.Sorted(maps.Keys(i.Vars)) {
			if err := checkVar(Var{name, i.Vars[name]}); err != nil {
				errs = append(errs, fmt.Errorf("env_inject of %s: %w", i.Source, err))
				continue
			}
			b.set(Origin{Name: name, Layer: LayerInject, Source: i.Source}, i.Vars[name])
		}
	}
	return errors.Join(errs...)
}

// checkVar returns an error for a variable that execve cannot pass.
func checkVar(v Var) error {
	switch {
	case !ValidName(v.Name):
		return fmt.Errorf("%q is not a variable name: letters, digits and _, not starting with a digit", v.Name)
	case strings.ContainsRune(v.Value, 0):
		return fmt.Errorf("%s: the value has a NUL byte", v.Name)
	case len(v.Name)+1+len(v.Value) > MaxVar:
		return fmt.Errorf("%s: longer than the %d bytes a program can be given", v.Name, MaxVar)
	}
	return nil
}

func (b *build) result() (Result, error) {
	r := Result{Dropped: b.dropped}
	total := 0
	for name, e := range b.vars {
		total += len(name) + 1 + len(e.value)
		r.Origins = append(r.Origins, e.origin)
	}
	if total > MaxTotal {
		return Result{}, fmt.Errorf("environment of %d bytes: at most %d can be given to a command", total, MaxTotal)
	}
	slices.SortFunc(r.Origins, func(a, b Origin) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range r.Origins {
		r.Env = append(r.Env, o.Name+"="+b.vars[o.Name].value)
	}
	return r, nil
}

// ValidName reports whether every shell accepts s as the name of a variable:
// ASCII letters, digits and underscores, not starting with a digit.
func ValidName(s string) bool {
	for i := 0; i < len(s); i++ {
		if !nameByte(s[i], i == 0) {
			return false
		}
	}
	return s != ""
}

func nameByte(c byte, first bool) bool {
	switch {
	case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		return true
	case '0' <= c && c <= '9':
		return !first
	}
	return false
}
