package policy

import (
	"bytes"
	"errors"
)

// ShebangSize is how many bytes of a file the kernel looks at to find out what
// it is. See BINPRM_BUF_SIZE in linux/binfmts.h.
const ShebangSize = 256

// MaxInterpreters is how many interpreters deep the kernel follows scripts
// before execve fails with ELOOP. See exec_binprm in fs/exec.c.
const MaxInterpreters = 5

// ErrScriptLine says that a file begins with #! but that the kernel does not
// take it for a script: execve fails with ENOEXEC.
var ErrScriptLine = errors.New("its #! line names no interpreter")

// Script is the first line of a script.
type Script struct {
	Interpreter string // empty where a NUL stands for the name: execve then fails
	Argument    string // all that follows, with its inner blanks; empty: none
}

// Shebang reads the first line of a script as the kernel does, from the first
// [ShebangSize] bytes of its file or all there are. It is nil for a file that
// is not a script. See load_script in fs/binfmt_script.c.
func Shebang(head []byte) (*Script, error) {
	if !bytes.HasPrefix(head, []byte("#!")) {
		return nil, nil
	}
	buf := make([]byte, ShebangSize)
	copy(buf, head)
	line, _, whole := bytes.Cut(buf[2:], []byte("\n"))
	if !whole {
		// Without an end within the buffer the name may be cut, unless
		// something ends it.
		name := bytes.TrimLeft(line, " \t")
		if !bytes.ContainsAny(name, " \t\x00") {
			return nil, ErrScriptLine
		}
		line = line[:len(line)-1]
	}
	line = bytes.Trim(line, " \t")
	if len(line) == 0 {
		return nil, ErrScriptLine
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
