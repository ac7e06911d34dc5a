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
	resultName      = record.ResultFile
	auditName       = record.AuditFile
	agentLogName    = record.AgentLogFile    // what the agent printed, clean
	filesName       = "files"                // the changed files of the repository
	manifestName    = "manifest.json"        // of files, with their SHA-256
	outputName      = "output"               // what the agent wrote to its output directory
	eventsName      = record.AgentEventsFile // what it said and did, one event a line
	trashName       = "trash"                // what soft_delete kept, with its manifest
	transcriptsName = "transcripts"          // what the agent program wrote about itself, by iteration
)

// results is the directory of the results of one run. It is filled beside its
// final path and published by one rename.
type results struct {
	out     string // absolute; what the operator named
	staging string // beside it

	made      bool // staging exists
	published bool
	log       *agentLog
	events    *agentLog
	logError  error // of the logs: the results are not published
}

// newResults checks that results can be published at out. It creates only the
// directories above it.
func newResults(out, runID string) (*results, error) {
	abs, err := filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	parent := filepath.Dir(abs)
	if abs == parent {
		return nil, badConfig("name a directory that may be made or replaced, with --out", "results cannot be published at %s", out)
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
		return nil, badConfig("name another directory with --out", "results cannot be published at %s: %w", out, err)
	}
	return r, nil
}

const stagingPrefix = ".agentctl-"

func stagingName(parent, runID string) string { return filepath.Join(parent, stagingPrefix+runID) }

// removeStaging removes the staging directory of a killed run. It rejects a name
// that this run would not have made.
func removeStaging(name, runID string) error {
	if !filepath.IsAbs(name) || name != stagingName(filepath.Dir(name), runID) {
		return fmt.Errorf("%s is not the staging directory of run %s", name, runID)
	}
	return statedir.RemoveTree(name)
}

// replaceable reports whether results may replace what is at out: nothing, an
// empty directory, or earlier results.
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
		return fmt.Errorf("%s contains something other than the results of a run (%s)", out, entries[0].Name())
	}
	return nil
}

// dir is the current directory of the results.
func (r *results) dir() string {
	if r.published {
		return r.out
	}
	return r.staging
}

// outputDir is the agent's output in the results. Before preflight there are none.
func (r *results) outputDir() string { return filepath.Join(r.dir(), outputName) }

// create creates the staging directory.
func (r *results) create() error {
	if err := os.Mkdir(r.staging, 0o755); err != nil {
		return err
	}
	r.made = true
	var err error
	if r.log, err = r.createLog(agentLogName, "(the rest was dropped)"); err != nil {
		return err
	}
	r.events, err = r.createLog(eventsName, `{"kind":"line","text":"(the rest was dropped)"}`)
	return err
}

// maxAgentLog bounds each log of the agent, in bytes.
const maxAgentLog = 256 << 20

// agentLog is a file of lines that ends early when it is full.
type agentLog struct {
	file *os.File
	left int64  // bytes
	last string // line that says it is full
	full bool
}

func (r *results) createLog(name, last string) (*agentLog, error) {
	f, err := r.createFile(name)
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

func (r *results) createFile(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.staging, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// closeLogs closes the logs of the agent. A second call is an error.
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

// copyAudit writes the audit log.
func (r *results) copyAudit(from io.Reader) (err error) {
	f, err := r.createFile(auditName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, from)
	return err
}

// writeResult writes or replaces result.json. Without a staging directory it does
// nothing; a nil receiver is allowed.
func (r *results) writeResult(v Result) error {
	if r == nil || !r.made {
		return nil
	}
	return statedir.WriteJSON(filepath.Join(r.dir(), resultName), v)
}

// publish renames the staging directory to its final path. Earlier results are
// exchanged in one step and then removed.
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

// discard removes unpublished results. A nil receiver is allowed.
func (r *results) discard() error {
	if r == nil {
		return nil
	}
	_ = r.closeLogs() // they were closed if it was published
	if r.published || !r.made {
		return nil
	}
	return removeStaging(r.staging, strings.TrimPrefix(filepath.Base(r.staging), stagingPrefix))
}
