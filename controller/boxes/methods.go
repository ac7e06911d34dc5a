package boxes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// request is one request of a client.
type request struct {
	id     json.RawMessage
	params json.RawMessage
	room   *room // of the answer
}

// errParams is in the chain of errors about parameters.
var errParams = errors.New("params")

// read decodes the parameters.
func (r request) read(into any) error {
	if len(r.params) == 0 {
		r.params = json.RawMessage("{}")
	}
	if err := strictly(r.params, into); err != nil {
		return fmt.Errorf("%w: %w", errParams, err)
	}
	return nil
}

// methods are the methods of the protocol.
var methods = map[string]func(*Server, context.Context, request) (any, error){
	"hello":     (*Server).hello,
	"create":    (*Server).create,
	"list":      (*Server).list,
	"delete":    (*Server).delete,
	"exec":      inBox(exec),
	"read":      inBox(read),
	"write":     inBox(write),
	"remove":    inBox(remove),
	"files":     inBox(files),
	"copy_in":   inBox(copyIn),
	"copy_out":  inBox(copyOut),
	"changes":   inBox(changes),
	"snapshot":  inBox(snapshot),
	"snapshots": inBox(snapshots),
	"rollback":  inBox(rollback),
	"save":      inBox(save),
}

// none is an empty result.
type none struct{}

func (s *Server) hello(context.Context, request) (any, error) {
	return struct {
		Protocol int    `json:"protocol"`
		Version  string `json:"version"`
	}{Protocol, s.cfg.Version}, nil
}

// Made describes a sandbox.
type Made struct {
	Sandbox  string            `json:"sandbox"`
	Dir      string            `json:"dir"` // where commands start
	Backend  string            `json:"backend"`
	Engine   string            `json:"engine,omitempty"`   // what enforces the policy
	Degraded []string          `json:"degraded,omitempty"` // mechanisms that are missing
	Advisory string            `json:"advisory,omitempty"` // rules that nothing enforces
	Labels   map[string]string `json:"labels,omitempty"`
	Record   string            `json:"record"` // directory of its record, with the audit log after its end
}

// NewMade describes a sandbox.
func NewMade(b *Box, backend string, labels map[string]string) Made {
	h := b.Held
	return Made{
		Sandbox: h.ID, Dir: h.Dir, Backend: backend, Engine: h.Hello.Engine, Degraded: h.Hello.Degraded, Advisory: h.Hello.Advisory,
		Labels: labels, Record: h.Path,
	}
}

func (s *Server) create(ctx context.Context, r request) (any, error) {
	var spec Spec
	if err := r.read(&spec); err != nil {
		return nil, err
	}
	if err := spec.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errParams, err)
	}
	o, done, err := s.cfg.Options(spec)
	if err != nil {
		return nil, err
	}
	box, err := Open(ctx, o, spec)
	if err != nil {
		done()
		if spec.Policy != "" {
			err = Plain(err, o.Harness)
		}
		return nil, err
	}
	s.state.Lock()
	s.boxes[box.Held.ID] = box
	s.state.Unlock()
	s.ends.Go(func() {
		<-box.Done()
		done()
		s.state.Lock()
		mine := s.boxes[box.Held.ID] == box
		delete(s.boxes, box.Held.ID)
		s.state.Unlock()
		if mine { // else the client deletes it
			why := "an operator has deleted it"
			if err := box.Ended(); err != nil {
				why = err.Error()
			}
			s.send(answer{Method: "ended", Params: struct {
				Sandbox string `json:"sandbox"`
				Message string `json:"message"`
			}{box.Held.ID, why}})
		}
	})
	return NewMade(box, o.Backend.Name(), spec.Labels), nil
}

func (s *Server) list(context.Context, request) (any, error) {
	s.state.Lock()
	defer s.state.Unlock()
	names := []string{}
	for id := range s.boxes {
		names = append(names, id)
	}
	slices.Sort(names)
	return struct {
		Sandboxes []string `json:"sandboxes"`
	}{names}, nil
}

// named are the parameters of a method that needs no more than a sandbox.
type named struct {
	Sandbox string `json:"sandbox"`
}

// find finds a sandbox of this client.
func (s *Server) find(id string) (*Box, error) {
	s.state.Lock()
	defer s.state.Unlock()
	if b := s.boxes[id]; b != nil {
		return b, nil
	}
	return nil, fmt.Errorf("there is no sandbox %.64q of this client", id)
}

func (s *Server) delete(ctx context.Context, r request) (any, error) {
	var p named
	if err := r.read(&p); err != nil {
		return nil, err
	}
	b, err := s.find(p.Sandbox)
	if err != nil {
		return nil, err
	}
	s.state.Lock()
	delete(s.boxes, p.Sandbox)
	s.state.Unlock()
	return none{}, b.Close(context.WithoutCancel(ctx))
}

