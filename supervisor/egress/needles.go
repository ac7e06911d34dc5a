package egress

import (
	"bytes"
	"slices"
)

// needles finds any of several texts in one pass, by the algorithm of Wu and Manber
// with blocks of two bytes. The number of texts hardly changes the cost. It is safe
// for concurrent use.
type needles struct {
	forms   []form
	window  int // length of the shortest
	longest int
	// shift is the number of bytes to move the window that ends with a block; 0: a
	// text may begin at the start of the window.
	shift [1 << 16]uint8
	ends  map[uint16][]int // forms by the block that ends their first window
	// prefixes holds the prefixes of the texts by their last byte, longest first.
	prefixes [256][][]byte
}

// newNeedles prepares a search. Each form has shortestValue bytes or more.
func newNeedles(forms []form) *needles {
	n := &needles{forms: forms, window: len(forms[0].text), ends: map[uint16][]int{}}
	for _, f := range forms {
		n.window = min(n.window, len(f.text))
		n.longest = max(n.longest, len(f.text))
	}
	n.window = min(n.window, 255)
	for i := range n.shift {
		n.shift[i] = uint8(n.window - 1)
	}
	for at, f := range forms {
		for i := 1; i < n.window; i++ {
			b := block(f.text, i)
			n.shift[b] = min(n.shift[b], uint8(n.window-1-i))
		}
		last := block(f.text, n.window-1)
		n.ends[last] = append(n.ends[last], at)
		for k := 1; k < len(f.text); k++ {
			n.prefixes[f.text[k-1]] = append(n.prefixes[f.text[k-1]], f.text[:k])
		}
	}
	for _, list := range n.prefixes {
		slices.SortFunc(list, func(a, b []byte) int { return len(b) - len(a) })
	}
	return n
}

// block is the byte at an offset and the byte before it.
func block(b []byte, at int) uint16 { return uint16(b[at-1])<<8 | uint16(b[at]) }

// found is the offset of a text, and which text it is.
type found struct{ at, form int }

// hide overwrites the texts in b.
func (n *needles) hide(b []byte) {
	var hits []found
	for end := n.window - 1; end < len(b); {
		if skip := n.shift[block(b, end)]; skip > 0 {
			end += int(skip)
			continue
		}
		from := end - n.window + 1
		for _, i := range n.ends[block(b, end)] {
			if bytes.HasPrefix(b[from:], n.forms[i].text) {
				hits = append(hits, found{from, i})
			}
		}
		end++
	}
	for _, h := range hits { // after the search, so that all are found
		copy(b[h.at:], n.forms[h.form].shown)
	}
}

// containsFold reports whether one of the texts is in b, in upper or lower case.
func (n *needles) containsFold(b []byte) bool {
	lower := bytes.ToLower(b)
	for _, f := range n.forms {
		if bytes.Contains(lower, bytes.ToLower(f.text)) {
			return true
		}
	}
	return false
}

// partial returns how many bytes at the end of b may be the beginning of a text.
func (n *needles) partial(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	for _, head := range n.prefixes[b[len(b)-1]] {
		if bytes.HasSuffix(b, head) {
			return len(head)
		}
	}
	return 0
}
