package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"mvdan.cc/sh/v3/syntax"

	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
	"agentsh/internal/tarfs"
)

// Files and directories of the results.
const (
	resultName      = record.ResultFile
	auditName       = record.AuditFile
	agentLogName    = record.AgentLogFile    // output of the agent, cleaned
	filesName       = "files"                // the changed files of the repository
	manifestName    = "manifest.json"        // of files, with their SHA-256
	outputName      = "output"               // the agent's output directory
	eventsName      = record.AgentEventsFile // events of the agent, one a line
	trashName       = "trash"                // the trash of soft_delete, with its manifest
	transcriptsName = "transcripts"          // the agent program's own logs, by iteration
)

// results is the directory of the results of one run. It is filled as a staging
// directory next to its final path, and published by one rename.
type results struct {
	out     string // absolute path that the operator set
	staging string // directory next to out

	made      bool // staging exists
	published bool
	log       *agentLog
	events    *agentLog
	closed    bool  // log and events are
	logError  error // error of the logs: something is missing in them
}

// newResults checks that results can be published at out. It creates only the
// directories above out.
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

// removeStaging removes the staging directory of a killed run. It rejects a
// name that this run does not use.
func removeStaging(name, runID string) error {
	if !filepath.IsAbs(name) || name != stagingName(filepath.Dir(name), runID) {
		return fmt.Errorf("%s is not the staging directory of run %s", name, runID)
	}
	return statedir.RemoveTree(name)
}

// replaceable reports whether results may replace the file at out. Nothing, an
// empty directory and earlier results may be replaced.
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

// outputDir is the agent's output in the results. Before preflight there is
// none.
func (r *results) outputDir() string { return filepath.Join(r.dir(), outputName) }

// create creates the staging directory.
func (r *results) create() error {
	if err := os.Mkdir(r.staging, 0o755); err != nil {
		return err
	}
	r.made = true
	var err error
	if r.log, err = r.createLog(agentLogName, logEnd); err != nil {
		return err
	}
	r.events, err = r.createLog(eventsName, eventsEnd)
	return err
}

