package prometheus

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"agentsh/internal/text"
)

// Kind is the kind of a [Family].
type Kind string

// The kinds.
const (
	Counter Kind = "counter" // only grows while the process lives; its name ends with _total
	Gauge   Kind = "gauge"
)

// Bounds of a [Family].
const (
	maxSeries = 200 // further values of labels are counted as "other"
	maxValue  = 128 // characters of a value of a label
)

// other is the value of each label of the series that counts the rest.
const other = "other"

// Family are the series of one name.
type Family struct {
	name, help string
	kind       Kind
	series     map[string]float64 // by their labels, as they are printed
}

// Known is a value of a label if it is one of a list, else "other".
func Known[T ~string](value T, list []T) string {
	if slices.Contains(list, value) {
		return string(value)
	}
	return other
}

// New is a family without a series.
func New(kind Kind, name, help string) *Family {
	return &Family{name: name, help: help, kind: kind, series: map[string]float64{}}
}

// Add adds a value to the series with some labels: name, value, name, value. It returns the family.
func (f *Family) Add(value float64, labels ...string) *Family {
	key := labelsText(labels)
	if _, known := f.series[key]; !known && len(f.series) >= maxSeries {
		rest := slices.Clone(labels)
		for i := 1; i < len(rest); i += 2 {
			rest[i] = other
		}
		key = labelsText(rest)
	}
	f.series[key] += value
	return f
}

// Clone is a copy that does not change with the family.
func (f *Family) Clone() *Family {
	c := *f
	c.series = maps.Clone(f.series)
	return &c
}

// labelsText are labels as the text format has them.
func labelsText(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	var pairs []string
	for i := 0; i+1 < len(labels); i += 2 {
		value := text.Short(strings.ToValidUTF8(labels[i+1], "\uFFFD"), maxValue)
		pairs = append(pairs, labels[i]+`="`+strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value)+`"`)
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

// write writes families by their names.
func write(to *bytes.Buffer, all []*Family) {
	all = slices.SortedFunc(slices.Values(all), func(a, b *Family) int { return cmp.Compare(a.name, b.name) })
	for _, f := range all {
		to.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + string(f.kind) + "\n")
		for _, labels := range slices.Sorted(maps.Keys(f.series)) {
			to.WriteString(f.name + labels + " " + strconv.FormatFloat(f.series[labels], 'g', -1, 64) + "\n")
		}
	}
}

// Name is the name of the family.
func (f *Family) Name() string { return f.name }

// Value is the value of the series with some labels, and whether there is one.
func (f *Family) Value(labels ...string) (float64, bool) {
	value, has := f.series[labelsText(labels)]
	return value, has
}
