package wire

import "time"

// OpHistory is the operation of [FileRequest] with a [HistoryRequest].
const OpHistory = "history"

// HistoryRequest is about earlier states of the first governed directory. Exactly one field
// says what is done; Name belongs to Create.
type HistoryRequest struct {
	Create   bool     `json:"create,omitempty"` // remember the state now; one checkpoint is answered
	Name     string   `json:"name,omitempty"`
	List     bool     `json:"list,omitempty"`     // all checkpoints, oldest first
	Rollback string   `json:"rollback,omitempty"` // go back to a checkpoint; what changed is answered
	Delete   []string `json:"delete,omitempty"`   // forget checkpoints
	Changes  bool     `json:"changes,omitempty"`  // what differs since the session began, with the lines
}

// HistoryEntry is one entry of the answer to a [HistoryRequest]: a checkpoint or a change.
type HistoryEntry struct {
	Checkpoint *Checkpoint `json:"checkpoint,omitempty"`
	Change     *Change     `json:"change,omitempty"`
	Lines      string      `json:"lines,omitempty"`   // of a change, as a unified diff
	Without    string      `json:"without,omitempty"` // why there are no lines
}

// Checkpoint is a state of a governed directory that is remembered.
type Checkpoint struct {
	ID     string    `json:"id"`
	Name   string    `json:"name,omitempty"`
	Time   time.Time `json:"time"`
	Files  int       `json:"files"`
	Bytes  int64     `json:"bytes"`  // of all files
	Stored int64     `json:"stored"` // of those whose content no earlier checkpoint had
	// Unfinished is true if a rollback to it was interrupted.
	Unfinished bool `json:"unfinished,omitempty"`
}

// BinaryFile is [HistoryEntry.Without] of a file that is no text.
const BinaryFile = "binary"
