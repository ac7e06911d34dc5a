package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags of the group and of marks. A process without privileges may use these and no
// others since Linux 5.13. See fanotify_init(2).
const (
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK
	markFlags  = unix.FAN_MARK_ONLYDIR | unix.FAN_MARK_DONT_FOLLOW
	eventMask  = unix.FAN_CREATE | unix.FAN_DELETE | unix.FAN_MODIFY | unix.FAN_ATTRIB | unix.FAN_MOVED_FROM | unix.FAN_MOVED_TO |
		unix.FAN_EVENT_ON_CHILD | unix.FAN_ONDIR
)

// errNoGroup says that the process has no fanotify group.
var errNoGroup = errors.New("fanotify is not available")

// mark watches the directory that fd is open at. The caller holds mu.
func (w *Watcher) mark(d *directory, fd int, fs unix.Fsid) error {
	if w.fan.gate == nil {
		return errNoGroup
	}
	handle, err := handleOf(fd, fs)
	if err != nil {
		return err
	}
	if err := unix.FanotifyMark(w.fan.fd, unix.FAN_MARK_ADD|markFlags, eventMask, fd, "."); err != nil {
		return fmt.Errorf("fanotify_mark: %w", err)
	}
	d.handle = handle
	d.same = w.byHandle[handle]
	w.byHandle[handle] = d
	return nil
}

const (
	maxHandle  = 128   // MAX_HANDLE_SZ
	onlyAsName = 0x200 // AT_HANDLE_FID, Linux 6.5: the handle need not be usable to open the file
)

// handleOf returns the identity by which events name the directory that fd is open at, on
// the filesystem fs: the id of the filesystem, the type and the bytes of the handle.
func handleOf(fd int, fs unix.Fsid) (string, error) {
	var h struct {
		size, kind uint32
		bytes      [maxHandle]byte
	}
	var mount int32
	var empty byte
	for _, flags := range []uintptr{unix.AT_EMPTY_PATH | onlyAsName, unix.AT_EMPTY_PATH} {
		h.size = maxHandle
		_, _, errno := unix.Syscall6(unix.SYS_NAME_TO_HANDLE_AT, uintptr(fd), uintptr(unsafe.Pointer(&empty)),
			uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&mount)), flags, 0)
		if errno == unix.EINVAL {
			continue // before Linux 6.5
		}
		if errno != 0 {
			return "", fmt.Errorf("name_to_handle_at: %w", errno)
		}
		id := make([]byte, 0, 16+maxHandle)
		id = append(id, unsafe.Slice((*byte)(unsafe.Pointer(&fs)), unsafe.Sizeof(fs))...)
		id = append(id, unsafe.Slice((*byte)(unsafe.Pointer(&h)), 8)...)
		return string(append(id, h.bytes[:h.size]...)), nil
	}
	return "", fmt.Errorf("name_to_handle_at: %w", unix.EINVAL)
}

// Layout of events, see fanotify(7). An event is a head and records. A record is its
// type, its length, the filesystem, and the handle with the name behind it.
const (
	headSize     = 24
	recordHead   = 12 // type, length and filesystem
	handleHead   = 8
	recordNamed  = 2 // FAN_EVENT_INFO_TYPE_DFID_NAME
	recordHandle = 3 // FAN_EVENT_INFO_TYPE_DFID
)

// parseFanotify returns the events in buf, and whether events were lost before.
func (w *Watcher) parseFanotify(buf []byte) (events []Event, lost bool) {
	order := binary.NativeEndian
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(buf) >= headSize {
		size, head := order.Uint32(buf), int(order.Uint16(buf[6:]))
		mask, pid := order.Uint64(buf[8:]), int32(order.Uint32(buf[20:]))
		if int(size) > len(buf) || int(size) < head || head < headSize {
			return events, true
		}
		records := buf[head:size]
		buf = buf[size:]
		if mask&unix.FAN_Q_OVERFLOW != 0 {
			lost = true
			continue
		}
		if pid == w.pid {
			continue
		}
		handle, name, ok := parseRecords(records)
		if !ok {
			lost = true
			continue
		}
		for d := w.byHandle[string(handle)]; d != nil; d = d.same {
			events = append(events, Event{Dir: d.key, Name: name, Op: opOf(mask), PID: int(pid), By: Fanotify})
		}
	}
	return events, lost
}

// fanotifyLength returns the length of the events in buf without their records, as FIONREAD
// counts them.
func fanotifyLength(buf []byte) (length int) {
	for len(buf) >= headSize {
		length += headSize
		buf = buf[min(max(int(binary.NativeEndian.Uint32(buf)), headSize), len(buf)):]
	}
	return length
}

// parseRecords returns the directory and the name of an event.
func parseRecords(buf []byte) (handle []byte, name string, ok bool) {
	order := binary.NativeEndian
	for len(buf) >= recordHead+handleHead {
		kind, size := buf[0], int(order.Uint16(buf[2:]))
		if size < recordHead+handleHead || size > len(buf) {
			return nil, "", false
		}
		record := buf[4:size] // filesystem, handle, name
		buf = buf[size:]
		end := recordHead - 4 + handleHead + int(order.Uint32(record[recordHead-4:]))
		if end > len(record) {
			return nil, "", false
		}
		if kind == recordNamed || kind == recordHandle {
			name, _, _ = strings.Cut(string(record[end:]), "\x00")
			if name == "." || kind == recordHandle {
				name = ""
			}
			return record[:end], name, true
		}
	}
	return nil, "", false
}

// opOf returns the operations of a mask. fanotify and inotify use the same bits for
// them.
func opOf(mask uint64) Op {
	var op Op
	for _, b := range [...]struct {
		bit uint64
		op  Op
	}{
		{unix.FAN_CREATE, Created}, {unix.FAN_DELETE, Deleted}, {unix.FAN_MODIFY, Modified}, {unix.FAN_ATTRIB, Attributes},
		{unix.FAN_MOVED_FROM, MovedFrom}, {unix.FAN_MOVED_TO, MovedTo}, {unix.FAN_ONDIR, OnDir},
	} {
		if mask&b.bit != 0 {
			op |= b.op
		}
	}
	return op
}
