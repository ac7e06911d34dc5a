package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"time"
	"unicode/utf8"
)

// Spec describes a new sandbox. Policy or Harness is required. Paths are paths of this machine.
type Spec struct {
	Policy  string `json:"policy,omitempty"`  // file, or the name of a policy of the packages
	Harness string `json:"harness,omitempty"` // file, in place of a policy and what belongs to it
	Repo    string `json:"repo,omitempty"`    // git repository whose last commit is in the sandbox
	From    string `json:"from,omitempty"`    // file of [Sandbox.Save]: its files are in the sandbox

	AllowDirty bool `json:"allow_dirty,omitempty"` // Repo may have changes that are not committed

	Backend    string `json:"backend,omitempty"` // local, ssh, exec, socket, docker and others; empty: local
	Connect    string `json:"connect,omitempty"`
	ConnectKey string `json:"connect_key,omitempty"`

	Image     string            `json:"image,omitempty"`
	Env       map[string]string `json:"env,omitempty"` // of every command
	Files     []File            `json:"files,omitempty"`
	Providers []string          `json:"providers,omitempty"` // files of providers of credentials
	Container json.RawMessage   `json:"container,omitempty"` // as container of a harness
	Degraded  []string          `json:"degraded,omitempty"`
	Require   []string          `json:"require,omitempty"`

	Labels       map[string]string `json:"labels,omitempty"`
	IdleSeconds  int64             `json:"idle_seconds,omitempty"`  // it ends when nobody has used it for that long; 0: with the client
	LeaseSeconds int64             `json:"lease_seconds,omitempty"` // how long one elsewhere outlives a broken stream
}

// File is a file of this machine that a new sandbox gets.
type File struct {
	Src  string `json:"src"`
	Dest string `json:"dest"` // below /sandbox or /tmp
}

// Sandbox is one sandbox. It is safe for concurrent use.
type Sandbox struct {
	ID       string   `json:"sandbox"`
	Dir      string   `json:"dir"` // where commands start, and to which paths are relative
	Backend  string   `json:"backend"`
	Engine   string   `json:"engine"`   // what enforces the policy
	Degraded []string `json:"degraded"` // mechanisms that are missing
	Record   string   `json:"record"`   // directory of this machine, with the audit log after the end

	client *Client
}

// Create makes a sandbox.
func (c *Client) Create(ctx context.Context, s Spec) (*Sandbox, error) {
	box := &Sandbox{client: c}
	err := c.ask(ctx, "create", s, box, nil)
	if err == nil {
		return box, nil
	}
	if box.ID != "" { // it was made when ctx ended
		limited, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
		defer stop()
		err = errors.Join(err, box.Delete(limited))
	}
	return nil, err
}

// params are the parameters of a method for this sandbox.
func (s *Sandbox) params(more map[string]any) map[string]any {
	out := map[string]any{"sandbox": s.ID}
	for name, value := range more {
		out[name] = value
	}
	return out
}

func (s *Sandbox) ask(ctx context.Context, method string, params map[string]any, result any) error {
	return s.client.ask(ctx, method, s.params(params), result, nil)
}

// Delete deletes the sandbox with its files. Its record stays.
func (s *Sandbox) Delete(ctx context.Context) error { return s.ask(ctx, "delete", nil, nil) }

// Command is one command. Argv or Script is required.
type Command struct {
	Argv      []string          // program and arguments
	Script    string            // for bash, or sh where there is no bash
	Dir       string            // empty: that of the sandbox
	Env       map[string]string // subject to env_policy of the policy
	Stdin     []byte
	Timeout   time.Duration // 0: none
	MaxOutput int           // bytes of each output in the result; 0: 1 MiB
	// Stdout and Stderr get the output as it is written; the result has none then. A command whose output is
	// not taken waits; other commands go on.
	Stdout, Stderr io.Writer
}

