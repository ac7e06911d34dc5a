package scan

import "slices"

// automaton finds many literals in one pass. See Aho and Corasick, "Efficient
// String Matching", Communications of the ACM 18 (1975).
type automaton struct {
	class [256]uint16 // of each byte; 0: in no literal
	width int
	next  []uint16  // state*width+class to state
	ends  [][]int32 // for each state, the literals that end there
}

// newAutomaton builds an automaton for literals. They may repeat.
func newAutomaton(literals [][]byte) *automaton {
	a := &automaton{}
	total := 1
	for _, l := range literals {
		total += len(l)
		for _, c := range l {
			if a.class[c] == 0 {
				a.width++
				a.class[c] = uint16(a.width)
			}
		}
	}
	a.width++
	a.next, a.ends = make([]uint16, a.width, total*a.width), make([][]int32, 1, total)
	for i, l := range literals {
		state := 0
		for _, c := range l {
			edge := state*a.width + int(a.class[c])
			if a.next[edge] == 0 {
				a.next[edge] = uint16(len(a.ends))
				a.ends = append(a.ends, nil)
				a.next = append(a.next, make([]uint16, a.width)...)
			}
			state = int(a.next[edge])
		}
		a.ends[state] = append(a.ends[state], int32(i))
	}
	a.link()
	return a
}

// link adds the missing edges, each to the longest suffix that starts a
// literal.
func (a *automaton) link() {
	fail := make([]int, len(a.ends))
	var queue []int
	for c := 1; c < a.width; c++ {
		if s := int(a.next[c]); s != 0 {
			queue = append(queue, s)
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		a.ends[s] = slices.Concat(a.ends[s], a.ends[fail[s]])
		for c := 1; c < a.width; c++ {
			edge, behind := s*a.width+c, int(a.next[fail[s]*a.width+c])
			if t := int(a.next[edge]); t != 0 {
				fail[t] = behind
				queue = append(queue, t)
			} else {
				a.next[edge] = uint16(behind)
			}
		}
	}
}

// find calls hit for each literal found, with the offset behind it.
func (a *automaton) find(b []byte, hit func(literal int32, end int)) {
	state := 0
	for i, c := range b {
		state = int(a.next[state*a.width+int(a.class[c])])
		for _, l := range a.ends[state] {
			hit(l, i+1)
		}
	}
}
