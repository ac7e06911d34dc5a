package mcpfilter

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"
)

// readServer reads the server's messages until it ends.
func (f *filter) readServer(from *bufio.Reader) error {
	var buffer []byte
	for {
		line, err := readLine(from, buffer)
		if errors.Is(err, io.EOF) {
			return errors.New("it has ended")
		}
		if err != nil {
			return err
		}
		if buffer = line; len(line) == 0 {
			continue
		}
		m, err := parseMessage(line)
		useful := false
		switch {
		case err != nil:
		case m.method == "":
			useful = f.answered(m)
		case m.id == nil:
			f.announced(m)
			useful = true
		default:
			useful = f.wanted(m)
		}
		if useful {
			continue
		}
		if f.useless++; f.useless > maxUseless {
			return errUseless
		}
	}
}

// answered handles a response. It reports whether a request waits for it.
func (f *filter) answered(m message) bool {
	own, err := strconv.ParseInt(string(m.id), 10, 64)
	if err != nil {
		return false
	}
	f.mu.Lock()
	r := f.pending[own]
	delete(f.pending, own)
	f.mu.Unlock()
	if r == nil {
		return false
	}
	r.result(m)
	return true
}

// announced handles a notification. Messages for logs stay here.
func (f *filter) announced(m message) {
	switch m.method {
	case "notifications/tools/list_changed":
		f.known.changed()
		f.mu.Lock()
		tell := !f.told
		f.told = true
		f.mu.Unlock()
		if tell { // again when the agent has asked for the list
			f.out.write(encode(map[string]any{"method": m.method}))
		}
	case "notifications/progress":
		f.progressed(m)
	}
}

// progressed passes a report of progress on. The server's text stays out: nothing pins it.
func (f *filter) progressed(m message) {
	var p struct {
		Token    int64    `json:"progressToken"`
		Progress float64  `json:"progress"`
		Total    *float64 `json:"total"`
	}
	if json.Unmarshal(m.params, &p) != nil {
		return
	}
	f.mu.Lock()
	r, now := f.pending[p.Token], time.Now()
	pass := r != nil && r.token != nil && now.Sub(r.progress) >= tick
	if pass {
		r.progress = now
	}
	f.mu.Unlock()
	if !pass {
		return
	}
	params := map[string]any{"progressToken": r.token, "progress": p.Progress}
	if p.Total != nil {
		params["total"] = *p.Total
	}
	f.out.write(encode(map[string]any{"method": m.method, "params": params}))
}

// wanted answers a request of the server. It may ask nothing of the agent: its directories, its model and
// its user are not the server's.
func (f *filter) wanted(m message) bool {
	if m.method == "ping" {
		return f.send(map[string]any{"id": m.id, "result": struct{}{}}) == nil
	}
	_ = f.send(map[string]any{"id": m.id, "error": map[string]any{"code": codeNoMethod, "message": "the agent is not asked"}})
	return false
}