// inBox is a method that works in a sandbox. Its parameters have the field sandbox besides its own.
func inBox[P any](
	do func(context.Context, *Box, P, output) (any, error),
) func(*Server, context.Context, request) (any, error) {
	return func(s *Server, ctx context.Context, r request) (any, error) {
		var all map[string]json.RawMessage
		if err := json.Unmarshal(r.params, &all); err != nil {
			return nil, fmt.Errorf("%w: %w", errParams, err)
		}
		var id string
		if err := json.Unmarshal(all["sandbox"], &id); err != nil {
			return nil, fmt.Errorf("%w: sandbox: the name of a sandbox", errParams)
		}
		delete(all, "sandbox")
		rest, err := json.Marshal(all)
		if err != nil {
			return nil, err
		}
		var p P
		if err := strictly(rest, &p); err != nil {
			return nil, fmt.Errorf("%w: %w", errParams, err)
		}
		b, err := s.find(id)
		if err != nil {
			return nil, err
		}
		defer b.Use()()
		result, err := do(ctx, b, p, output{s, r.id, r.room})
		return result, b.explain(err)
	}
}

// maxFile bounds a file that is read or written, in bytes.
const maxFile = 64 << 20

type readParams struct {
	Path string `json:"path"`
	Max  int64  `json:"max_bytes,omitempty"`
}

// content is the content of a file: text if it is UTF-8.
type content struct {
	Text string `json:"text,omitempty"`
	Data []byte `json:"data_base64,omitempty"`
}

func read(ctx context.Context, b *Box, p readParams, out output) (any, error) {
	if p.Max < 0 || p.Max > maxFile {
		return nil, fmt.Errorf("%w: max_bytes: 0 to %d", errParams, maxFile)
	}
	if p.Max == 0 {
		p.Max = maxFile
	}
	data, err := b.Held.Box.ReadFile(ctx, b.path(p.Path), min(p.Max, smallFile))
	if of := (*wire.Error)(nil); errors.As(err, &of) && of.Code == wire.CodeLimit && p.Max > smallFile {
		if err := out.room.turn(ctx); err != nil {
			return nil, err
		}
		data, err = b.Held.Box.ReadFile(ctx, b.path(p.Path), p.Max)
	}
	if err != nil {
		return nil, err
	}
	if asText(data) {
		return content{Text: string(data)}, nil
	}
	return content{Data: data}, nil
}

// path is an absolute path in the sandbox.
func (b *Box) path(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(b.Held.Dir, name)
}

type writeParams struct {
	content
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"` // permission bits; 0: 0644
}

