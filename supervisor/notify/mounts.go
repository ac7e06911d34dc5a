package notify

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoints are the names of the mount points of mountinfo by their directory. See
// proc_pid_mountinfo(5).
func mountPoints(info []byte) map[string][]string {
	points := map[string][]string{}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range bytes.Lines(info) {
		if fields := bytes.Fields(line); len(fields) > 4 {
			dir, name := path.Split(unescape.Replace(string(fields[4])))
			dir = path.Clean(dir)
			points[dir] = append(points[dir], name)
		}
	}
	return points
}

// ownMounts is the mountinfo of this process. Tests have another.
var ownMounts = "/proc/self/mountinfo"

// ofOne are the devices in the mountinfo of commands that this process does not see: the
// filesystems are made for one session.
func ofOne(info []byte) map[uint64]bool {
	seen := map[string]bool{} // none if they cannot be read: then nothing is remembered
	if ours, err := os.ReadFile(ownMounts); err == nil {
		for dev := range devices(ours) {
			seen[dev] = true
		}
	}
	made := map[uint64]bool{}
	for dev := range devices(info) {
		if seen[dev] {
			continue
		}
		seen[dev] = true
		if n := device(dev); n != 0 {
			made[n] = true
		}
	}
	return made
}

// device is the number of a device in mountinfo; 0: it is none.
func device(text string) uint64 {
	var major, minor uint32
	if n, _ := fmt.Sscanf(text, "%d:%d", &major, &minor); n != 2 {
		return 0
	}
	return unix.Mkdev(major, minor)
}

// devices are those in mountinfo, one for each mount.
func devices(info []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range bytes.Lines(info) {
			if fields := bytes.Fields(line); len(fields) > 2 && !yield(string(fields[2])) {
				return
			}
		}
	}
}

// overlay is a filesystem that each session makes anew over the same directory. Where agentsh is
// not installed, /usr/lib is one. Its device has another number in each session, so it is remembered
// by a number of the filesystem below. Zero: there is none.
//
// With xino=on the kernel derives the inode numbers of an overlay from those of its layers, and
// a directory that one layer has alone has the times of that layer. See
// Documentation/filesystems/overlayfs.rst, "Inode properties".
type overlay struct{ dev, number uint64 }

// ofOverlay is in all numbers of overlays, and in no number of a device.
const ofOverlay = 1 << 63

// overlayIn finds the overlay among the devices that were made for one session, in mountinfo. See
// proc_pid_mountinfo(5). Of two none counts.
func overlayIn(info []byte, ofOne map[uint64]bool) (found overlay) {
	for line := range bytes.Lines(info) {
		mount, super, _ := bytes.Cut(line, []byte(" - overlay "))
		fields, options := bytes.Fields(mount), bytes.Fields(super)
		if len(fields) < 5 || len(options) < 2 {
			continue
		}
		dev, below := device(string(fields[2])), layerBelow(string(options[1]))
		if below == 0 || !ofOne[dev] {
			continue
		}
		if found.dev != 0 {
			return overlay{}
		}
		found = overlay{dev, ofOverlay | below}
	}
	return found
}

// layerBelow is the device of the last of two layers of an overlay with these options; 0: what is
// remembered of that layer cannot be proven.
func layerBelow(options string) uint64 {
	_, layers, _ := strings.Cut(","+options, ",lowerdir=")
	layers, _, _ = strings.Cut(layers, ",")
	_, lower, _ := strings.Cut(layers, ":")
	written := strings.Contains(options, "upperdir=") // commands may have changed it
	var st unix.Stat_t
	if written || !strings.Contains(options+",", ",xino=on,") || strings.ContainsAny(lower, `:\`) || unix.Stat(lower, &st) != nil {
		return 0
	}
	return st.Dev
}

// swap replaces one of the two numbers of the overlay by the other.
func (o overlay) swap(from, to, n uint64) uint64 {
	if o.dev != 0 && n == from {
		return to
	}
	return n
}

// nested reports whether one of two directories is the other one or in it.
func nested(a, b string) bool {
	return strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/")
}
