package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stepsFile is a file of the work directory: the steps of a run since its record was written last,
// an [stepLine] a line. So a step costs one write.
const stepsFile = "steps.jsonl"

// stepLine is a step with its place among the steps of the record.
type stepLine struct {
	Number int `json:"number"`
	Step
}

// AddSteps records the steps of a run from a number on, without writing the record again.
func (d *Dir) AddSteps(from int, steps []Step) error {
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for i, s := range steps {
		if err := enc.Encode(stepLine{from + i, s}); err != nil {
			return err
		}
	}
	var err error
	if d.steps == nil {
		d.steps, err = os.OpenFile(filepath.Join(d.Work(), stepsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	}
	if err == nil {
		_, err = d.steps.Write(lines.Bytes())
	}
	if err != nil {
		return fmt.Errorf("write run record: %w", err)
	}
	return nil
}

// withSteps adds the steps that were recorded since the record was written.
func withSteps(dir string, r Record) (Record, error) {
	data, err := os.ReadFile(filepath.Join((&Dir{Path: dir}).Work(), stepsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("read run record: %w", err)
	}
	for len(data) > 0 {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		if !whole {
			break // its writer was killed
		}
		var s stepLine
		if err := json.Unmarshal(line, &s); err != nil || s.Number < 0 || s.Number > len(r.Steps) {
			break // of a full disk
		}
		switch { // the record may have been written since the line was
		case s.Number == len(r.Steps):
			r.Steps = append(r.Steps, s.Step)
		case r.Steps[s.Number].Ended == nil:
			r.Steps[s.Number] = s.Step
		}
		data = rest
	}
	return r, nil
}
