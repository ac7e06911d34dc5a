package policy

import (
	"bytes"
	"errors"
)

// ShebangSize is the number of bytes that the kernel reads to detect the format
// of a file. See BINPRM_BUF_SIZE in linux/binfmts.h.
const ShebangSize = 256

// MaxInterpreters is the maximum number of nested interpreters of a script.
// Beyond it, execve fails with ELOOP. See exec_binprm in fs/exec.c.
const MaxInterpreters = 5

// ErrScriptLine is returned for a file that begins with #! but that the kernel
// does not accept as a script. execve fails with ENOEXEC.
var ErrScriptLine = errors.New("its #! line names no interpreter")

// Script is the parsed first line of a script.
type Script struct {
	Interpreter string // empty if a NUL precedes the name: execve then fails
	Argument    string // the rest of the line, with its inner blanks; empty: none
}

// Shebang parses the first line of a script as the kernel does. head has the
// first [ShebangSize] bytes of the file, or the whole file. The result is nil
// for a file that is not a script. The error is [ErrScriptLine]. See
// load_script in fs/binfmt_script.c.
func Shebang(head []byte) (*Script, error) {
	if !bytes.HasPrefix(head, []byte("#!")) {
		return nil, nil
	}
	buf := make([]byte, ShebangSize)
	copy(buf, head)
	line, _, whole := bytes.Cut(buf[2:], []byte("\n"))
	if !whole {
		// If the line does not end within the buffer, the name may be
		// truncated, unless a blank ends it.
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
