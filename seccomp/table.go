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
	}
	return true // unknown: the refusal is about it
}

// matches reports whether the refusal applies to a call with these arguments.
func (r *Refusal) matches(args [6]uint64) bool {
	return len(r.When) == 0 || slices.ContainsFunc(r.When, func(c Case) bool { return c.matches(args) })
}

// Table has the refusals that the supervisor answers, by call number on this
// machine.
type Table map[int][]RefusedCall

// RefusedCall is a refusal of one call.
type RefusedCall struct {
	Exception
	Name string // of the call
}

// Table returns the refusals of the plan that the supervisor answers. See [Plan.Reported].
func (p Plan) Table() (Table, error) {
	t := Table{}
	add := func(e Exception) error {
		for _, name := range e.Syscalls {
			nr, late := shared[name]
			if !late {
				call, err := scmp.GetSyscallFromName(name)
				if err != nil {
					return fmt.Errorf("%s: libseccomp does not know it: %w", name, err)
				}
				nr = uint32(call)
			}
			t[int(int32(nr))] = append(t[int(int32(nr))], RefusedCall{e, name}) // a negative one is of no call here
		}
		return nil
	}
	for _, r := range p.Reported {
		if err := add(Exception{Refusal: r}); err != nil {
			return nil, err
		}
	}
	for _, e := range p.Excepted {
		if err := add(e); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Of returns the refusal that applies to a call, or nil. A refusal without
// exceptions comes first.
func (t Table) Of(number int, args [6]uint64) *RefusedCall {
	list := t[number]
	for i := range list {
		if list[i].matches(args) {
			return &list[i]
		}
	}
	return nil
}
