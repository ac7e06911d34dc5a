package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/channel"
	"agentsh/internal/tarfs"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// fault is what happens to a stream when a number of bytes has passed in one direction.
type fault struct {
	kind  string
	after int64
	in    bool // bytes from the place; otherwise bytes to it
}

// Kinds of faults.
const (
	faultCut     = "cut"         // both directions end
	faultHalf    = "half closed" // the direction ends
	faultCorrupt = "corrupted"   // a byte is another one
	faultDelay   = "delayed"     // each read and write takes a while, from there on
	faultSmall   = "throttled"   // each read and write passes 1 to 7 bytes, from there on
)

func (f fault) String() string {
	direction := "to the place"
	if f.in {
		direction = "from the place"
	}
	return fmt.Sprintf("%s after %d bytes %s", f.kind, f.after, direction)
}

// faulty is a carrier whose streams have faults, one after the other. Further streams have
// none.
type faulty struct {
	remote.Carrier
	mu     sync.Mutex
	faults []fault
	passed [2]int64 // bytes of the first stream, to the place and from it
	opened int
	open   []remote.Stream
}

// killCarriers kills what the streams are made of.
func (f *faulty) killCarriers() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.open {
		s.Kill()
	}
}

// Open implements [remote.Carrier].
func (f *faulty) Open(ctx context.Context) (remote.Stream, error) {
	s, err := f.Carrier.Open(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	broken := &faultyStream{Stream: s}
	if f.opened == 0 {
		broken.count = f
	}
	f.opened++
	f.open = append(f.open, s)
	if len(f.faults) > 0 {
		broken.fault, f.faults = f.faults[0], f.faults[1:]
	}
	return broken, nil
}

// faultyStream is a stream with a fault.
type faultyStream struct {
	remote.Stream
	fault  fault
	count  *faulty // not nil: bytes are counted there
	mu     sync.Mutex
	passed [2]int64
}

// pass is asked before at most n bytes pass in a direction, which it returns less of. hit says
// that the fault is there.
func (s *faultyStream) pass(direction, n int) (most int, hit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.fault.after - s.passed[direction]
	switch {
	case s.fault.kind == "" || s.fault.in != (direction == 1):
		return n, false
	case left > 0:
		return int(min(int64(n), left)), false
	case s.fault.kind == faultSmall:
		return 1 + (n+int(s.passed[direction]))%min(n, 7), true
	}
	return n, true
}

func (s *faultyStream) passedOn(direction, n int) {
	s.mu.Lock()
	s.passed[direction] += int64(n)
	s.mu.Unlock()
	if s.count != nil {
		s.count.mu.Lock()
		s.count.passed[direction] += int64(n)
		s.count.mu.Unlock()
	}
}

// happen does what the fault does before bytes pass.
func (s *faultyStream) happen() error {
	switch s.fault.kind {
	case faultCut:
		_ = s.Close()
		return io.ErrClosedPipe
	case faultDelay:
		<-time.After(20 * time.Millisecond)
	}
	return nil
}

// flip changes the first byte, once.
func (s *faultyStream) flip(p []byte) []byte {
	if s.fault.kind != faultCorrupt || len(p) == 0 {
		return p
	}
	s.mu.Lock()
	s.fault = fault{}
	s.mu.Unlock()
	p = bytes.Clone(p)
	p[0] ^= 1 << (p[0] % 8)
	return p
}

// Read implements [io.Reader].
func (s *faultyStream) Read(p []byte) (int, error) {
	most, hit := s.pass(1, len(p))
	if hit && s.fault.kind == faultHalf {
		return 0, io.EOF
	}
	if hit {
		if err := s.happen(); err != nil {
			return 0, err
		}
	}
	n, err := s.Stream.Read(p[:most])
	if hit && n > 0 {
		copy(p, s.flip(p[:n]))
	}
	s.passedOn(1, n)
	return n, err
}

// Write implements [io.Writer].
func (s *faultyStream) Write(p []byte) (int, error) {
	for done := 0; ; {
		if done == len(p) {
			return done, nil
		}
		most, hit := s.pass(0, len(p)-done)
		if hit && s.fault.kind == faultHalf {
			return done, io.ErrClosedPipe
		}
		if hit {
			if err := s.happen(); err != nil {
				return done, err
			}
		}
		part := p[done : done+most]
		if hit {
			part = s.flip(part)
		}
		n, err := s.Stream.Write(part)
		done += n
		s.passedOn(0, n)
		if err != nil {
			return done, err
		}
	}
}

// pipePlace is a place that is this machine, behind a shell.
type pipePlace struct {
	dir     string
	program string
}

// backend makes a backend whose streams have faults.
func (p pipePlace) backend(t *testing.T, faults ...fault) (*remote.Backend, *faulty) {
	t.Helper()
	carrier, err := remote.Parse("exec:env -i HOME="+p.dir+" XDG_STATE_HOME="+p.dir+"/place /bin/sh", "")
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{Carrier: carrier, faults: faults}
	return remote.New(remote.Config{
		Name: remote.NameExec, Carrier: f, State: openState(t, p.dir), Agentsh: p.program, Look: true, Lease: 10 * time.Second,
	}), f
}

// manyCuts are cuts of many streams. The first ones are cut while the program is sent.
func manyCuts(n int) []fault {
	out := []fault{{faultCut, 1 << 20, false}, {faultCut, 5 << 20, false}}
	for i := range n {
		out = append(out, fault{faultCut, 5000 + int64(i*7919%200_000), i%3 == 0})
	}
	return out
}

// random are bytes that no compression and no cache makes few.
func random(n int) []byte {
	out := make([]byte, n)
	r := rand.NewChaCha8(sha256.Sum256([]byte(strconv.Itoa(n))))
	_, _ = r.Read(out) // never fails
	return out
}

// work makes a sandbox, uses all that a controller uses, and deletes it. wrong are results
// that are not what they should be.
func work(ctx context.Context, b sandbox.Backend, id, dir string) (wrong, err error) {
	box, err := b.Create(ctx, spec(id))
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	w := worker{box: box, dir: dir, content: random(200_000)}
	_, err = box.Ready(ctx)
	for _, step := range []func(context.Context) error{w.commands, w.files, w.archives, w.changes} {
		if err == nil {
			err = step(ctx)
		}
	}
	err = errors.Join(err, box.Stop(ctx))
	if err == nil {
		err = w.log(ctx)
	}
	return w.wrong, errors.Join(err, box.Delete(ctx))
}

// worker uses one sandbox.
type worker struct {
	box     sandbox.Sandbox
	dir     string
	content []byte
	wrong   error
}

func (w *worker) differs(what string, got, want any) {
	w.wrong = errors.Join(w.wrong, fmt.Errorf("%s: %.100v, want %.100v", what, got, want))
}

func (w *worker) commands(ctx context.Context) error {
	var out, errs bytes.Buffer
	exit, err := w.box.Run(ctx, wire.ExecRequest{Argv: []string{"sh", "-c", "tee copy /dev/stderr; exit 3"}, Cwd: "/sandbox"},
		sandbox.Streams{Stdin: bytes.NewReader(w.content), Stdout: &out, Stderr: &errs})
	if err != nil {
		return fmt.Errorf("command: %w", err)
	}
	if exit.ExitCode() != 3 || !bytes.Equal(out.Bytes(), w.content) || !bytes.Equal(errs.Bytes(), w.content) {
		w.differs("a command", fmt.Sprint(exit.Kind, exit.Code, exit.Message, out.Len(), errs.Len()), "3, with its input twice")
	}
	return nil
}

func (w *worker) files(ctx context.Context) error {
	if err := w.box.WriteFile(ctx, "/sandbox/d\xff", w.content, 0o640); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	for _, name := range []string{"/sandbox/d\xff", "/sandbox/copy"} {
		got, err := w.box.ReadFile(ctx, name, 1<<20)
		if err != nil {
			return fmt.Errorf("read %q: %w", name, err)
		}
		if !bytes.Equal(got, w.content) {
			w.differs("a file", len(got), len(w.content))
		}
	}
	return nil
}

func (w *worker) archives(ctx context.Context) error {
	var archive bytes.Buffer
	packer := tarfs.NewWriter(&archive, tarfs.Limits{})
	for i := range 50 {
		part := w.content[i*1000 : i*3000]
		if _, err := packer.File(fmt.Sprint("f", i), 0o644, int64(len(part)), bytes.NewReader(part)); err != nil {
			return err
		}
	}
	if _, err := packer.Close(); err != nil {
		return err
	}
	arrived := 0
	if err := w.box.CopyIn(ctx, "/sandbox/in", &archive, func(wire.ManifestEntry) error { arrived++; return nil }); err != nil {
		return fmt.Errorf("copy in: %w", err)
	}
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if _, err := channel.ReceiveArchive(ctx, w.box, wire.CopyOut{Dir: "/sandbox/in"}, channel.ArchiveTarget{Parent: root,
		Name: "out"}); err != nil {
		return fmt.Errorf("copy out: %w", err)
	}
	for i := range 50 {
		got, err := root.ReadFile(fmt.Sprint("out/f", i))
		if err != nil || !bytes.Equal(got, w.content[i*1000:i*3000]) {
			w.differs("a file of the archive", len(got), i*2000)
		}
	}
	if arrived != 50 {
		w.differs("files of the archive", arrived, 50)
	}
	return nil
}

func (w *worker) changes(ctx context.Context) error {
	names := map[string]bool{}
	if err := w.box.EachChange(ctx, func(c wire.Change) error { names[string(c.Path)] = true; return nil }); err != nil {
		return fmt.Errorf("changes: %w", err)
	}
	if !names["copy"] {
		w.differs("changes", names, "copy among them")
	}
	return nil
}

// log checks the audit log after the end.
func (w *worker) log(ctx context.Context) error {
	log, err := w.box.AuditLog(ctx)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer log.Close()
	data, err := io.ReadAll(log)
	if err != nil {
		return err
	}
	if head, err := audit.Verify(bytes.NewReader(data)); err != nil || int(head.Seq) != bytes.Count(data, []byte("\n")) ||
		!bytes.Contains(data, []byte(`"type":"session","phase":"end"`)) {
		w.differs("the audit log", fmt.Sprint(head, err), "a whole one")
	}
	return nil
}

// nothingLeft waits until a place has removed everything. The lease bounds it.
func (p pipePlace) nothingLeft(t *testing.T) {
	t.Helper()
	limit := time.Now().Add(2 * time.Minute)
	for look := time.Tick(20 * time.Millisecond); ; <-look {
		there, _ := filepath.Glob(p.dir + "/place/agentsh/remote/*")
		here, _ := filepath.Glob(p.dir + "/state/sandboxes/*")
		if len(there)+len(here) == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("left: %q, %q", there, here)
		}
	}
}

