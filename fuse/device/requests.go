package device

import (
	"bytes"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// UserXattrs is the prefix of every attribute name that a handler gets from a frequent
// request. The kernel also asks for capabilities, which no file of the mount has.
const UserXattrs = "user."

const (
	inHeader  = int(unsafe.Sizeof(gofuse.InHeader{}))
	outHeader = int(unsafe.Sizeof(gofuse.OutHeader{}))
)

// message is a request that is decoded in place. It consists of go-fuse's types laid
// over the buffers of its worker. The buffers are mapped and have no other reader.
type message struct {
	in   unsafe.Pointer // the request's structure, header included
	rest []byte         // the bytes after that structure
	out  unsafe.Pointer // the answer's structure, zeroed
	data []byte         // the data after that structure
	size int            // the number of bytes used of data
	sent func()         // is called after the answer was sent; nil for most
}

// name returns the single file name that follows the structure.
func (r *message) name() (string, bool) {
	end := bytes.IndexByte(r.rest, 0)
	if end < 0 {
		return "", false
	}
	return string(r.rest[:end]), true
}

// quickOp handles one kind of request.
type quickOp struct {
	in, out int // sizes of the structures, headers not included in out
	silent  bool
	do      func(Handler, *message) gofuse.Status
}

// quickOps returns the handling of a frequent request by its opcode. For all other
// opcodes do is nil. See fuse_opcode in uapi/linux/fuse.h.
func quickOps(opcode uint32) quickOp {
	switch opcode {
	case 1: // LOOKUP
		return quickOp{in: inHeader, out: int(unsafe.Sizeof(gofuse.EntryOut{})), do: quickLookup}
	case 2: // FORGET
		return quickOp{in: int(unsafe.Sizeof(gofuse.ForgetIn{})), do: quickForget, silent: true}
	case 3: // GETATTR
		return quickOp{in: int(unsafe.Sizeof(gofuse.GetAttrIn{})), out: int(unsafe.Sizeof(gofuse.AttrOut{})), do: quickGetAttr}
	case 4: // SETATTR
		return quickOp{in: int(unsafe.Sizeof(gofuse.SetAttrIn{})), out: int(unsafe.Sizeof(gofuse.AttrOut{})), do: quickSetAttr}
	case 10: // UNLINK
		return quickOp{in: inHeader, do: quickUnlink}
	case 14: // OPEN
		return quickOp{in: int(unsafe.Sizeof(gofuse.OpenIn{})), out: int(unsafe.Sizeof(gofuse.OpenOut{})), do: quickOpen}
	case 15: // READ
		return quickOp{in: int(unsafe.Sizeof(gofuse.ReadIn{})), do: quickRead}
	case 16: // WRITE
		return quickOp{in: int(unsafe.Sizeof(gofuse.WriteIn{})), out: int(unsafe.Sizeof(gofuse.WriteOut{})), do: quickWrite}
	case 18: // RELEASE
		return quickOp{in: int(unsafe.Sizeof(gofuse.ReleaseIn{})), do: quickRelease}
	case 22: // GETXATTR
		return quickOp{in: int(unsafe.Sizeof(gofuse.GetXAttrIn{})), do: quickGetXAttr}
	case 25: // FLUSH
		return quickOp{in: int(unsafe.Sizeof(gofuse.FlushIn{})), do: quickFlush}
	case 31: // GETLK
		return quickOp{in: int(unsafe.Sizeof(gofuse.LkIn{})), out: int(unsafe.Sizeof(gofuse.LkOut{})), do: quickGetLock}
	case 32: // SETLK
		return quickOp{in: int(unsafe.Sizeof(gofuse.LkIn{})), do: quickSetLock}
	case 33: // SETLKW
		return quickOp{in: int(unsafe.Sizeof(gofuse.LkIn{})), do: quickWaitLock}
	case 35: // CREATE
		return quickOp{in: int(unsafe.Sizeof(gofuse.CreateIn{})), out: int(unsafe.Sizeof(gofuse.CreateOut{})), do: quickCreate}
	case 36: // INTERRUPT
		return quickOp{in: int(unsafe.Sizeof(gofuse.InterruptIn{})), do: quickInterrupt, silent: true}
	case 42: // BATCH_FORGET
		return quickOp{in: inHeader + batchHead, do: quickForgets, silent: true}
	}
	return quickOp{}
}

// quick answers a request of quickOps without the memory allocations of go-fuse. It
// reports false for every other request, and for a request of the wrong length. A size
// of 0 means that no answer is sent.
func (l *Loop) quick(w *worker, n int) (size int, ok bool) {
	in := (*gofuse.InHeader)(unsafe.Pointer(&w.in[0]))
	op := quickOps(in.Opcode)
	if op.do == nil || n < op.in || in.TotalExtlen != 0 {
		return 0, false
	}
	end := outHeader + op.out
	clear(w.out[:end])
	w.msg = message{in: unsafe.Pointer(in), rest: w.in[op.in:n], out: unsafe.Pointer(&w.out[outHeader]), data: w.out[end:]}
	code := l.guarded(op.do, &w.msg)
	if code == statusSlow {
		return 0, false
	}
	if op.silent || code == Later {
		return 0, true
	}
	size = end + w.msg.size
	if !code.Ok() {
		size = outHeader
	}
	*(*gofuse.OutHeader)(unsafe.Pointer(&w.out[0])) = gofuse.OutHeader{Length: uint32(size), Status: -int32(code), Unique: in.Unique}
	return size, true
}

// guarded calls do and denies the request if do panics.
func (l *Loop) guarded(do func(Handler, *message) gofuse.Status, r *message) (code gofuse.Status) {
	defer func() {
		if cause := recover(); cause != nil {
			code = l.config.Panicked(cause)
		}
	}()
	return do(l.config.Handler, r)
}

func quickLookup(m Handler, r *message) gofuse.Status {
	name, ok := r.name()
	if !ok {
		return gofuse.EINVAL
	}
	return m.Lookup(nil, (*gofuse.InHeader)(r.in), name, (*gofuse.EntryOut)(r.out))
}

func quickForget(m Handler, r *message) gofuse.Status {
	in := (*gofuse.ForgetIn)(r.in)
	m.Forget(in.NodeId, in.Nlookup)
	return gofuse.OK
}

// forgetOne and batchHead are fuse_forget_one and fuse_batch_forget_in.
type forgetOne struct{ node, lookups uint64 }

const batchHead = 8

func quickForgets(m Handler, r *message) gofuse.Status {
	count := int(*(*uint32)(unsafe.Add(r.in, inHeader)))
	const each = int(unsafe.Sizeof(forgetOne{}))
	for rest := r.rest; count > 0 && len(rest) >= each; count-- {
		one := (*forgetOne)(unsafe.Pointer(&rest[0]))
		m.Forget(one.node, one.lookups)
		rest = rest[each:]
	}
	return gofuse.OK
}

func quickGetAttr(m Handler, r *message) gofuse.Status {
	return m.GetAttr(nil, (*gofuse.GetAttrIn)(r.in), (*gofuse.AttrOut)(r.out))
}

func quickSetAttr(m Handler, r *message) gofuse.Status {
	return m.SetAttr(nil, (*gofuse.SetAttrIn)(r.in), (*gofuse.AttrOut)(r.out))
}

func quickUnlink(m Handler, r *message) gofuse.Status {
	name, ok := r.name()
	if !ok {
		return gofuse.EINVAL
	}
	return m.Unlink(nil, (*gofuse.InHeader)(r.in), name)
}

func quickOpen(m Handler, r *message) gofuse.Status {
	return m.Open(nil, (*gofuse.OpenIn)(r.in), (*gofuse.OpenOut)(r.out))
}

func quickRead(m Handler, r *message) gofuse.Status {
	in := (*gofuse.ReadIn)(r.in)
	if int(in.Size) > len(r.data) {
		return gofuse.EINVAL
	}
	size, sent, code := m.ReadInto(in, r.data[:in.Size])
	r.size, r.sent = size, sent
	return code
}

func quickWrite(m Handler, r *message) gofuse.Status {
	in := (*gofuse.WriteIn)(r.in)
	if int(in.Size) != len(r.rest) {
		return gofuse.EINVAL
	}
	size, code := m.Write(nil, in, r.rest)
	(*gofuse.WriteOut)(r.out).Size = size
	return code
}

func quickRelease(m Handler, r *message) gofuse.Status {
	m.Release(nil, (*gofuse.ReleaseIn)(r.in))
	return gofuse.OK
}

func quickFlush(m Handler, r *message) gofuse.Status {
	return m.Flush(nil, (*gofuse.FlushIn)(r.in))
}

func quickGetLock(m Handler, r *message) gofuse.Status {
	return m.GetLk(nil, (*gofuse.LkIn)(r.in), (*gofuse.LkOut)(r.out))
}

func quickSetLock(m Handler, r *message) gofuse.Status {
	return m.SetLk(nil, (*gofuse.LkIn)(r.in))
}

func quickWaitLock(m Handler, r *message) gofuse.Status {
	return m.SetLkw(nil, (*gofuse.LkIn)(r.in))
}

// Later is returned by SetLkw of a handler that sends the answer by [Loop.Answer].
const Later gofuse.Status = -3

// statusSlow leaves a request to go-fuse.
const statusSlow gofuse.Status = -2

// quickGetXAttr answers the kernel's query for the capabilities of a file, which
// precedes the first write. See cap_inode_need_killpriv in security/commoncap.c.
func quickGetXAttr(_ Handler, r *message) gofuse.Status {
	if bytes.HasPrefix(r.rest, []byte(UserXattrs)) {
		return statusSlow
	}
	return gofuse.ENODATA
}

func quickCreate(m Handler, r *message) gofuse.Status {
	name, ok := r.name()
	if !ok {
		return gofuse.EINVAL
	}
	return m.Create(nil, (*gofuse.CreateIn)(r.in), name, (*gofuse.CreateOut)(r.out))
}

// quickInterrupt passes on the number of the interrupted request. Without an answer the
// kernel sends no further INTERRUPT. See fuse_dev_do_write in fs/fuse/dev.c.
func quickInterrupt(m Handler, r *message) gofuse.Status {
	m.Interrupt((*gofuse.InterruptIn)(r.in).Unique)
	return gofuse.OK
}

// ReadCached reads data that is in the page cache. It returns EAGAIN if the data is
// not there. See preadv2(2).
func ReadCached(fd int, buf []byte, off int64) (int, error) {
	if len(buf) == 0 {
		return 0, nil
	}
	part := unix.Iovec{Base: &buf[0], Len: uint64(len(buf))}
	n, _, err := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&part)), 1, uintptr(off), 0, unix.RWF_NOWAIT)
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}
