// Package boxes works in sandboxes for programs: graders, evaluations, scripts. [Spec]
// describes a sandbox in JSON, and [Server] serves sandboxes by a protocol over a stream. The
// documentation of both is doc/sandboxes.md.
//
// copy.go and archive.go move files, command.go runs commands, protocol.go has the messages
// of the protocol and methods.go its methods.
package boxes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentsh/controller"
	"agentsh/internal/project"
	"agentsh/internal/statedir"
)

// Spec describes a new sandbox. Paths are paths of this machine, absolute or relative to the current
// directory.
type Spec struct {
	Harness string `json:"harness,omitempty"` // file; or Policy
	Policy  string `json:"policy,omitempty"`  // file, or the name of a policy of the packages
	Repo    string `json:"repo,omitempty"`    // git repository whose last commit is in the sandbox; empty: none
	From    string `json:"from,omitempty"`    // file of a saved sandbox, whose files are put into this one

	AllowDirty bool `json:"allow_dirty,omitempty"` // Repo may have changes that are not committed

	Backend    string `json:"backend,omitempty"`
	Connect    string `json:"connect,omitempty"`
	ConnectKey string `json:"connect_key,omitempty"`
	Image      string `json:"image,omitempty"`

	// These belong to Policy: a harness has its own.
	Env       map[string]string `json:"env,omitempty"` // of every command; ${NAME} is a variable of this machine
	Files     []File            `json:"files,omitempty"`
	Providers []string          `json:"providers,omitempty"`
	Container json.RawMessage   `json:"container,omitempty"` // as in a harness
	Degraded  []string          `json:"degraded,omitempty"`
	Require   []string          `json:"require,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"`
	IdleSeconds int64             `json:"idle_seconds,omitempty"` // it ends when nobody has used it for that long
	// LeaseSeconds is how long a sandbox elsewhere outlives a broken stream, and the program that holds it; 0: the
	// default of the backend.
	LeaseSeconds int64 `json:"lease_seconds,omitempty"`
}

// File is a file of this machine that is delivered into a sandbox.
type File struct {
	Src  string `json:"src"`
	Dest string `json:"dest"`
}

// LongestIdle bounds [Spec.IdleSeconds].
const LongestIdle = 7 * 24 * time.Hour

// Bounds of a specification.
const (
	maxSpec   = 4 << 20 // bytes
	maxLabels = 64
	maxLabel  = 200 // bytes of a name or a value
)

// ReadSpec reads a specification strictly.
func ReadSpec(r io.Reader) (Spec, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSpec+1))
	if err == nil && len(data) > maxSpec {
		err = fmt.Errorf("more than %d bytes", maxSpec)
	}
	var s Spec
	if err == nil {
		err = strictly(data, &s)
	}
	if err != nil {
		return s, fmt.Errorf("specification of the sandbox: %w", err)
	}
	return s, nil
}

// maxCommand bounds a command in JSON, in bytes.
const maxCommand = 64 << 20

// ReadCommand reads a command strictly.
func ReadCommand(r io.Reader) (Command, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxCommand+1))
	if err == nil && len(data) > maxCommand {
		err = fmt.Errorf("more than %d bytes", maxCommand)
	}
	var c Command
	if err == nil {
		err = strictly(data, &c)
	}
	if err != nil {
		return c, fmt.Errorf("command: %w", err)
	}
	return c, nil
}

