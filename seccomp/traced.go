package seccomp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Traced returns a program of [Plan.Compile] for commands that are traced: what it
// notifies stops the thread for its tracer. Without a tracer these calls fail with ENOSYS.
// See seccomp(2), SECCOMP_RET_TRACE.
func Traced(program []byte, arch string) ([]byte, error) {
	a, ok := arches[arch]
	if !ok || len(program) == 0 || len(program)%sizeofInsn != 0 {
		return nil, fmt.Errorf("filter of %d bytes for %s", len(program), arch)
	}
	ne := binary.NativeEndian
	out := tracedPrologue(a.audit, tracedNumbers[arch])
	for at := 0; at < len(program); at += sizeofInsn {
		insn := append([]byte(nil), program[at:at+sizeofInsn]...)
		if ne.Uint16(insn) == ret && ne.Uint32(insn[4:])&actionFull == retNotify {
			ne.PutUint32(insn[4:], retTrace)
		}
		out = append(out, insn...)
	}
	return out, nil
}

const (
	jset       = 0x45
	offArgs    = 16         // the low half of the first argument
	actionFull = 0xffff0000 // SECCOMP_RET_ACTION_FULL
	retAllow   = 0x7fff0000 // SECCOMP_RET_ALLOW
	retTrace   = 0x7ff00000 // SECCOMP_RET_TRACE
	noCall     = 0xffffffff // a call that the tracer has answered
)

// tracedNumbers are the numbers of clone(2), wait4(2) and waitid(2).
var tracedNumbers = map[string][3]uint32{"amd64": {56, 61, 247}, "arm64": {220, 260, 95}}

// tracedPrologue runs before the program: it allows a call that the tracer has answered, stops
// a wait with WNOHANG, and refuses to make a process that is not traced. See wait.go of package
// tracer for the waits.
func tracedPrologue(arch uint32, numbers [3]uint32) []byte {
	var b []byte
	insn := func(code uint16, jf uint8, k uint32) { // a jump that is taken goes to the next one
		b = binary.NativeEndian.AppendUint16(b, code)
		b = append(b, 0, jf)
		b = binary.NativeEndian.AppendUint32(b, k)
	}
	insn(ldAbs, 0, offArch)
	insn(jeq, 15, arch)
	insn(ldAbs, 0, offNr)
	insn(jeq, 1, noCall)
	insn(ret, 0, retAllow)
	insn(jeq, 3, numbers[1])
	insn(ldAbs, 0, offArgs+2*8)
	insn(jset, 9, unix.WNOHANG)
	insn(ret, 0, retTrace)
	insn(jeq, 3, numbers[2])
	insn(ldAbs, 0, offArgs+3*8)
	insn(jset, 5, unix.WNOHANG)
	insn(ret, 0, retTrace)
	insn(jeq, 3, numbers[0])
	insn(ldAbs, 0, offArgs)
	insn(jset, 1, unix.CLONE_UNTRACED)
	insn(ret, 0, retErrno|uint32(unix.EPERM))
	return b
}
