package tree

// askers has directories of which the answers that may still be on their way to the kernel
// all go to one thread. A thread applies an answer before it asks again. So the kernel
// ignores no answer to that thread: see [Host.Tell]. The tree's lock guards it.
//
// It is about directories alone: of a file that is being written or truncated the kernel
// ignores answers as well, whoever asked (FUSE_I_SIZE_UNSTABLE in fs/fuse/fuse_i.h).
type askers struct {
	threads map[uint32]uint32 // by node; 0: no answer is on its way
}

// maxAskers bounds the directories. Of others nothing is known.
const maxAskers = 1024

// alone records an answer about a directory that goes to a thread, and reports whether
// every other one that may be on its way goes there too. Thread 0 is one that is not known.
func (a *askers) alone(id, thread uint32) bool {
	last, known := a.threads[id]
	switch {
	case !known:
		return false
	case thread == 0 || last != 0 && last != thread:
		delete(a.threads, id)
		return false
	}
	a.threads[id] = thread
	return true
}

// none records that the kernel ignores the answers about a directory that are on their way.
func (a *askers) none(id uint32) {
	if a.threads == nil || len(a.threads) >= maxAskers {
		a.threads = map[uint32]uint32{}
	}
	a.threads[id] = 0
}
