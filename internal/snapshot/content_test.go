package snapshot

import (
	"bytes"
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/beneath"
	"agentsh/internal/testenv"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
)

// onTmpfs makes a directory on a filesystem that does not date writes through
// mappings.
func onTmpfs(t *testing.T) string {
	t.Helper()
	testenv.Need(t, testenv.Root)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// laid makes a file of parts, which are holes where they hold nothing and are to
// be.
func laid(t *testing.T, name string, parts [][]byte, holes bool) *os.File {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	at := int64(0)
	for _, p := range parts {
		if !holes || len(bytes.Trim(p, "\x00")) > 0 {
			_, err := f.WriteAt(p, at)
			must(t, err)
		}
		at += int64(len(p))
	}
	must(t, f.Truncate(at))
	return f
}

// TestHolesAndZerosAreAlike: the digest is one of content, and a copy holds the same.
func TestHolesAndZerosAreAlike(t *testing.T) {
	for _, dir := range []string{t.TempDir(), onTmpfs(t)} {
		seen := map[string][]byte{}
		for seed := range int64(60) {
			r := rand.New(rand.NewSource(seed))
			var parts [][]byte
			for range r.Intn(6) {
				part := make([]byte, []int{1, 4096, 5000, blockSize, 2*blockSize - 1, 3 * blockSize}[r.Intn(6)])
				if r.Intn(2) == 0 {
					part[r.Intn(len(part))] = 1
				}
				parts = append(parts, part)
			}
			whole := bytes.Join(parts, nil)
			holes, err := digest(laid(t, filepath.Join(dir, "holes"), parts, true))
			must(t, err)
			from := laid(t, filepath.Join(dir, "zeros"), parts, false)
			zeros, err := digest(from)
			must(t, err)
			if holes != zeros {
				t.Errorf("seed %d: %s with holes, %s with zeros", seed, holes, zeros)
			}
			if other, ok := seen[holes]; ok && !bytes.Equal(other, whole) {
				t.Errorf("seed %d: another file has its digest", seed)
			}
			seen[holes] = whole
			for _, how := range []func(to, from *os.File) error{beneath.CopyContent, func(to, from *os.File) error {
				sum, _, err := copyDigest(to, from)
				if sum != holes {
					t.Errorf("seed %d: copied as %s", seed, sum)
				}
				return err
			}} {
				to := laid(t, filepath.Join(dir, "copy"), nil, true)
				must(t, how(to, from))
				if data, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(data, whole) {
					t.Errorf("seed %d: the copy differs, %v", seed, err)
				}
			}
		}
	}
}

// TestHolesCostNothing: eight tebibytes of them are kept, compared, restored and
// thrown away as the few bytes that they surround. Read as zeros they would take hours.
func TestHolesCostNothing(t *testing.T) {
	const size = 8 << 40
	for _, dir := range []string{t.TempDir(), onTmpfs(t)} {
		work := filepath.Join(dir, "work")
		must(t, os.Mkdir(work, 0o755))
		store, err := OpenStore(filepath.Join(dir, "keep"))
		must(t, err)
		c, err := store.Checkpoints(work)
		must(t, err)
		name := filepath.Join(work, "big")
		write := func(text string) {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
			must(t, err)
			_, err = f.WriteAt([]byte(text), size/2)
			must(t, errors.Join(err, f.Truncate(size), f.Close()))
		}
		write("one")
		one, err := c.Create("", free)
		must(t, err)
		if one.Bytes != size || one.Stored > 2*blockSize {
			t.Errorf("checkpoint %+v", one)
		}
		write("two")
		list, err := c.Diff(one.ID, "")
		if err != nil || len(list) != 1 || list[0].Kind != wire.Modified {
			t.Errorf("diff %v, %v", list, err)
		}
		_, err = c.Rollback(one.ID, free)
		must(t, err)
		f, err := os.Open(name)
		must(t, err)
		got := make([]byte, 3)
		_, err = f.ReadAt(got, size/2)
		must(t, err)
		if info, err := f.Stat(); err != nil || info.Size() != size || string(got) != "one" {
			t.Errorf("restored %v, %v, %q", info, err, got)
		}
		must(t, errors.Join(f.Close(), c.Close()))
	}
}

// TestHolesInTheTrashCostNothing: they count as what they take on the disk.
func TestHolesInTheTrashCostNothing(t *testing.T) {
	const size = 8 << 40
	for _, link := range []bool{true, false} {
		k := newKept(t, newStore(t), "one")
		name := filepath.Join(k.work, "big")
		must(t, os.WriteFile(name, []byte("one"), 0o644))
		must(t, os.Truncate(name, size))
		id, err := k.trash.Save(k.root, "big", link, trash.Entry{Path: "/w/big", Op: "delete"})
		must(t, err)
		must(t, os.Remove(name))
		must(t, k.trash.Close())
		out := filepath.Join(t.TempDir(), "out")
		s := &Store{filepath.Dir(filepath.Dir(k.dir))}
		if n, err := s.ExportTrash(out); err != nil || n != 1 {
			t.Errorf("exported %d, %v", n, err)
		}
		if _, err := k.Restore(id, false); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(name); err != nil || info.Size() != size {
			t.Errorf("restored %v, %v", info, err)
		}
	}
}

// mapped maps the first page of a file, to be read and written.
func mapped(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return page
}

// TestWritesThroughMappingsAreSeen also when the page was written or read before
// the checkpoint: the times of a file need not tell of them.
func TestWritesThroughMappingsAreSeen(t *testing.T) {
	for fs, dirs := range map[string][2]string{"tmpfs": {onTmpfs(t), t.TempDir()}, "the disk": {t.TempDir(), onTmpfs(t)}} {
		t.Run(fs, func(t *testing.T) {
			work := filepath.Join(dirs[0], "work")
			must(t, os.Mkdir(work, 0o755))
			store, err := OpenStore(filepath.Join(dirs[1], "keep"))
			must(t, err)
			c, err := store.Checkpoints(work)
			must(t, err)
			defer c.Close()
			pages := map[string][]byte{}
			for _, name := range []string{"written", "read"} {
				must(t, os.WriteFile(filepath.Join(work, name), bytes.Repeat([]byte("x"), os.Getpagesize()), 0o644))
				pages[name] = mapped(t, filepath.Join(work, name))
			}
			pages["written"][0] = 'w'
			if pages["read"][0] != 'x' {
				t.Error("not mapped")
			}
			one, err := c.Create("", free)
			must(t, err)
			aged(t, c, one)
			for name, page := range pages {
				page[1] = '!'
				diff, err := c.Diff(one.ID, "")
				if err != nil || len(diff) != 1 || string(diff[0].Path) != name {
					t.Errorf("%s: diff %v, %v", name, diff, err)
				}
				two, err := c.Create("", free)
				must(t, err)
				if diff, err := c.Diff(one.ID, two.ID); err != nil || len(diff) != 1 {
					t.Errorf("%s: between two checkpoints %v, %v", name, diff, err)
				}
				must(t, c.Delete(two.ID))
				if _, err := c.Rollback(one.ID, free); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(filepath.Join(work, name))
				must(t, err)
				if got[1] != 'x' {
					t.Errorf("%s: not rolled back", name)
				}
			}
		})
	}
}

// aged makes a checkpoint one of files that were last changed an hour before.
func aged(t *testing.T, c *Checkpoints, one Checkpoint) {
	t.Helper()
	_, l, err := c.read(one.ID, true)
	must(t, err)
	one.Time = one.Time.Add(time.Hour)
	must(t, os.Remove(filepath.Join(c.dir, one.ID+manifestEnd)))
	must(t, c.write(one, l))
}

// TestAnOldCheckpointOfZerosIsCompared: its digests are those of all content.
func TestAnOldCheckpointOfZerosIsCompared(t *testing.T) {
	work, c := openCheckpoints(t, newStore(t))
	must(t, os.WriteFile(filepath.Join(work, "zeros"), make([]byte, blockSize), 0o644))
	one, err := c.Create("", free)
	must(t, err)
	_, l, err := c.read(one.ID, true)
	must(t, err)
	for i := range l.entries {
		if e := &l.entries[i]; e.SHA256 != "" {
			f, err := os.Open(c.object(e.SHA256))
			must(t, err)
			sum, err := plainDigest(f)
			must(t, errors.Join(err, f.Close(), os.Rename(c.object(e.SHA256), c.object(sum))))
			e.SHA256 = sum
		}
	}
	one.Format = 0
	must(t, os.Remove(filepath.Join(c.dir, one.ID+manifestEnd)))
	must(t, c.write(one, l))
	two, err := c.Create("", free)
	must(t, err)
	for _, until := range []string{"", two.ID} {
		if diff, err := c.Diff(one.ID, until); err != nil || len(diff) > 0 {
			t.Errorf("until %q: %v, %v", until, diff, err)
		}
	}
	if done, err := c.Rollback(one.ID, free); err != nil || len(done) > 0 {
		t.Errorf("rolled back %v, %v", done, err)
	}
}