// adopt uses the staging directory that the killed controller of the run has made, and makes it
// where it is missing. The agent's logs are continued.
func (r *results) adopt() error {
	err := r.create()
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	r.made = true
	for _, name := range []string{auditName, trashName} {
		if err := statedir.RemoveTree(filepath.Join(r.staging, name)); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		to         **agentLog
		name, last string
	}{{&r.log, agentLogName, logEnd}, {&r.events, eventsName, eventsEnd}} {
		f, err := os.OpenFile(filepath.Join(r.staging, l.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		*l.to = &agentLog{file: f, left: max(maxAgentLog-info.Size(), 0), last: l.last}
	}
	return nil
}

// Last lines of logs that are full.
const (
	logEnd    = "(the rest was dropped)"
	eventsEnd = `{"kind":"line","text":"(the rest was dropped)"}`
)

// maxAgentLog bounds each log of the agent, in bytes.
const maxAgentLog = 256 << 20

// agentLog is a file of lines with a bounded size.
type agentLog struct {
	file *os.File
	left int64  // bytes
	last string // line at the end of a full log
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
	n, err := l.file.WriteString(line + "\n")
	if err != nil && n > 0 { // the log has whole lines
		size, seekErr := l.file.Seek(int64(-n), io.SeekCurrent)
		err = errors.Join(err, seekErr)
		if seekErr == nil {
			err = errors.Join(err, l.file.Truncate(size))
		}
	}
	return err
}

func (r *results) createFile(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.staging, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// closeLogs closes the logs of the agent. A second call does nothing.
func (r *results) closeLogs() error {
	var errs []error
	for _, l := range []*agentLog{r.log, r.events} {
		if l != nil && !r.closed {
			errs = append(errs, l.file.Close())
		}
	}
	r.closed = true
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
func (r *results) copyAudit(from io.Reader) error { return r.copyLog(auditName, from) }

// copyLog writes a log, in the place of one that is incomplete.
func (r *results) copyLog(name string, from io.Reader) (err error) {
	f, err := os.Create(filepath.Join(r.staging, name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, from)
	return err
}

// writeResult writes or replaces result.json. Without a staging directory it
// does nothing. It may be called on a nil receiver.
func (r *results) writeResult(v Result) error {
	if r == nil || !r.made {
		return nil
	}
	return statedir.WriteJSON(filepath.Join(r.dir(), resultName), v)
}

// publish renames the staging directory to its final path. Earlier results are
// exchanged in one step and then removed.
func (r *results) publish() error {
	err := unix.Renameat2(unix.AT_FDCWD, r.staging, unix.AT_FDCWD, r.out, unix.RENAME_NOREPLACE)
	if err == nil {
		r.published, r.made = true, true
		return nil
	}
	if !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("publish results: %w", err)
	}
	if err := replaceable(r.out); err != nil {
		return r.publishBeside(fmt.Errorf("publish results: %w", err))
	}
	if err := unix.Renameat2(unix.AT_FDCWD, r.staging, unix.AT_FDCWD, r.out, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("publish results: %w", err)
	}
	r.published = true
	return statedir.RemoveTree(r.staging) // the earlier results, after the exchange
}

// publishBeside publishes the results under another name, when something else has come to be at theirs during the run. It is
// an error, which says where they are.
func (r *results) publishBeside(why error) error {
	beside := r.out + "-" + strings.TrimPrefix(filepath.Base(r.staging), stagingPrefix)
	if err := unix.Renameat2(unix.AT_FDCWD, r.staging, unix.AT_FDCWD, beside, unix.RENAME_NOREPLACE); err != nil {
		return errors.Join(why, fmt.Errorf("publish results: %w", err))
	}
	r.out, r.published = beside, true
	return fail(ExitSandbox, "the results are in "+beside, why)
}

// discard removes unpublished results. It may be called on a nil receiver.
func (r *results) discard() error {
	if r == nil {
		return nil
	}
	_ = r.closeLogs() // nobody reads them
	if r.published || !r.made {
		return nil
	}
	return removeStaging(r.staging, strings.TrimPrefix(filepath.Base(r.staging), stagingPrefix))
}

// deliver stops the sandbox, creates branches of the repository with the
// agent's commits, and publishes the results.
func (r *run) deliver(ctx context.Context) error {
	missing, err := takeLogs(ctx, r)
	if err != nil {
		return err
	}
	part := newDelivery(ctx, r)
	if !r.keeps() {
		_ = part(func(ctx context.Context) error { // it says itself what failed
			r.startDelete(ctx)
			return nil
		})
	}
	var d delivered
	name, dir := branchName(r.result.Agent, r.result.RunID), r.journal.dir.Delivery()
	again := false
	err = part(func(ctx context.Context) (err error) {
		if again {
			err = r.checkout.git.RemoveBranches(ctx, r.checkout.target.Dir, name) // normally there are none
		}
		if again = true; err != nil {
			return err
		}
		d, err = deliverCommits(ctx, r.checkout.clone, r.work, name, dir)
		return err
	})
	r.result.Branch, r.result.Branches = d.branch, d.others
	if d.commits != nil {
		r.result.Commits = d.commits
	}
	if err != nil {
		return deliverRest(r, part, errors.Join(err, missing))
	}
	err = part(func(ctx context.Context) error {
		changes, err := compare(ctx, r.checkout, r.work.extracted)
		if err == nil {
			err = r.journal.storeChanges(changes)
		}
		return err
	})
	if err != nil {
		r.progress.warn("compare changed files: %v", err)
	}
	if missing != nil {
		r.result.Partial = true
		missing = fail(ExitSandbox, "", fmt.Errorf("the results in %s are not whole: %w", r.results.out, missing))
	}
	return errors.Join(publishWhole(r, part, missing), missing)
}

// delivery does a part of the delivery, see [control.do].
type delivery func(part func(context.Context) error) error

func newDelivery(ctx context.Context, r *run) delivery {
	return func(part func(context.Context) error) error { return r.control.do(ctx, "taking the results out", part) }
}

// takeLogs stops the sandbox, and takes its logs and its trash out. missing says what of them the results do not have.
func takeLogs(ctx context.Context, r *run) (missing, err error) {
	part := newDelivery(ctx, r)
	missing = errors.Join(r.results.logError, r.results.closeLogs())
	if !r.keeps() {
		_ = part(func(context.Context) error { return firstFull(r.control.space.dirs, fewBytes) }) // the audit log gets its end
		if err := part(func(ctx context.Context) error { return r.box.stop(ctx, r.progress) }); err != nil {
			return missing, err
		}
		r.control.space.alone()
	}
	if err := part(func(ctx context.Context) error { return addAudit(ctx, r.box.sandbox, r.results, r.counts) }); err != nil {
		return missing, err
	}
	if r.plan.helped != nil {
		_ = r.plan.helped.follow(context.WithoutCancel(ctx), nil) // its session ends: it sends nothing
	}
	if err := closeSide(ctx, r); err != nil {
		return missing, err
	}
	err = part(func(ctx context.Context) (err error) {
		to := filepath.Join(r.results.staging, trashName)
		if err := statedir.RemoveTree(to); err != nil {
			return err
		}
		r.result.Trashed, err = r.box.sandbox.Trash(ctx, to)
		return err
	})
	if errors.Is(err, sandbox.ErrGone) { // it was elsewhere
		r.progress.warn("deleted files are lost: %v", err)
	} else if err != nil {
		missing = errors.Join(missing, fmt.Errorf("deleted files: %w", err))
	}
	return missing, nil
}

// deliverRest publishes what there is when the repository does not take the commits, as one that has changed during the run: the
// results, and a bundle with the commits in the record of the run. It is an error, too.
func deliverRest(r *run, part delivery, why error) error {
	if r.control.forced.Err() != nil {
		return why
	}
	r.result.Partial = true
	hint := hintFor(why)
	if r.result.Bundle == "" {
		file := bundleFile(r.journal.dir.Path, r.work.iteration)
		quoted, err := syntax.Quote(file, syntax.LangPOSIX)
		if err == nil {
			err = part(func(ctx context.Context) error { return r.checkout.clone.Bundle(ctx, r.work.branches(), file) })
		}
		switch {
		case err == nil:
			r.result.Bundle = file
			kept := fmt.Sprintf("the commits are in a bundle: git fetch %s 'refs/heads/%s*:refs/heads/%[2]s*'", quoted, branchPrefix)
			hint = strings.TrimPrefix(hint+"; "+kept, "; ")
		case hint == "" || hint != hintFor(err): // else it is the same reason
			why = errors.Join(why, err)
		}
	}
	if err := publishWhole(r, part, fail(ExitSandbox, hint, why)); err != nil {
		why = errors.Join(why, err)
	}
	return fail(ExitSandbox, hint, why)
}

// publishWhole publishes the results when there is room for them. failed is what the delivery fails with; nil: it does not.
func publishWhole(r *run, part delivery, failed error) error {
	var err error
	_ = part(func(context.Context) error {
		if err = r.publish(failed); r.results.published { // an error does not concern them: nothing is done again
			return nil
		}
		return err
	})
	return err
}

// publish publishes the results with a result.json. It describes the end of the
// run as if no later step fails. post_script reads it, and it remains if the
// controller is killed.
func (r *run) publish(failed error) error {
	before := r.result.Out
	r.result.Out, r.result.Audit, r.result.Delivered = r.results.out, filepath.Join(r.results.out, auditName), true
	if r.failed != nil {
		failed = r.failed
	} else if failed != nil {
		failed = asFailure(context.Background(), "deliver", failed)
	}
	r.conclude(failed)
	err := r.results.writeResult(r.result)
	if err == nil {
		err = r.results.publish()
	}
	if err != nil && !r.results.published {
		r.result.Out, r.result.Audit, r.result.Delivered = before, "", false
		return err
	}
	beside := r.results.out != r.result.Out
	if err == nil || beside { // else earlier results are left there
		r.journal.record.Staging = ""
	}
	if beside {
		r.result.Out, r.result.Audit, r.journal.record.Out = r.results.out, filepath.Join(r.results.out, auditName), r.results.out
	}
	return err
}
