package locks

import (
	"slices"
	"sort"

	"golang.org/x/sys/unix"
)

// span is one locked range of an owner. Both ends belong to it.
type span struct {
	start, end int64
	typ        int16
	pid        uint32
	via        uint64 // the handle through which the lock was taken
}

// held are the locked ranges of one owner on one file. They are sorted and do not
// overlap.
type held []span

// set replaces the ranges in s by s. For F_UNLCK it only removes them. It returns by
// how much the number of ranges has grown.
func (h *held) set(s span) int {
	before := len(*h)
	list := *h
	from := sort.Search(before, func(i int) bool { return list[i].end >= s.start })
	to := from
	var parts [3]span
	put := parts[:0]
	for ; to < before && list[to].start <= s.end; to++ {
		if old := list[to]; old.start < s.start {
			old.end = s.start - 1
			put = append(put, old)
		}
	}
	if s.typ != unix.F_UNLCK {
		put = append(put, s)
	}
	if to > from {
		if old := list[to-1]; old.end > s.end {
			old.start = s.end + 1
			put = append(put, old)
		}
	}
	if from > 0 { // neighbours may merge with the new range
		from--
		put = append([]span{list[from]}, put...)
	}
	if to < before {
		put = append(put, list[to])
		to++
	}
	*h = slices.Replace(list, from, to, merged(put)...)
	return len(*h) - before
}

// merged joins ranges that touch each other and are otherwise equal.
func merged(list []span) []span {
	out := list[:0]
	for _, s := range list {
		if n := len(out); n > 0 && out[n-1].end != ToEnd && out[n-1].end+1 == s.start && out[n-1].same(s) {
			out[n-1].end = s.end
			continue
		}
		out = append(out, s)
	}
	return out
}

func (s span) same(b span) bool { return s.typ == b.typ && s.pid == b.pid && s.via == b.via }

// within returns the ranges that overlap the bytes from start to end.
func (h held) within(start, end int64) []span {
	from := sort.Search(len(h), func(i int) bool { return h[i].end >= start })
	to := from
	for to < len(h) && h[to].start <= end {
		to++
	}
	return h[from:to]
}

// conflicts reports whether a lock of this type and range excludes a range in h.
func (h held) conflicts(r *Request) bool {
	for _, s := range h.within(r.Start, r.End) {
		if s.typ == unix.F_WRLCK || r.Type == unix.F_WRLCK {
			return true
		}
	}
	return false
}

// through returns the ranges that were locked through a handle.
func (h held) through(handle uint64) []span {
	var out []span
	for _, s := range h {
		if s.via == handle {
			out = append(out, s)
		}
	}
	return out
}
