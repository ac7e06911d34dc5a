package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"agentsh/controller/harness"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// bootstrap lays out everything the agent needs in one directory of the host
// and brings it in as one archive, so that the agent never sees a part of it.
func (r *run) bootstrap(ctx context.Context) error {
	stage, err := os.OpenRoot(r.stageDir())
	if err != nil {
		return err
	}
	defer func() { _ = stage.Close() }()
	if err := r.layOut(ctx, stage); err != nil {
		return fmt.Errorf("lay out the sandbox: %w", err)
	}
	if err := r.keepLinks(ctx); err != nil {
		return err
	}
	sent, err := r.send(ctx, stage)
	if err != nil {
		return err
	}
	if len(sent.Skipped) > 0 {
		r.warn("left out of the sandbox: %s", listed(sent.Skipped))
	}
	return nil
}

// stageDir becomes /sandbox.
func (r *run) stageDir() string { return filepath.Join(r.dir.work(), "stage") }

// staged is the host's place of a path below /sandbox.
func (r *run) staged(inside string) string {
	return filepath.Join(r.stageDir(), strings.TrimPrefix(inside, sandboxRoot))
}

// layOut fills the stage; the repository is there already.
func (r *run) layOut(ctx context.Context, stage *os.Root) error {
	for _, dir := range []string{homeDir, outputDir, feedbackDir, envDir, path.Join(configDir, "agents")} {
		if err := stage.MkdirAll(rel(dir), 0o755); err != nil {
			return err
		}
	}
	if err := copyFile(stage, rel(r.invoke.Definition), r.harness.Path(r.harness.Agent), 0o644); err != nil {
		return err
	}
	for _, s := range r.harness.Skills {
		if err := copyTree(ctx, stage, rel(path.Join(configDir, "skills", s.Name())), r.harness.Path(s.Path)); err != nil {
			return err
		}
	}
	if r.harness.AgentInput.V != "" {
		if err := copyTree(ctx, stage, rel(inputDir), r.harness.Path(r.harness.AgentInput)); err != nil {
			return err
		}
	}
	for _, f := range r.files {
		if err := deliverFile(stage, f); err != nil {
			return fmt.Errorf("%s: %w", f.At, err)
		}
	}
	return nil
}

// rel is a path below /sandbox as the stage has it.
func rel(inside string) string { return strings.TrimPrefix(inside, sandboxRoot+"/") }

// deliverFile puts one of the harness's files on the stage. It never replaces
// one that is there: what a step delivers is not the harness's to change.
func deliverFile(stage *os.Root, f harness.File) error {
	if err := stage.MkdirAll(path.Dir(rel(f.Dest)), 0o755); err != nil {
		return err
	}
	if f.Source != "" {
		return copyFile(stage, rel(f.Dest), f.Source, f.Mode)
	}
	return writeNew(stage, rel(f.Dest), strings.NewReader(string(f.Data)), f.Mode)
}

func copyFile(stage *os.Root, name, source string, mode fs.FileMode) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("%s is not a regular file", source), err)
	}
	return writeNew(stage, name, in, mode)
}

func writeNew(stage *os.Root, name string, from io.Reader, mode fs.FileMode) error {
	out, err := stage.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	return errors.Join(err, out.Chmod(mode.Perm()), out.Close())
}

// copyTree copies a directory of the operator. Links that leave it are refused.
func copyTree(ctx context.Context, stage *os.Root, name, source string) error {
	from, err := os.OpenRoot(source)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if err := stage.MkdirAll(name, 0o755); err != nil {
		return err
	}
	to, err := stage.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	read, write := io.Pipe()
	var packed wire.Manifest
	done := make(chan error, 1)
	go func() {
		var err error
		packed, err = tarfs.Pack(ctx, from, tarfs.PackOptions{SkipGit: true}, write)
		_ = write.CloseWithError(err) // never fails
		done <- err
	}()
	_, err = tarfs.Unpack(ctx, to, read, tarfs.UnpackOptions{RefuseGit: true})
	_ = read.CloseWithError(err) // ends the packer when the unpacker gave up
	if err := errors.Join(err, <-done); err != nil {
		return fmt.Errorf("copy %s: %w", source, err)
	}
	if len(packed.Skipped) > 0 {
		return badConfig("remove it, or make it a regular file", "%s cannot be delivered: %s", source, listed(packed.Skipped))
	}
	return nil
}

// keepLinks tells git that the links of the repository that lead out of it are
// meant to be missing: they do not travel, and the agent would commit that
// they are gone.
func (r *run) keepLinks(ctx context.Context) error {
	tracked, err := r.git.run(ctx, r.clone, "ls-files", "-z", "--stage")
	if err != nil {
		return err
	}
	var out []string
	for _, entry := range splitNUL(tracked) {
		meta, name, ok := strings.Cut(entry, "\t")
		if !ok || !strings.HasPrefix(meta, "120000 ") {
			continue
		}
		target, err := os.Readlink(filepath.Join(r.clone, name))
		if err != nil {
			return fmt.Errorf("read link: %w", err)
		}
		if leaves(name, target) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return nil
	}
	_, err = r.git.feed(ctx, r.clone, strings.Join(out, "\x00")+"\x00", "update-index", "-z", "--skip-worktree", "--stdin")
	return err
}

// leaves reports whether a link in a repository leads out of the sandbox's
// tree, which the repository is two levels below.
func leaves(name, target string) bool {
	const above = 2
	return path.IsAbs(target) || strings.Count(name, "/")+above < strings.Count("/"+target+"/", "/../") ||
		strings.Contains(strings.TrimLeft(target, "./"), "../")
}

// send packs the stage and unpacks it in the sandbox.
func (r *run) send(ctx context.Context, stage *os.Root) (wire.Manifest, error) {
	read, write := io.Pipe()
	var packed wire.Manifest
	done := make(chan error, 1)
	go func() {
		var err error
		packed, err = tarfs.Pack(ctx, stage, tarfs.PackOptions{}, write)
		_ = write.CloseWithError(err) // never fails
		done <- err
	}()
	_, err := r.box.CopyIn(ctx, sandboxRoot, read)
	_ = read.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends the packer when the sandbox gave up
	if packErr := <-done; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		err = errors.Join(err, packErr)
	}
	return packed, err
}
