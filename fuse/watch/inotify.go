package watch

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ONLYDIR

// addInotify watches the directory that fd is open at. The caller holds mu.
func (w *Watcher) addInotify(d *directory, fd int) error {
	if w.ino.gate == nil {
		if w.ended {
			return os.ErrClosed
		}
		ino, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return fmt.Errorf("inotify_init1: %w", err)
		}
		if w.ino, err = newQueue(ino, w.parseInotify, func(buf []byte) int { return len(buf) }); err != nil {
			return err
		}
		w.begin(w.ino)
	}
	watch, err := unix.InotifyAddWatch(w.ino.fd, "/proc/self/fd/"+strconv.Itoa(fd), watchMask)
	if err != nil {
		return fmt.Errorf("inotify_add_watch: %w", err)
	}
	d.watch = int32(watch)
	d.same = w.byWatch[d.watch]
	w.byWatch[d.watch] = d
	return nil
}

// parseInotify returns the events in buf, and whether events were lost before. See
// inotify(7) for the layout.
func (w *Watcher) parseInotify(buf []byte) (events []Event, lost bool) {
	order := binary.NativeEndian
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(buf) >= unix.SizeofInotifyEvent {
		watch, mask, size := int32(order.Uint32(buf)), order.Uint32(buf[4:]), int(order.Uint32(buf[12:]))
		if unix.SizeofInotifyEvent+size > len(buf) {
			return events, true
		}
		name, _, _ := strings.Cut(string(buf[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		buf = buf[unix.SizeofInotifyEvent+size:]
		if mask&(unix.IN_Q_OVERFLOW|unix.IN_UNMOUNT) != 0 {
			lost = true
		}
		if op := opOf(uint64(mask)); op&^OnDir != 0 {
			for d := w.byWatch[watch]; d != nil; d = d.same {
				events = append(events, Event{Dir: d.key, Name: name, Op: op, By: Inotify})
			}
		}
	}
	return events, lost
}