// try works with faults, and checks the outcome.
func (p pipePlace) try(t *testing.T, id string, faults ...fault) *faulty {
	t.Helper()
	b, f := p.backend(t, faults...)
	began := time.Now()
	defer func() { t.Logf("%s: %d streams, %s", faults, f.opened, time.Since(began).Round(time.Millisecond)) }()
	wrong, err := work(t.Context(), b, id, t.TempDir())
	corrupted := len(faults) > 0 && faults[0].kind == faultCorrupt
	switch {
	case wrong != nil:
		t.Errorf("%v: wrong results: %v", faults, wrong)
	case err != nil && !corrupted:
		t.Errorf("%v: %v", faults, err)
	case err != nil:
		t.Logf("it says: %v", err)
	case err == nil && corrupted && len(f.faults) == 0 && f.passed[btoi(faults[0].in)] > faults[0].after+1000:
		t.Logf("%v: nothing noticed it", faults) // such as a byte of a greeting that is skipped
	}
	p.nothingLeft(t)
	return f
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestFaultsOfAStream has every kind of fault at random bytes. With AGENTSH_FAULTS, as make
// remote sets it, it has that number of each, and a cut at each step of the beginning.
func TestFaultsOfAStream(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	rounds, _ := strconv.Atoi(os.Getenv("AGENTSH_FAULTS"))
	dir := t.TempDir()
	p := pipePlace{dir: dir, program: testenv.Agentsh(t)}
	p.try(t, "first") // and the place has the program
	whole := p.try(t, "whole").passed
	if whole[0] < 400_000 || whole[1] < 800_000 {
		t.Fatalf("only %d bytes passed", whole)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	n := 0
	for range max(rounds, 1) {
		for _, kind := range []string{faultCut, faultHalf, faultCorrupt, faultDelay, faultSmall} {
			in := r.IntN(2) == 1
			size := whole[btoi(in)]
			if r.IntN(2) == 0 {
				size = 20_000 // where the sandbox is made
			}
			faults := []fault{{kind, r.Int64N(size), in}}
			switch kind {
			case faultCut, faultHalf: // and the streams that follow
				for range 1 + r.IntN(8) {
					faults = append(faults, fault{kind, 3000 + r.Int64N(200_000), r.IntN(2) == 1})
				}
			case faultDelay, faultSmall:
				faults[0].after = max(faults[0].after, size-30_000)
			}
			n++
			p.try(t, fmt.Sprint("random-", n), faults...)
			if t.Failed() {
				return
			}
		}
	}
	if rounds == 0 {
		return
	}
	for at := int64(0); at < 20_000; at += 1 + r.Int64N(60) {
		n++
		p.try(t, fmt.Sprint("step-", n), fault{faultCut, at, n%2 == 0})
		if t.Failed() {
			return
		}
	}
}

// TestAStreamThatIsCutBeforeAShellHasAnsweredIsOpenedAgain cuts the first stream at bytes of the script for the shell of the place.
func TestAStreamThatIsCutBeforeAShellHasAnsweredIsOpenedAgain(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	p := pipePlace{dir: t.TempDir(), program: testenv.Agentsh(t)}
	for _, kind := range []string{faultCut, faultHalf} {
		for _, at := range []int64{0, 1, 20, 1225, 1700} {
			p.try(t, fmt.Sprint(strings.ReplaceAll(kind, " ", "-"), "-", at), fault{kind, at, false})
		}
	}
}
