package seccomp

import (
	"encoding/binary"
	"fmt"
)

// data is struct seccomp_data.
type data struct {
	nr   uint32
	arch uint32
	ip   uint64
	args [6]uint64
}

func (d *data) word(off uint32) (uint32, error) {
	var b [64]byte
	ne := binary.NativeEndian
	ne.PutUint32(b[0:], d.nr)
	ne.PutUint32(b[4:], d.arch)
	ne.PutUint64(b[8:], d.ip)
	for i, a := range d.args {
		ne.PutUint64(b[16+8*i:], a)
	}
	if off%4 != 0 || off > 60 {
		return 0, fmt.Errorf("load of offset %d", off)
	}
	return ne.Uint32(b[off:]), nil
}

type insn struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

func decode(program []byte) []insn {
	var list []insn
	ne := binary.NativeEndian
	for ; len(program) >= 8; program = program[8:] {
		list = append(list, insn{ne.Uint16(program), program[2], program[3], ne.Uint32(program[4:])})
	}
	return list
}

// evaluate runs a filter over one call as the kernel does. See bpf(4) and
// seccomp(2) for the instructions that may occur.
func evaluate(program []insn, d *data) (uint32, error) {
	var a, x uint32
	var mem [16]uint32
	for pc := 0; pc < len(program); pc++ {
		i := program[pc]
		var err error
		jump := func(take bool) {
			if take {
				pc += int(i.jt)
			} else {
				pc += int(i.jf)
			}
		}
		switch i.code {
		case 0x20: // ld [k]
			a, err = d.word(i.k)
		case 0x60: // ld M[k]
			a = mem[i.k&15]
		case 0x02: // st M[k]
			mem[i.k&15] = a
		case 0x00: // ld #k
			a = i.k
		case 0x01: // ldx #k
			x = i.k
		case 0x07: // tax
			x = a
		case 0x87: // txa
			a = x
		case 0x54: // and #k
			a &= i.k
		case 0x05: // ja
			pc += int(i.k)
		case 0x15:
			jump(a == i.k)
		case 0x25:
			jump(a > i.k)
		case 0x35:
			jump(a >= i.k)
		case 0x45:
			jump(a&i.k != 0)
		case 0x06: // ret #k
			return i.k, nil
		default:
			err = fmt.Errorf("instruction %d has code %#x", pc, i.code)
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("the program runs off its end")
}
