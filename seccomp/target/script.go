package target

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// HeadSize is how much of a file the kernel looks at to find out what it is,
// BINPRM_BUF_SIZE in linux/binfmts.h.
const HeadSize = 256

// Shebang reads the first line of a script as the kernel does: the interpreter
// and at most one argument. ok is false for a file that is not a script, and
// the error is ENOEXEC for a line the kernel refuses. head holds up to
// [HeadSize] bytes of the file. See fs/binfmt_script.c.
func Shebang(head []byte) (interpreter, argument string, ok bool, err error) {
	if !bytes.HasPrefix(head, []byte("#!")) {
		return "", "", false, nil
	}
	buf := make([]byte, HeadSize)
	copy(buf, head)
	line, _, whole := bytes.Cut(buf[2:], []byte("\n"))
	if !whole {
		// Without an end within the buffer the name may be cut, unless
		// something ends it.
		name := bytes.TrimLeft(line, " \t")
		if len(name) == 0 || bytes.IndexAny(name, " \t\x00") < 0 {
			return "", "", false, unix.ENOEXEC
		}
		line = line[:len(line)-1]
	}
	line = bytes.Trim(line, " \t")
	if len(line) == 0 {
		return "", "", false, unix.ENOEXEC
	}
	end := bytes.IndexAny(line, " \t\x00")
	if end < 0 {
		return string(line), "", true, nil
	}
	name, rest := line[:end], line[end:]
	if rest[0] == 0 {
		return string(name), "", true, nil
	}
	rest = bytes.TrimLeft(rest, " \t")
	rest, _, _ = bytes.Cut(rest, []byte{0})
	return string(name), string(rest), true, nil
}
