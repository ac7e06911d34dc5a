package snapshot

import (
	"bufio"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/beneath"
	"agentsh/internal/testenv"
)

// killedName is argv[0] of a process that works with checkpoints until it is killed.
const killedName = "agentsh-keep-killed"

func TestMain(m *testing.M) {
	testenv.DefaultSignals()
	if os.Args[0] == killedName {
		fmt.Fprintln(os.Stderr, workUntilKilled(os.Args[1], os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// workUntilKilled makes checkpoints of a workspace that it changes, or goes
// back to one and forth, and says on standard output when it begins each.
func workUntilKilled(store, work, id string) error {
	s, err := OpenStore(store)
	if err != nil {
		return err
	}
	c, err := s.Checkpoints(work)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if err := os.WriteFile(filepath.Join(work, "a", fmt.Sprint("n", n%7)), []byte(fmt.Sprint(os.Getpid(), n)), 0o600); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(os.Stdout, n); err != nil {
			return err
		}
		if id == "" {
			_, err = c.Create("", free)
		} else {
			_, err = c.Rollback(id, free)
		}
		if err != nil {
			return err
		}
	}
}

// killAmidst runs such a process and kills it somewhere in what it does, at
// no chosen place: wherever that is, the test holds.
func killAmidst(t *testing.T, r *rand.Rand, store, work, id string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", store, work, id)
	cmd.Args[0] = killedName
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	for range 1 + r.Intn(3) {
		if _, err := lines.ReadString('\n'); err != nil {
			t.Errorf("it ended by itself: %v", err)
		}
	}
	for range r.Intn(20_000) { // work of a random length: no clock, and any length is right
		_ = r.Int63()
	}
	for range r.Intn(60) { // calls of the kernel let it run where there is one processor
		_, _ = os.Lstat(work)
	}
	must(t, cmd.Process.Kill())
	_, err = io.Copy(io.Discard, lines)
	must(t, err)
	_ = cmd.Wait() // it was killed
	if said.Len() > 0 {
		t.Errorf("it failed before: %s", &said)
	}
}

// nothingHalf fails when something of a killed process is to be seen.
func nothingHalf(t *testing.T, c *Checkpoints) []Checkpoint {
	t.Helper()
	for _, dir := range []string{c.dir, filepath.Join(c.dir, objectsName)} {
		left, err := filepath.Glob(filepath.Join(dir, beneath.TempPrefix+"*"))
		must(t, err)
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
	list, err := c.List()
	must(t, err)
	for _, one := range list {
		_, l, err := c.read(one.ID, true)
		must(t, err)
		must(t, c.check(l))
	}
	return list
}

// TestAKillLeavesNothingHalf: at whatever moment a process that makes a checkpoint
// or goes back to one is killed, those that are listed are whole, and going back works.
func TestAKillLeavesNothingHalf(t *testing.T) {
	for _, what := range []string{"create", "rollback"} {
		t.Run(what, func(t *testing.T) {
			r := rand.New(rand.NewSource(1))
			dir := t.TempDir()
			store, err := OpenStore(filepath.Join(dir, "store"))
			must(t, err)
			work, c := openCheckpoints(t, store)
			must(t, os.Mkdir(filepath.Join(work, "a"), 0o755))
			disturb(t, r, work)
			must(t, os.RemoveAll(filepath.Join(work, "a")))
			must(t, os.Mkdir(filepath.Join(work, "a"), 0o755))
			first, err := c.Create("first", free)
			must(t, err)
			want := picture(t, work)
			must(t, c.Close())
			id := first.ID
			if what == "create" {
				id = ""
			}
			for range 30 {
				killAmidst(t, r, store.dir, work, id)
				c, err := store.Checkpoints(work)
				must(t, err)
				list := nothingHalf(t, c)
				if _, err := c.Rollback(first.ID, free); err != nil {
					t.Fatal(err)
				}
				if got := picture(t, work); got != want {
					t.Fatalf("after the rollback:\n%s\nwant:\n%s", got, want)
				}
				for _, one := range list[1:] {
					must(t, c.Delete(one.ID))
				}
				_, err = c.Create("again", free)
				must(t, err)
				nothingHalf(t, c)
				must(t, c.Close())
			}
		})
	}
}