// strictly decodes one JSON value without unknown keys.
func strictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// Check rejects combinations that mean nothing.
func (s Spec) Check() error {
	switch {
	case (s.Harness == "") == (s.Policy == ""):
		return errors.New("name a policy or a harness: --policy FILE or FILE, and the keys policy or harness of a specification")
	case s.IdleSeconds < 0 || s.IdleSeconds > int64(LongestIdle/time.Second):
		return fmt.Errorf("idle_seconds: %d: 1 to %d", s.IdleSeconds, int64(LongestIdle/time.Second))
	case len(s.Labels) > maxLabels:
		return fmt.Errorf("labels: at most %d", maxLabels)
	}
	for name, value := range s.Labels {
		if name == "" || len(name) > maxLabel || len(value) > maxLabel || strings.ContainsAny(name, "=\n") {
			return fmt.Errorf("labels: %.40q: a name without =, and at most %d bytes each", name, maxLabel)
		}
	}
	if s.Harness == "" {
		return nil
	}
	for key, set := range map[string]bool{
		"env": len(s.Env) > 0, "files": len(s.Files) > 0, "providers": len(s.Providers) > 0, "container": len(s.Container) > 0,
		"degraded": len(s.Degraded) > 0, "require": len(s.Require) > 0, "image": s.Image != "",
	} {
		if set {
			return fmt.Errorf("%s: write it in the harness %s", key, s.Harness)
		}
	}
	return nil
}

// HarnessFile is the file of the harness. One that Policy stands for is made in a directory that
// remove removes; its root is /. Its agent and its role have the name kind, sandbox or mcp. [Plain] takes the file out of messages.
func (s Spec) HarnessFile(state statedir.Dir, kind string) (file string, remove func(), err error) {
	if s.Harness != "" {
		return s.Harness, func() {}, nil
	}
	policy, err := policyFile(s.Policy)
	if err != nil {
		return "", nil, err
	}
	made, err := state.Temporary(filepath.Join(os.TempDir(), "agentctl-"+kind+"-"))
	if err != nil {
		return "", nil, controller.HostFailure("harness", err)
	}
	remove = func() { _ = made.Remove() } // what cannot be removed is swept later
	dir := made.Path
	if err := os.Mkdir(dir, 0o700); err != nil {
		remove()
		return "", nil, controller.HostFailure("harness", err)
	}
	agent := filepath.Join(dir, kind+".md")
	h := map[string]any{
		"agent": below(agent), "policy": below(policy), "runtime": "command", "command": []string{"true"}, "role": kind,
		"timeout_minutes": 24 * 60,
	}
	if err := s.into(h); err != nil {
		remove()
		return "", nil, err
	}
	data, err := json.Marshal(h)
	if err != nil {
		remove()
		return "", nil, err
	}
	file = filepath.Join(dir, kind+".yaml")
	if err := errors.Join(os.WriteFile(file, data, 0o600), os.WriteFile(agent, []byte("# "+kind+"\n"), 0o600)); err != nil {
		remove()
		return "", nil, controller.HostFailure("harness", err)
	}
	return file, remove, nil
}

// into adds settings to a harness.
func (s Spec) into(h map[string]any) error {
	if len(s.Env) > 0 {
		h["env"] = map[string]any{"sandbox": s.Env}
	}
	var files []map[string]any
	for _, f := range s.Files {
		src, err := filepath.Abs(f.Src)
		if err != nil {
			return err
		}
		files = append(files, map[string]any{"src": src, "dest": f.Dest})
	}
	var providers []string
	for _, name := range s.Providers {
		file, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		providers = append(providers, below(file))
	}
	for key, list := range map[string]any{"host_files": files, "providers": providers, "degraded": s.Degraded, "require": s.Require} {
		if data, _ := json.Marshal(list); string(data) != "null" { // it has texts only
			h[key] = list
		}
	}
	if len(s.Container) > 0 {
		h["container"] = s.Container
	}
	if s.Image != "" {
		h["image"] = s.Image
	}
	return nil
}

// below is an absolute path relative to /.
func below(file string) string { return strings.TrimPrefix(file, "/") }

// policyFile is the file of a policy, or of the packages' one of a name.
func policyFile(name string) (string, error) {
	file, err := project.Named(name)
	if err == nil {
		file, err = filepath.Abs(file)
	}
	if err == nil {
		_, err = os.Stat(file)
	}
	if err != nil {
		err = fmt.Errorf("policy: %w", err)
		if hint := project.MissingHint(name, err); hint != "" {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		return "", err
	}
	return file, nil
}
