package launch

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// reservedProcesses are processes and threads of the user that no session can have. The
// Go runtime ends a program that cannot start a thread: the supervisor and the file
// server need some left when commands start as many processes as they can.
const reservedProcesses = 256

// MostProcesses is how many processes the user of this process may have when a process
// of a session starts another one. It is below this process's own limit. Without
// limited, no limit applies: root has none.
func MostProcesses() (most uint64, limited bool, err error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &l); err != nil {
		return 0, false, fmt.Errorf("limit of processes: %w", err)
	}
	if os.Geteuid() == 0 || l.Cur == unix.RLIM_INFINITY {
		return 0, false, nil
	}
	return l.Cur - min(reservedProcesses, l.Cur/4), true, nil
}

// lowering has one goroutine at a time change the limit of this process.
var lowering sync.Mutex

// startLimited starts the init by start. Everything that the init starts is subject to
// MostProcesses. A user namespace keeps the limit that its creator has at that moment
// (user_namespaces(7)): nothing inside can raise it.
func startLimited(start func() (*child, error)) (*child, error) {
	lowering.Lock()
	defer lowering.Unlock()
	most, limited, err := MostProcesses()
	if err != nil {
		return nil, err
	}
	if !limited {
		return start()
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &own); err != nil {
		return nil, fmt.Errorf("limit of processes: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: own.Max}); err != nil {
		return nil, fmt.Errorf("limit of processes: %w", err)
	}
	c, err := start()
	if failed := unix.Setrlimit(unix.RLIMIT_NPROC, &own); err == nil && failed != nil {
		err = fmt.Errorf("limit of processes: %w", failed)
	}
	if err == nil { // without a user namespace only this holds
		if err = unix.Prlimit(c.pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
			err = fmt.Errorf("limit of processes: %w", err)
		}
	}
	if err != nil && c != nil && c.proc != nil {
		c.kill()
	}
	return c, err
}
