package attach

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"agentsh/controller/record"
	"agentsh/internal/channel"
	"agentsh/internal/statedir"
)

// ErrNoSandbox reports that there is no sandbox with the name.
var ErrNoSandbox = errors.New("no such sandbox")

// Find finds the run of a sandbox by the sandbox's id, by a unique beginning of
// the id, or by the name [record.Latest].
func Find(state statedir.Dir, name string) (record.Run, error) {
	all, failed := List(state) // an unreadable record does not hide the others
	var found []record.Run
	for _, one := range all {
		switch {
		case one.Sandbox == name, name == record.Latest:
			return one, nil
		case name != "" && strings.HasPrefix(one.Sandbox, name):
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return record.Run{}, errors.Join(fmt.Errorf("%w: %.64q", ErrNoSandbox, name), failed)
	case 1:
		return found[0], nil
	}
	return record.Run{}, fmt.Errorf("%d sandboxes begin with %.64q: %s and %s", len(found), name, found[0].Sandbox, found[1].Sandbox)
}

// List lists the running runs that have a sandbox, the newest first. The error
// names records that cannot be read.
func List(state statedir.Dir) ([]record.Run, error) {
	all, err := record.List(state)
	var out []record.Run
	for _, one := range all {
		if one.Live && one.Sandbox != "" {
			out = append(out, one)
		}
	}
	return out, err
}

// Dial connects to the sandbox of a running run. The caller closes the client.
func Dial(ctx context.Context, run record.Run, build string) (*channel.Client, error) {
	dir, address, err := socketAddress(run.Path)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	defer dir.Close()
	var k keys
	err = run.ReadJSON(keysFile, &k)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sandbox %s is not ready yet, or is ending", run.Sandbox)
	}
	if err != nil {
		return nil, err
	}
	conn, err := channel.Dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	client, err := channel.NewClient(ctx, conn, channel.ClientConfig{Key: k.Key, HostKey: k.HostKey, Build: build})
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", run.Sandbox, err)
	}
	return client, nil
}

// Actions lists the operators' actions in the sandbox of a run.
func Actions(run record.Run) ([]Action, error) {
	file := filepath.Join(run.Path, actionsFile)
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Action
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxActions)
	for lines.Scan() {
		var a Action
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return out, fmt.Errorf("read %s: line %d: %w", file, len(out)+1, err)
		}
		out = append(out, a)
	}
	if err := lines.Err(); err != nil {
		return out, fmt.Errorf("read %s: %w", file, err)
	}
	return out, nil
}