// Result is the end of a command.
type Result struct {
	ExitCode  int    // 124 timeout, 126 denied, 127 not found, 128 and the number of a signal
	End       string // exited, signaled, deadline, denied, spawn_failed, oom, lost
	Message   string
	Hint      string
	Stdout    []byte
	Stderr    []byte
	Truncated bool      // the end of an output is missing
	Refusals  []Refusal // what the policy refused
	Dropped   []string  // variables of Env that the command did not get, each with the reason
	Duration  time.Duration
	CPU       time.Duration
	MaxRSS    int64 // bytes
}

// Refusal is something that the policy refused to a command.
type Refusal struct {
	What    string `json:"what"`
	Rule    string `json:"rule"`
	At      string `json:"at"` // file:line:column of the rule
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// Run runs a command and waits for its end. An exit status other than 0 is no error. The end of ctx ends
// the command with everything that it started; a Write that has not returned by then goes on.
func (s *Sandbox) Run(ctx context.Context, c Command) (Result, error) {
	params := s.params(map[string]any{"cwd": c.Dir, "timeout_seconds": c.Timeout.Seconds(), "max_output_bytes": c.MaxOutput})
	if len(c.Argv) > 0 {
		params["argv"] = c.Argv
	}
	if c.Script != "" {
		params["script"] = c.Script
	}
	if len(c.Env) > 0 {
		params["env"] = c.Env
	}
	if len(c.Stdin) > 0 {
		params["stdin_base64"] = c.Stdin
	}
	var out *output
	if c.Stdout != nil || c.Stderr != nil {
		params["stream"], params["window_bytes"] = true, window
		out = newOutput(c.Stdout, c.Stderr)
	}
	var got struct {
		ExitCode     int       `json:"exit_code"`
		End          string    `json:"end"`
		Message      string    `json:"message"`
		Hint         string    `json:"hint"`
		Stdout       string    `json:"stdout"`
		Stderr       string    `json:"stderr"`
		StdoutBase64 []byte    `json:"stdout_base64"`
		StderrBase64 []byte    `json:"stderr_base64"`
		Truncated    bool      `json:"truncated"`
		Refusals     []Refusal `json:"refusals"`
		Dropped      []string  `json:"dropped"`
		DurationMS   int64     `json:"duration_ms"`
		CPUMS        int64     `json:"cpu_ms"`
		MaxRSS       int64     `json:"max_rss_bytes"`
	}
	if err := s.client.ask(ctx, "exec", params, &got, out); err != nil {
		return Result{}, err
	}
	return Result{
		ExitCode: got.ExitCode, End: got.End, Message: got.Message, Hint: got.Hint, Stdout: either(got.Stdout, got.StdoutBase64),
		Stderr: either(got.Stderr, got.StderrBase64), Truncated: got.Truncated, Refusals: got.Refusals, Dropped: got.Dropped,
		Duration: time.Duration(got.DurationMS) * time.Millisecond, CPU: time.Duration(got.CPUMS) * time.Millisecond, MaxRSS: got.MaxRSS,
	}, nil
}

// either are bytes that stand in JSON as a text, or in base64.
func either(text string, data []byte) []byte {
	if len(data) > 0 {
		return data
	}
	return []byte(text)
}

// ReadFile reads a file of at most 64 MiB.
func (s *Sandbox) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var got struct {
		Text string `json:"text"`
		Data []byte `json:"data_base64"`
	}
	err := s.ask(ctx, "read", map[string]any{"path": name}, &got)
	return either(got.Text, got.Data), err
}

// WriteFile creates or replaces a file of at most 64 MiB. Missing directories are made.
func (s *Sandbox) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	params := map[string]any{"path": name, "mode": uint32(mode.Perm())}
	if utf8.Valid(data) {
		params["text"] = string(data)
	} else {
		params["data_base64"] = data
	}
	return s.ask(ctx, "write", params, nil)
}

