// Package booking works with half-open slots of time, in minutes of a day.
package booking

import "sort"

// Slot is the time from From up to, but not including, To.
type Slot struct{ From, To int }

// Merge returns the slots in order, with overlapping and touching ones joined.
// The argument is not changed.
func Merge(slots []Slot) []Slot {
	sorted := append([]Slot(nil), slots...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].From < sorted[j].From })
	var out []Slot
	for _, s := range sorted {
		last := len(out) - 1
		if last >= 0 && s.From < out[last].To {
			if s.To > out[last].To {
				out[last].To = s.To
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// Free returns what is left of day when the slots are taken.
func Free(day Slot, taken []Slot) []Slot {
	var out []Slot
	from := day.From
	for _, s := range Merge(taken) {
		if end := earlier(s.From, day.To); end > from {
			out = append(out, Slot{from, end})
		}
		if s.To > from {
			from = s.To
		}
	}
	if from < day.To {
		out = append(out, Slot{from, day.To})
	}
	return out
}

func earlier(a, b int) int {
	if a < b {
		return a
	}
	return b
}
