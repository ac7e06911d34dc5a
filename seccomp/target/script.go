package target

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// HeadSize is how much of a file the kernel looks at to find out what it is,
// BINPRM_BUF_SIZE in linux/binfmts.h.
const HeadSize = 256

// Script is the first line of a script.
type Script struct {
	Interpreter string
	Argument    string // everything after the interpreter; empty: none
}

// Shebang reads the first line of a script as the kernel does. It returns nil
// for a file that is not a script, and ENOEXEC for a line that the kernel
// refuses. head holds up to [HeadSize] bytes of the file. See
// fs/binfmt_script.c.
func Shebang(head []byte) (*Script, error) {
	if !bytes.HasPrefix(head, []byte("#!")) {
		return nil, nil
	}
	buf := make([]byte, HeadSize)
	copy(buf, head)
	line, _, whole := bytes.Cut(buf[2:], []byte("\n"))
	if !whole {
		// Without an end within the buffer the name may be cut, unless
		// something ends it.
		name := bytes.TrimLeft(line, " \t")
		if !bytes.ContainsAny(name, " \t\x00") {
			return nil, unix.ENOEXEC
		}
		line = line[:len(line)-1]
	}
	line = bytes.Trim(line, " \t")
	if len(line) == 0 {
		return nil, unix.ENOEXEC
	}
	end := bytes.IndexAny(line, " \t\x00")
	if end < 0 {
		return &Script{Interpreter: string(line)}, nil
	}
	s := &Script{Interpreter: string(line[:end])}
	if line[end] != 0 {
		argument, _, _ := bytes.Cut(bytes.TrimLeft(line[end:], " \t"), []byte{0})
		s.Argument = string(argument)
	}
	return s, nil
}
