package notify

import (
	"sync"

	"agentsh/policy"
	"agentsh/seccomp/target"
)

// firstBytes are what programs on read-only mounts begin with: those are executed
// again and again, and no command can change them.
var firstBytes = heads{known: map[fileVersion][]byte{}}

// heads are the first bytes of files by their version.
type heads struct {
	mu    sync.Mutex
	known map[fileVersion][]byte
}

// maxHeads bounds what is kept: 256 bytes each.
const maxHeads = 1 << 10

// of returns the first bytes of a file that tell whether it is a script.
func (k *heads) of(h *target.Handle) ([]byte, error) {
	k.mu.Lock()
	head, known := k.known[versionOf(h)]
	k.mu.Unlock()
	if known {
		if fixed, err := h.ReadOnly(); err == nil && fixed {
			return head, nil
		}
	}
	return h.Head(policy.ShebangSize)
}

// keep remembers the first bytes of a file whose mount is read-only.
func (k *heads) keep(h *target.Handle, head []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxHeads {
		clear(k.known)
	}
	k.known[versionOf(h)] = head
}

func versionOf(h *target.Handle) fileVersion {
	return fileVersion{fileID{h.Stat.Dev, h.Stat.Ino}, h.Stat.Size, h.Stat.Mtim, h.Stat.Ctim}
}
