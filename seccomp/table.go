package seccomp

import (
	"fmt"
	"slices"

	scmp "github.com/seccomp/libseccomp-golang"
)

// matches reports whether the case matches a call with these arguments.
func (c Case) matches(args [6]uint64) bool {
	return !slices.ContainsFunc(c, func(one Condition) bool { return !one.matches(args[one.Arg]) })
}

func (c Condition) matches(v uint64) bool {
	switch c.Op {
	case Is32:
		return uint32(v) == uint32(c.Value)
	case Is:
		return v == c.Value
	case Not:
		return v != c.Value
	case Above:
		return v > c.Value
	case HasBits:
		return v&c.Value == c.Value
	case NoBits:
		return v&c.Value == 0
	case Masked:
		mask, value := c.masked()
		return v&mask == value
	}
	return true // unknown: the refusal is about it
}

// matches reports whether the refusal applies to a call with these arguments.
func (r *Refusal) matches(args [6]uint64) bool {
	return len(r.When) == 0 || slices.ContainsFunc(r.When, func(c Case) bool { return c.matches(args) })
}

// Table has what the supervisor answers, by call number on this machine. The zero value
// refuses nothing, and decides on every call.
type Table struct {
	refused map[int][]RefusedCall
	decided map[int][]Case // no case: every call
}

// RefusedCall is a refusal of one call.
type RefusedCall struct {
	Exception
	Name string // of the call
}

// Table returns what the supervisor answers of the plan. See [Plan.Reported].
func (p Plan) Table() (Table, error) {
	t := Table{refused: map[int][]RefusedCall{}, decided: map[int][]Case{}}
	add := func(e Exception) error {
		for _, name := range e.Syscalls {
			nr, err := numberOf(name)
			if err != nil {
				return err
			}
			t.refused[nr] = append(t.refused[nr], RefusedCall{e, name})
		}
		return nil
	}
	for _, n := range p.Notified {
		for _, name := range n.Syscalls {
			nr, err := numberOf(name)
			if err != nil {
				return Table{}, err
			}
			when := n.When
			if len(when) == 0 {
				when = []Case{nil} // it matches every call
			}
			t.decided[nr] = append(t.decided[nr], when...)
		}
	}
	for _, r := range p.Reported {
		if err := add(Exception{Refusal: r}); err != nil {
			return Table{}, err
		}
	}
	for _, e := range p.Excepted {
		if err := add(e); err != nil {
			return Table{}, err
		}
	}
	return t, nil
}

// Of returns the refusal that applies to a call, or nil. A refusal without
// exceptions comes first.
func (t Table) Of(number int, args [6]uint64) *RefusedCall {
	list := t.refused[number]
	for i := range list {
		if list[i].matches(args) {
			return &list[i]
		}
	}
	return nil
}

// Decides reports whether the plan notifies a call that it does not refuse. A filter that a
// command loads itself can stop other calls for a tracer.
func (t Table) Decides(number int, args [6]uint64) bool {
	return t.decided == nil || slices.ContainsFunc(t.decided[number], func(c Case) bool { return c.matches(args) })
}

// numberOf is the number of a call; a negative one is of no call here.
func numberOf(name string) (int, error) {
	if number, late := shared[name]; late {
		return int(int32(number)), nil
	}
	call, err := scmp.GetSyscallFromName(name)
	if err != nil {
		return 0, fmt.Errorf("%s: libseccomp does not know it: %w", name, err)
	}
	return int(call), nil
}