func write(ctx context.Context, b *Box, p writeParams, _ output) (any, error) {
	data := p.Data
	if p.Text != "" {
		if len(data) > 0 {
			return nil, fmt.Errorf("%w: write text or data_base64", errParams)
		}
		data = []byte(p.Text)
	}
	mode := fs.FileMode(p.Mode) & fs.ModePerm
	if mode == 0 {
		mode = 0o644
	}
	name := b.path(p.Path)
	if m, can := b.Held.Box.(interface {
		Mkdir(ctx context.Context, name string, mode fs.FileMode) error
	}); can {
		if err := m.Mkdir(ctx, path.Dir(name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return none{}, b.Held.Box.WriteFile(ctx, name, data, mode)
}

type removeParams struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"`
}

func remove(ctx context.Context, b *Box, p removeParams, _ output) (any, error) {
	return none{}, b.Held.Box.Remove(ctx, b.path(p.Path), p.Recursive)
}

type pathParams struct {
	Path string `json:"path"`
}

// file is one file of a directory.
type file struct {
	Name  wire.Name `json:"name"`
	Type  string    `json:"type"` // file, dir, symlink, other
	Size  int64     `json:"size"`
	Mode  uint32    `json:"mode"`
	Mtime time.Time `json:"mtime"`
}

func files(ctx context.Context, b *Box, p pathParams, out output) (any, error) {
	list, err := b.Held.Box.List(ctx, b.path(p.Path))
	if err != nil {
		return nil, err
	}
	all := []file{}
	for _, f := range list {
		if err := out.room.take(entryRoom + len(f.Name)); err != nil {
			return nil, err
		}
		all = append(all, file{f.Name, f.Type, f.Size, f.Mode, f.ModTime})
	}
	return struct {
		Files []file `json:"files"`
	}{all}, nil
}

type copyParams struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
	Git bool   `json:"git,omitempty"`
}

// copied are files that did not travel.
type copied struct {
	Skipped []string `json:"skipped,omitempty"`
}

func copyIn(ctx context.Context, b *Box, p copyParams, _ output) (any, error) {
	c := &Copier{Box: b.Held.Box, State: b.State, Git: p.Git}
	err := c.In(ctx, p.Src, keepSlash(b.path(p.Dst), p.Dst))
	return copied{c.Skipped}, err
}

func copyOut(ctx context.Context, b *Box, p copyParams, _ output) (any, error) {
	c := &Copier{Box: b.Held.Box, State: b.State, Git: p.Git}
	err := c.Out(ctx, b.path(p.Src), p.Dst)
	return copied{c.Skipped}, err
}

// keepSlash keeps the slash at the end of a name.
func keepSlash(clean, name string) string {
	if name != "" && name[len(name)-1] == '/' {
		return clean + "/"
	}
	return clean
}

type changesParams struct {
	Lines bool `json:"lines,omitempty"`
}

// Change is a change of a file since the sandbox was made, or since a snapshot.
type Change struct {
	wire.Change
	Lines   string `json:"lines,omitempty"`   // as a unified diff
	Without string `json:"without,omitempty"` // why there are no lines
}

func changes(ctx context.Context, b *Box, p changesParams, out output) (any, error) {
	var list []Change
	var err error
	keep := out.room.changes(&list)
	if p.Lines {
		err = History{b.Held.Box}.changes(ctx, wire.HistoryRequest{Changes: true}, keep)
	} else {
		err = b.Held.Box.EachChange(ctx, func(c wire.Change) error { return keep(Change{Change: c}) })
	}
	return changed(list), err
}

// changed is the result of a method with changes.
func changed(list []Change) any {
	return struct {
		Changes []Change `json:"changes"`
	}{append([]Change{}, list...)}
}

// History has the states of the files of a sandbox.
type History struct{ Box sandbox.Executor }

// ask sends a request about states.
func (h History) ask(ctx context.Context, r wire.HistoryRequest, fn func(wire.HistoryEntry) error) error {
	of, has := h.Box.(interface {
		History(ctx context.Context, r wire.HistoryRequest, fn func(wire.HistoryEntry) error) error
	})
	if !has {
		return errors.New("the sandbox remembers no states of its files")
	}
	return of.History(ctx, r, fn)
}

func (h History) changes(ctx context.Context, r wire.HistoryRequest, each func(Change) error) error {
	return h.ask(ctx, r, func(e wire.HistoryEntry) error {
		if e.Change == nil {
			return nil
		}
		return each(Change{Change: *e.Change, Lines: e.Lines, Without: e.Without})
	})
}

func (h History) checkpoints(ctx context.Context, r wire.HistoryRequest) (list []wire.Checkpoint, err error) {
	err = h.ask(ctx, r, func(e wire.HistoryEntry) error {
		if e.Checkpoint != nil {
			list = append(list, *e.Checkpoint)
		}
		return nil
	})
	return list, err
}

// Create remembers the files as they are.
func (h History) Create(ctx context.Context, name string) (wire.Checkpoint, error) {
	list, err := h.checkpoints(ctx, wire.HistoryRequest{Create: true, Name: name})
	if err == nil && len(list) != 1 {
		err = errors.New("the supervisor names no snapshot")
	}
	if err != nil {
		return wire.Checkpoint{}, err
	}
	return list[0], nil
}

// List returns what is remembered, oldest first.
func (h History) List(ctx context.Context) ([]wire.Checkpoint, error) {
	return h.checkpoints(ctx, wire.HistoryRequest{List: true})
}

// Rollback makes the files what they were, and calls each with what changed: there may be a million files.
func (h History) Rollback(ctx context.Context, id string, each func(Change) error) error {
	return h.changes(ctx, wire.HistoryRequest{Rollback: id}, each)
}

// Forget forgets snapshots.
func (h History) Forget(ctx context.Context, ids ...string) error {
	return h.ask(ctx, wire.HistoryRequest{Delete: ids}, func(wire.HistoryEntry) error { return nil })
}

type snapshotParams struct {
	Name string `json:"name,omitempty"`
}

func snapshot(ctx context.Context, b *Box, p snapshotParams, _ output) (any, error) {
	return History{Box: b.Held.Box}.Create(ctx, p.Name)
}

func snapshots(ctx context.Context, b *Box, _ none, _ output) (any, error) {
	list, err := History{Box: b.Held.Box}.List(ctx)
	return struct {
		Snapshots []wire.Checkpoint `json:"snapshots"`
	}{append([]wire.Checkpoint{}, list...)}, err
}

type rollbackParams struct {
	ID string `json:"id"`
}

func rollback(ctx context.Context, b *Box, p rollbackParams, out output) (any, error) {
	if p.ID == "" {
		return nil, fmt.Errorf("%w: id: that of a snapshot", errParams)
	}
	var list []Change
	err := History{b.Held.Box}.Rollback(ctx, p.ID, out.room.changes(&list))
	if errors.Is(err, errRoom) {
		err = fmt.Errorf("the files are what they were at %.40q, but what changed does not fit into the answer: %w", p.ID, err)
	}
	return changed(list), err
}

type saveParams struct {
	File string `json:"file"`
}

func save(ctx context.Context, b *Box, p saveParams, _ output) (any, error) {
	size, err := Save(ctx, b.Held.Box, b.State, p.File)
	return struct {
		Bytes int64 `json:"bytes"`
	}{size}, err
}
