package host

import (
	"fmt"
	"os"

	"agentsh/fuse/watch"
	"agentsh/supervisor/probe"
)

// Edits says how a session in the current directory sees what other processes
// change there meanwhile.
type Edits struct {
	Mechanism string  `json:"mechanism"` // fanotify, inotify or none
	Seconds   float64 `json:"seconds"`   // age of names and attributes at most, in an idle session
	Told      bool    `json:"told"`      // by events of type host, by marks in the change record, and to inotify watchers inside
	How       string  `json:"how"`
	Why       string  `json:"why,omitempty"` // why not fanotify
}

// Ages of names and attributes. Changes of watched directories arrive within
// milliseconds; watchedAge is what is promised of them.
const (
	watchedAge   = 0.1
	unwatchedAge = 1
)

// hostEdits finds out how the edits of the host are seen. cacheSeconds is the operator's
// setting for what cannot be watched; 0: it is not set.
func hostEdits(primitives []probe.Primitive, trial Trial, cacheSeconds int) Edits {
	why := map[string]string{}
	for _, p := range primitives {
		if !p.Works {
			why[p.Name] = p.Why
		}
	}
	if trial.missing.Has(probe.FileServer) || trial.missing.Has(probe.Namespaces) {
		return Edits{Mechanism: watch.None.String(), How: "at once: commands use the directory itself; nothing tells of edits",
			Why: "a session has no file server here"}
	}
	here, err := os.Open(".")
	if err == nil {
		err = watch.Watchable(int(here.Fd()))
		here.Close()
	}
	fanotify, inotify := why["fanotify"], why["inotify"]
	switch {
	case err == nil && fanotify == "":
		return Edits{Mechanism: watch.Fanotify.String(), Seconds: watchedAge, Told: true,
			How: "within 0.1 s; events, the change record and watchers inside tell of them"}
	case err == nil && inotify == "":
		return Edits{Mechanism: watch.Inotify.String(), Seconds: watchedAge, Why: fanotify,
			How: "within 0.1 s; nothing tells of them, because inotify does not say who made a change"}
	case err != nil:
		fanotify = fmt.Sprintf("the current directory: %v", err)
	}
	age := max(cacheSeconds, unwatchedAge)
	return Edits{Mechanism: watch.None.String(), Seconds: float64(age), Why: fanotify,
		How: fmt.Sprintf("within %d s, the content at the next open; nothing tells of them", age)}
}
