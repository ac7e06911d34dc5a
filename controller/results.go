package controller

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/controller/record"
	"agentsh/internal/statedir"
	"agentsh/internal/tarfs"
)

// What a directory of results holds.
const (
	resultName   = record.ResultFile
	auditName    = record.AuditFile
	agentLogName = record.AgentLogFile    // what the agent printed, clean
	filesName    = "files"                // the changed files of the repository
	manifestName = "manifest.json"        // of files, with their SHA-256
	outputName   = "output"               // what the agent wrote to its output directory
	eventsName   = record.AgentEventsFile // what it said and did, one event a line
	trashName    = "trash"                // what soft_delete kept, with its manifest
	recordsName  = "transcripts"          // what the program itself wrote down, by iteration
)

// results is the directory of the results of one run: filled beside its place,
// then put there by one rename.
type results struct {
	out     string // absolute; what the operator named
	staging string // beside it

	made      bool // staging exists
	published bool
	log       *agentLog
	events    *agentLog
}

// newResults checks that results can be put at out, and makes nothing yet but
// the directories above it.
func newResults(out, runID string) (*results, error) {
	abs, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	parent := filepath.Dir(abs)
	if abs == parent {
		return nil, badConfig("name a directory that may be made or replaced, with --out", "results cannot be put at %s", out)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, badConfig("name another directory with --out", "make directory for results: %w", err)
	}
	if parent, err = filepath.EvalSymlinks(parent); err != nil {
		return nil, badConfig("name another directory with --out", "directory for results: %w", err)
	}
	r := &results{out: filepath.Join(parent, filepath.Base(abs)), staging: stagingName(parent, runID)}
	if err := replaceable(r.out); err != nil {
		return nil, badConfig("name another directory with --out, or remove this one", "%w", err)
	}
	if err := unix.Access(parent, unix.W_OK); err != nil {
		return nil, badConfig("name another directory with --out", "results cannot be put at %s: %w", out, err)
	}
	return r, nil
}

const stagingPrefix = ".agentctl-"

func stagingName(parent, runID string) string { return filepath.Join(parent, stagingPrefix+runID) }

// removeStaging removes the staging directory of a killed run. The name in the
// record is used only when it is one that this run would have made.
func removeStaging(name, runID string) error {
	if !filepath.IsAbs(name) || name != stagingName(filepath.Dir(name), runID) {
		return fmt.Errorf("%s is not the staging directory of run %s", name, runID)
	}
	return statedir.RemoveTree(name)
}

// replaceable reports whether results may take the place of what is at out:
// nothing, an empty directory, or earlier results.
func replaceable(out string) error {
	info, err := os.Lstat(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s exists and is not a directory", out)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == resultName {
			return nil
		}
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s holds something else than the results of a run (%s)", out, entries[0].Name())
	}
	return nil
}

// dir is where the results are now.
func (r *results) dir() string {
	if r.published {
		return r.out
	}
	return r.staging
}

// make makes the staging directory.
func (r *results) make() error {
	if err := os.Mkdir(r.staging, 0o755); err != nil {
		return err
	}
	r.made = true
	var err error
	if r.log, err = r.createLog(agentLogName, "(what follows was left out)"); err != nil {
		return err
	}
	r.events, err = r.createLog(eventsName, `{"kind":"line","text":"(what follows was left out)"}`)
	return err
}

// maxAgentLog bounds each log of the agent, in bytes: an agent can print for as
// long as it runs.
const maxAgentLog = 256 << 20

// agentLog is a file of lines that ends early when it is full.
type agentLog struct {
	file *os.File
	left int64  // bytes
	last string // line that says it is full
	full bool
}

func (r *results) createLog(name, last string) (*agentLog, error) {
	f, err := r.create(name)
	if err != nil {
		return nil, err
	}
	return &agentLog{file: f, left: maxAgentLog, last: last}, nil
}

// add writes a line.
func (l *agentLog) add(line string) error {
	if l.full {
		return nil
	}
	if l.left -= int64(len(line)) + 1; l.left < 0 {
		line, l.full = l.last, true
	}
	_, err := l.file.WriteString(line + "\n")
	return err
}

func (r *results) create(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.staging, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// closeLogs closes the logs of the agent. Closing twice is an error of the
// second time.
func (r *results) closeLogs() error {
	var errs []error
	for _, l := range []*agentLog{r.log, r.events} {
		if l != nil {
			errs = append(errs, l.file.Close())
		}
	}
	return errors.Join(errs...)
}

// line adds a line to the agent's log.
func (r *results) line(text string) error {
	return r.log.add(text)
}

// event adds a line to the agent's event log.
func (r *results) event(line []byte) error {
	return r.events.add(string(line))
}

// dropFiles removes the changed files with their manifest.
func (r *results) dropFiles() error {
	var errs []error
	for _, name := range []string{manifestName, filesName, filesName + tarfs.PartialSuffix} {
		errs = append(errs, statedir.RemoveTree(filepath.Join(r.staging, name)))
	}
	return errors.Join(errs...)
}

// copyAudit takes the audit log.
func (r *results) copyAudit(from io.Reader) (err error) {
	f, err := r.create(auditName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, from)
	return err
}

// writeResult writes result.json, again when the end of the run adds to it.
func (r *results) writeResult(v Result) error {
	if !r.made {
		return nil
	}
	return statedir.WriteJSON(filepath.Join(r.dir(), resultName), v)
}

// publish puts the staging directory at its place. Earlier results are
// exchanged for it in one step and then removed.
func (r *results) publish() error {
	if err := r.closeLogs(); err != nil {
		return fmt.Errorf("write agent log: %w", err)
	}
	err := unix.Renameat2(unix.AT_FDCWD, r.staging, unix.AT_FDCWD, r.out, unix.RENAME_NOREPLACE)
	if err == nil {
		r.published, r.made = true, true
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("publish results: %w", err)
	}
	if err := replaceable(r.out); err != nil {
		return fmt.Errorf("publish results: %w", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, r.staging, unix.AT_FDCWD, r.out, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("publish results: %w", err)
	}
	r.published = true
	return statedir.RemoveTree(r.staging) // the earlier results are there now
}

// discard removes results that were not published.
func (r *results) discard() error {
	_ = r.closeLogs() // closed already when it was published
	if r.published || !r.made {
		return nil
	}
	return removeStaging(r.staging, strings.TrimPrefix(filepath.Base(r.staging), stagingPrefix))
}
