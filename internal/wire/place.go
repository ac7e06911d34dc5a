package wire

import "time"

// MaxPlaceRequest is the largest [PlaceRequest], in bytes.
const MaxPlaceRequest = 4 * MaxMessage

// ContainerReady is what agentsh serve --container writes to its standard output once it waits for a sandbox.
const ContainerReady = "agentsh is ready\n"

// PlaceHello is the first frame of agentsh serve --stdio, and of each stream of serve --listen.
type PlaceHello struct {
	Version Version `json:"version"`
	Build   string  `json:"build"`
}

// Operations of [PlaceRequest].
const (
	PlaceServe   = "serve"   // make a sandbox; a [PlaceAttached] answers, then the stream of package resume follows
	PlaceAttach  = "attach"  // connect to a sandbox; as PlaceServe
	PlaceTake    = "take"    // be the controller of a sandbox, in the place of one that is gone; as PlaceServe
	PlaceCollect = "collect" // remove sandboxes; a [PlaceCollected] answers
)

// PlaceRequest is the frame that a controller sends to agentsh serve --stdio, where it
// was started on another machine: the place.
type PlaceRequest struct {
	Version Version `json:"version"`
	Op      string  `json:"op"`
	Owner   string  `json:"owner"` // names the controller's state directory
	// ID names the sandbox. The place chooses the paths of Bootstrap: that of the only
	// governed directory, AuditPath, StoreDir and ExportDir are empty.
	ID        string     `json:"id,omitempty"`
	NeedBytes int64      `json:"need_bytes,omitempty"` // disk space that must be free
	Bootstrap *Bootstrap `json:"bootstrap,omitempty"`
	// Nonce makes the token of the streams that follow a PlaceTake, see resume.NextToken.
	Nonce []byte `json:"nonce,omitempty"`

	Keep   []string `json:"keep,omitempty"`    // collect: the owner's sandboxes that are in use
	DryRun bool     `json:"dry_run,omitempty"` // collect: remove nothing
}

// PlaceLabels describe a sandbox of a place, in its directory.
type PlaceLabels struct {
	Version int       `json:"version"` // 1
	ID      string    `json:"id"`
	Owner   string    `json:"owner"`
	Created time.Time `json:"created"`
	PID     int       `json:"pid,omitempty"`        // the supervisor
	Start   uint64    `json:"start_time,omitempty"` // its start time, proc(5) field 22
	Boot    string    `json:"boot_id,omitempty"`    // in which it was started
	// LeaseSeconds is how long the supervisor goes on without a stream to its controller.
	LeaseSeconds int `json:"lease_seconds"`
}

// PlaceAttached answers PlaceServe, PlaceAttach and PlaceTake.
type PlaceAttached struct {
	Error string `json:"error,omitempty"` // no sandbox was made; or it is gone, and no further stream leads to it
}

// PlaceCollected answers PlaceCollect.
type PlaceCollected struct {
	Sandboxes []PlaceLeftover `json:"sandboxes"`
}

// PlaceLeftover is one sandbox that was removed, or would be.
type PlaceLeftover struct {
	ID    string `json:"id"`
	Error string `json:"error,omitempty"` // why it could not be removed
}

// Ended answers [OpEnd].
type Ended struct {
	Trashed int `json:"trashed"` // files in the trash, below [layout.Export]
}
