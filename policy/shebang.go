package policy

import "bytes"

// ShebangSize is how many bytes of a file the kernel looks at for #!. See
// BINPRM_BUF_SIZE in linux/binfmts.h.
const ShebangSize = 256

// MaxInterpreters is how many interpreters deep the kernel follows scripts
// before execve fails with ELOOP. See execve(2).
const MaxInterpreters = 5

// Shebang reads the interpreter line of a script from the first bytes of its
// file, at least [ShebangSize] of them or all there are, the way the kernel
// does: one optional argument, which keeps its inner blanks. It is false when
// the kernel would not run the file as a script. See fs/binfmt_script.c.
func Shebang(head []byte) (interpreter, argument string, ok bool) {
	if !bytes.HasPrefix(head, []byte("#!")) {
		return "", "", false
	}
	whole := len(head) < ShebangSize
	line := head[2:min(len(head), ShebangSize)]
	ended := whole
	if nul := bytes.IndexByte(line, 0); nul >= 0 {
		line, ended = line[:nul], true
	}
	if end := bytes.IndexByte(line, '\n'); end >= 0 {
		line, ended = line[:end], true
	} else if !whole {
		line = line[:min(len(line), ShebangSize-3)] // the last byte of the buffer stays NUL
	}
	start := bytes.TrimLeft(line, " \t")
	blank := bytes.IndexAny(start, " \t")
	if !ended && blank < 0 {
		return "", "", false // the path may go on beyond the buffer
	}
	start = bytes.TrimRight(start, " \t")
	if len(start) == 0 {
		return "", "", false
	}
	if blank < 0 || blank >= len(start) {
		return string(start), "", true
	}
	return string(start[:blank]), string(bytes.TrimLeft(start[blank:], " \t")), true
}
