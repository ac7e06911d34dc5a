package hook

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/internal/text"
)

// Entry is one act of a hook, a line of [Settings.Log]. The agent could write such
// lines too, so an entry is a report and no proof.
type Entry struct {
	Hook   string `json:"hook"`
	Rule   string `json:"rule,omitempty"` // of the scan that found something
	Tool   string `json:"tool"`
	Reason string `json:"reason"`
	Count  int    `json:"count,omitempty"` // parts of an answer that were rewritten; 0: the call was refused
}

// Bounds of the files between hooks, in bytes.
const (
	MaxLog    = 1 << 20
	maxUntold = 64 << 10
	maxReason = 500 // characters
	maxTold   = 8   // refusals
)

// record appends an entry to the log. An error changes nothing: the refusal stands
// without its record.
func (j *judge) record(e Entry) {
	if j.settings.Log == "" {
		return
	}
	e.Reason = text.Short(e.Reason, maxReason)
	line, err := marshal(e)
	if err != nil {
		return
	}
	f, err := os.OpenFile(j.settings.Log, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Size() < MaxLog-int64(len(line)) {
		_, _ = f.Write(line)
	}
}

// ReadLog reads the entries of a log. Lines that are no entries are left out.
func ReadLog(data []byte) []Entry {
	var out []Entry
	for line := range bytes.Lines(data) {
		var e Entry
		if json.Unmarshal(line, &e) == nil && e.Hook != "" {
			out = append(out, e)
		}
	}
	return out
}

// untold returns the last refusals in the file list beyond the offset in the file
// told, and stores the new offset. With skip it only stores the offset. Hooks of
// parallel calls take turns. On any error there is nothing to tell: the program
// reported the denied operation itself.
func untold(list, told string, skip bool) []string {
	state, err := os.OpenFile(told, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil
	}
	defer state.Close()
	if unix.Flock(int(state.Fd()), unix.LOCK_EX) != nil {
		return nil
	}
	number, _ := io.ReadAll(io.LimitReader(state, 20))
	offset, _ := strconv.ParseInt(string(number), 10, 64)
	f, err := os.Open(list)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == offset {
		return nil
	}
	size := info.Size()
	if err := state.Truncate(0); err != nil {
		return nil
	}
	if _, err := state.WriteAt([]byte(strconv.FormatInt(size, 10)), 0); err != nil || skip {
		return nil
	}
	from := max(offset, size-maxUntold)
	if offset < 0 || offset > size {
		from = max(0, size-maxUntold)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return nil
	}
	return lastRefusals(string(data))
}

// lastRefusals returns the lines of the last refusals of a list.
func lastRefusals(list string) []string {
	var out []string
	n := 0
	lines := strings.Split(strings.TrimSuffix(list, "\n"), "\n")
	for _, line := range slices.Backward(lines) {
		out = append(out, text.Visible(line))
		if strings.HasPrefix(line, "agentsh: denied: ") {
			if n++; n == maxTold {
				break
			}
		}
	}
	slices.Reverse(out)
	return out
}