// Remove removes a file, or a directory with everything below it.
func (s *Sandbox) Remove(ctx context.Context, name string) error {
	return s.ask(ctx, "remove", map[string]any{"path": name, "recursive": true}, nil)
}

// FileInfo describes a file of a directory.
type FileInfo struct {
	Name  string    `json:"name"`
	Type  string    `json:"type"` // file, dir, symlink, other
	Size  int64     `json:"size"`
	Mode  uint32    `json:"mode"` // permission bits
	Mtime time.Time `json:"mtime"`
}

// ReadDir describes the files of a directory, sorted by name.
func (s *Sandbox) ReadDir(ctx context.Context, name string) ([]FileInfo, error) {
	var got struct {
		Files []FileInfo `json:"files"`
	}
	err := s.ask(ctx, "files", map[string]any{"path": name}, &got)
	return got.Files, err
}

// CopyIn copies a file or a directory of this machine into the sandbox. If dst is a directory there, the copy is
// made in it. Skipped are files that do not travel, each with the reason.
func (s *Sandbox) CopyIn(ctx context.Context, src, dst string) (skipped []string, err error) {
	return s.copy(ctx, "copy_in", src, dst)
}

// CopyOut copies a file or a directory of the sandbox to this machine. The copy appears whole or not at all.
func (s *Sandbox) CopyOut(ctx context.Context, src, dst string) (skipped []string, err error) {
	return s.copy(ctx, "copy_out", src, dst)
}

func (s *Sandbox) copy(ctx context.Context, method, src, dst string) ([]string, error) {
	var got struct {
		Skipped []string `json:"skipped"`
	}
	err := s.ask(ctx, method, map[string]any{"src": src, "dst": dst}, &got)
	return got.Skipped, err
}

// Change is a change of a file.
type Change struct {
	Path  string `json:"path"` // relative to /sandbox
	Kind  string `json:"kind"` // created, modified, deleted, renamed and others
	From  string `json:"from"` // of a file that was renamed
	Lines string `json:"lines"`
}

// Changes are the changes since the sandbox was made, with the lines of text files as unified diffs if lines is
// set.
func (s *Sandbox) Changes(ctx context.Context, lines bool) ([]Change, error) {
	return s.changes(ctx, "changes", map[string]any{"lines": lines})
}

func (s *Sandbox) changes(ctx context.Context, method string, params map[string]any) ([]Change, error) {
	var got struct {
		Changes []Change `json:"changes"`
	}
	err := s.ask(ctx, method, params, &got)
	return got.Changes, err
}

// Snapshot is a state of the files of a sandbox that is remembered.
type Snapshot struct {
	ID    string    `json:"id"`
	Name  string    `json:"name"`
	Time  time.Time `json:"time"`
	Files int       `json:"files"`
	Bytes int64     `json:"bytes"`
}

// Snapshot remembers the files of the sandbox as they are. Commands wait meanwhile.
func (s *Sandbox) Snapshot(ctx context.Context, name string) (one Snapshot, err error) {
	err = s.ask(ctx, "snapshot", map[string]any{"name": name}, &one)
	return one, err
}

// Snapshots are those that are remembered, oldest first.
func (s *Sandbox) Snapshots(ctx context.Context) ([]Snapshot, error) {
	var got struct {
		Snapshots []Snapshot `json:"snapshots"`
	}
	err := s.ask(ctx, "snapshots", nil, &got)
	return got.Snapshots, err
}

// Rollback makes the files what they were at a snapshot, and returns what changed.
func (s *Sandbox) Rollback(ctx context.Context, id string) ([]Change, error) {
	return s.changes(ctx, "rollback", map[string]any{"id": id})
}

// Save saves the workspace and the home of the sandbox in a file of this machine, for [Spec.From].
func (s *Sandbox) Save(ctx context.Context, file string) error {
	return s.ask(ctx, "save", map[string]any{"file": file}, nil)
}
