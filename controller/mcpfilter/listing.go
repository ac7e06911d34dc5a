package mcpfilter

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Bounds of a list of tools.
const (
	maxPages = 100
	maxTools = 1000
	maxList  = 8 << 20       // bytes of all definitions
	maxNames = 10 * maxTools // that are known, of all lists since the server started
)

// Reasons for which a tool is refused. They stand in the audit log.
const (
	reasonChanged   = "its definition is not the pinned one"
	reasonUnpinned  = "its definition is not pinned"
	reasonRedefined = "its definition has changed since the server started"
	reasonTwice     = "the server lists it twice"
	reasonMany      = "the server has listed too many tools since it started"
	reasonAllow     = "the harness does not allow it"
	reasonUnknown   = "the server does not list it"
)

// listing is what the filter knows of the server's tools.
type listing struct {
	asking sync.Mutex // one list at a time; also guards what follows
	fresh  bool
	tools  []Definition      // that the agent may use
	reason map[string]string // why the others are refused
	first  map[string]string // digests that were seen first, where nothing is pinned
	told   map[string]bool   // refused definitions that were reported, with the reason
	stale  sync.Mutex        // guards changed
	change bool              // the server said so
}

func (l *listing) changed() {
	l.stale.Lock()
	l.change = true
	l.stale.Unlock()
}

// takeChange reports whether the list has changed since the last call.
func (l *listing) takeChange() bool {
	l.stale.Lock()
	defer l.stale.Unlock()
	was := l.change
	l.change = false
	return was
}

// list answers with the tools that the agent may use. It is one page, whatever the server's are.
func (f *filter) list(r *request, _ object) {
	f.mu.Lock()
	f.told = false
	f.mu.Unlock()
	f.known.asking.Lock()
	err := f.refresh()
	tools := make([]json.RawMessage, 0, len(f.known.tools))
	for _, d := range f.known.tools {
		tools = append(tools, d.Text)
	}
	f.known.asking.Unlock()
	if err != nil {
		f.end(r, failure(r.id, codeOurs, err.Error()))
		return
	}
	f.end(r, success(r.id, map[string]any{"tools": tools}))
}

// verdict says why a tool is refused; empty: it is allowed. It knows the definition of the tool before
// any call of it.
func (f *filter) verdict(tool string) (string, error) {
	if !f.server.allows(tool) {
		return reasonAllow, nil
	}
	f.known.asking.Lock()
	defer f.known.asking.Unlock()
	if changed := f.known.takeChange(); changed || !f.known.fresh {
		if err := f.refresh(); err != nil {
			return "", err
		}
	}
	if reason, has := f.known.reason[tool]; has {
		return reason, nil
	}
	for _, d := range f.known.tools {
		if d.Name == tool {
			return "", nil
		}
	}
	return reasonUnknown, nil
}

// refresh asks the server for its tools and judges each definition. The caller holds asking.
func (f *filter) refresh() error {
	f.known.takeChange()
	f.known.fresh, f.known.tools, f.known.reason = false, nil, map[string]string{}
	all, err := f.pages()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	var kept []Definition
	for _, d := range all {
		if !f.server.allows(d.Name) {
			continue
		}
		reason := f.pinned(d)
		if seen[d.Name] {
			reason = reasonTwice
		}
		seen[d.Name] = true
		if reason == "" {
			kept = append(kept, d)
			continue
		}
		f.known.reason[d.Name] = reason
		if key := d.SHA256 + reason; !f.known.told[key] && len(f.known.told) < maxTools {
			f.known.told[key] = true
			f.report(d, reason)
			_ = f.judge(d.Name, reason) // the audit log has it
		}
	}
	for _, d := range kept {
		if f.known.reason[d.Name] == "" {
			f.known.tools = append(f.known.tools, d)
		}
	}
	f.known.fresh = true
	return nil
}

// pinned says why a definition is refused; empty: it is not.
func (f *filter) pinned(d Definition) string {
	if f.server.Pinned == nil {
		first, has := f.known.first[d.Name]
		switch {
		case has && first != d.SHA256:
			return reasonRedefined
		case !has && len(f.known.first) == maxNames:
			return reasonMany
		}
		f.known.first[d.Name] = d.SHA256
		return ""
	}
	digest, has := f.server.Pinned[d.Name]
	switch {
	case !has:
		return reasonUnpinned
	case digest != d.SHA256:
		return reasonChanged
	}
	return ""
}

// pages asks for all pages of the server's list. Definitions that cannot be read are left out: no agent
// can name them.
func (f *filter) pages() ([]Definition, error) {
	var all []Definition
	size, cursor := 0, ""
	for range maxPages {
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		var page struct {
			Tools []json.RawMessage `json:"tools"`
			Next  string            `json:"nextCursor"`
		}
		m, err := f.await("tools/list", params)
		if err != nil {
			return nil, err
		}
		if m.result == nil || json.Unmarshal(m.result, &page) != nil {
			return nil, errors.New("the server does not list its tools")
		}
		for _, raw := range page.Tools {
			if size += len(raw); size > maxList || len(all) == maxTools {
				return nil, fmt.Errorf("the server lists more than %d tools, or more than %d MiB", maxTools, maxList>>20)
			}
			if d, err := NewDefinition(raw); err == nil {
				all = append(all, d)
			}
		}
		if cursor = page.Next; cursor == "" {
			return all, nil
		}
	}
	return nil, fmt.Errorf("the server's list of tools has more than %d pages", maxPages)
}

// await asks the server for something of the filter's own.
func (f *filter) await(method string, params map[string]any) (message, error) {
	answer := make(chan message, 1)
	r := &request{result: func(m message) { answer <- m }}
	if err := f.ask(r, method, params); err != nil {
		return message{}, err
	}
	limit := time.NewTimer(listTimeout)
	defer limit.Stop()
	select {
	case m := <-answer:
		return m, nil
	case <-f.ended:
		return message{}, errors.New("the server has ended")
	case <-limit.C:
		f.mu.Lock()
		delete(f.pending, r.own)
		f.mu.Unlock()
		return message{}, fmt.Errorf("the server does not answer %s", method)
	}
}

// list asks a started server for the definitions of all its tools.
func list(s Server, server io.ReadWriter) ([]Definition, error) {
	agent, far := net.Pipe()
	defer func() { _ = far.Close() }() // nobody reads it
	f := newFilter(s, agent, nil, nil)
	ended := make(chan error, 1)
	go f.feed(server) // ends with f.ended
	go func() {
		err := f.readServer(bufio.NewReader(server))
		close(f.ended)
		ended <- err
	}()
	go func() { _, _ = io.Copy(io.Discard, far) }() // ends with far
	_, err := f.await("initialize", map[string]any{
		"protocolVersion": newestVersion, "capabilities": struct{}{}, "clientInfo": map[string]any{"name": "agentsh", "version": "1"},
	})
	if err == nil {
		err = f.send(map[string]any{"method": "notifications/initialized"})
	}
	var all []Definition
	if err == nil {
		all, err = f.pages()
	}
	select {
	case why := <-ended:
		err = errors.Join(err, fmt.Errorf("server %s: %w", s.Name, why))
	default:
	}
	return all, err
}
