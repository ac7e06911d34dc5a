package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"agentsh/controller/scan"
)

// Settings configure the hooks. The controller writes them to a file that the
// agent can read and the policy lets nobody change.
type Settings struct {
	Version int               `json:"version"`           // 1
	Program string            `json:"program,omitempty"` // agent program; empty: DefaultProgram
	FailOn  scan.Severity     `json:"fail_on"`           // least severity at which a command is refused
	Allow   []string          `json:"allow,omitempty"`   // tools; a * at the end matches any rest
	Canary  string            `json:"canary,omitempty"`  // planted in the agent's context
	Secrets scan.Fingerprints `json:"secrets,omitempty"` // of the run
	Trace   string            `json:"trace,omitempty"`   // id of the run, shown with every refusal
	Log     string            `json:"log,omitempty"`     // file in which the hooks record what they did; empty: none
	Untold  string            `json:"untold,omitempty"`  // file in which the supervisor lists refusals, see Refusals
	Told    string            `json:"told,omitempty"`    // file that stores how much of Untold was read
}

// maxSettings limits the settings file, in bytes.
const maxSettings = 1 << 20

// minCanary is the least length of a canary, in bytes.
const minCanary = 16

// ReadSettings reads a settings file. Unknown keys are errors.
func ReadSettings(name string) (Settings, error) {
	f, err := os.Open(name)
	if err != nil {
		return Settings{}, fmt.Errorf("settings: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return Settings{}, fmt.Errorf("settings: %w", err)
	}
	if len(data) > maxSettings {
		return Settings{}, fmt.Errorf("settings %s: more than %d bytes", name, maxSettings)
	}
	s, err := parseSettings(data)
	if err != nil {
		return Settings{}, fmt.Errorf("settings %s: %w", name, err)
	}
	return s, nil
}

func parseSettings(data []byte) (Settings, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var s Settings
	if err := d.Decode(&s); err != nil {
		return Settings{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Settings{}, errors.New("more than one value")
	}
	if s.Version != 1 {
		return Settings{}, fmt.Errorf("version %d, this build reads 1", s.Version)
	}
	return s, s.Secrets.Check()
}

// CheckTool returns an error if an entry cannot name a tool of a program.
func CheckTool(agent, entry string) error {
	p, err := Settings{Program: agent}.lookup()
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(entry, "*")
	switch {
	case name == "" || strings.Trim(name, toolChars) != "":
		return fmt.Errorf("tool %.60q: a name, or the beginning of one and *", entry)
	case name == entry && !p.knows(name):
		return fmt.Errorf("tool %.60q is not known", entry)
	}
	return nil
}

// check returns an error if a named hook lacks its settings.
func (s Settings) check(names []string) error {
	canary := slices.Contains(names, CanaryBefore) || slices.Contains(names, CanaryAfter)
	switch {
	case s.Version != 1:
		return errors.New("there are no settings")
	case canary && len(s.Canary) < minCanary:
		return errors.New("settings without a canary")
	case slices.Contains(names, ToolAllowlist) && len(s.Allow) == 0:
		return errors.New("settings without a list of tools")
	case slices.Contains(names, Tirith) && s.FailOn < scan.Medium:
		return errors.New("settings without fail_on")
	case slices.Contains(names, Refusals) && (s.Untold == "" || s.Told == ""):
		return errors.New("settings without the file of refusals")
	}
	return nil
}
