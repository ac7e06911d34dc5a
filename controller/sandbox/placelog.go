package sandbox

import "context"

// MaxPlaceLog bounds the text of a [PlaceLog], in bytes.
const MaxPlaceLog = 1 << 20

// PlaceLog is a log that the place of a sandbox has of it, besides the audit log.
type PlaceLog struct {
	By      string   // who wrote it
	Text    []byte   // printable lines
	Lines   int      // in Text
	LeftOut int      // lines that do not fit into Text
	Denials int      // lines which say that the place denied something
	Denied  []string // the first of these, without their times
}

// Witness is a sandbox whose place may have a log of it.
type Witness interface {
	// PlaceLog returns the log; nil: the place has none. It is called before [Sandbox.Delete].
	PlaceLog(ctx context.Context) (*PlaceLog, error)
}
