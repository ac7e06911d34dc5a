package notify

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/seccomp/target"
)

// overlaid shows top and lower at dir/opt, as a session does that is made now, and writes the
// mountinfo of its commands.
func overlaid(t *testing.T, dir string, root Root, options string) {
	t.Helper()
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	write(t, ownMounts, string(before))
	top, opt := t.TempDir(), filepath.Join(dir, "opt")
	// As in a session: where both layers are on one filesystem the kernel does not show xino.
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	write(t, filepath.Join(top, "own/file"), "")
	if err := unix.Mount("overlay", opt, "overlay", unix.MS_RDONLY, "lowerdir="+top+":"+dir+"/lower"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(opt, unix.MNT_DETACH) })
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	write(t, root.Mounts, strings.ReplaceAll(string(after), " "+opt+" ", " /opt "))
}

// layered makes what [remembering] makes with /opt below an overlay, which needs a directory of its
// own for the layers: the first session is over it.
func layered(t *testing.T) (dir string, root Root) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	dir, root = remembering(t)
	if err := os.Rename(filepath.Join(dir, "opt"), filepath.Join(dir, "lower")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "opt"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "lower/own/other"), "")
	if err := os.Symlink("/opt/tool/bin/java", filepath.Join(dir, "bin/direct")); err != nil {
		t.Fatal(err)
	}
	root.Own = "/opt/own"
	was := ownMounts
	t.Cleanup(func() { ownMounts = was })
	ownMounts = filepath.Join(t.TempDir(), "mountinfo")
	settled(t)
	return dir, root
}

// settled waits until a directory that was changed before may be remembered.
func settled(t *testing.T) {
	t.Helper()
	for began := time.Now(); time.Since(began) <= 2*steadyAfter; {
		_, _ = unix.Poll(nil, 10)
	}
}

func TestAnOverlayOfEachSessionIsRemembered(t *testing.T) {
	dir, root := layered(t)
	for session := range 3 {
		overlaid(t, dir, root, ",xino=on")
		if session > 0 {
			p := openPrograms(root)
			if !slices.ContainsFunc(p.dirs, func(d *programDir) bool { return d.path == "/opt/tool/bin" }) {
				t.Errorf("session %d: the directory in the overlay is not remembered", session)
			}
			var known []string
			for _, l := range p.lists {
				for i := range l.names {
					n := &l.names[i]
					if n.name != "direct" {
						continue
					}
					n.target.ino++ // what is looked up has the right one
					got, err := p.leadsTo(l, n)
					if err == nil && got == n.target && got.ino != 0 {
						known = append(known, n.name)
					}
					n.target.ino--
				}
			}
			p.close()
			if !slices.Equal(known, []string{"direct"}) {
				t.Errorf("session %d: remembered %q", session, known)
			}
		}
		if got := javas(t, root); !slices.Equal(got, []string{"/bin/direct", "/bin/java"}) {
			t.Errorf("session %d: %q", session, got)
		}
	}
}

// What changed below the overlay counts, and directories that the session's own layer hides are
// looked up in each session.
func TestAChangeBelowAnOverlayIsSeen(t *testing.T) {
	dir, root := layered(t)
	overlaid(t, dir, root, ",xino=on")
	javas(t, root)
	java := filepath.Join(dir, "lower/tool/bin/java")
	if err := os.Rename(java, java+".former"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../../bin/kill", java); err != nil {
		t.Fatal(err)
	}
	overlaid(t, dir, root, ",xino=on")
	ids, err := BuildIdentities([]string{"ls"}, root)
	if err != nil {
		t.Fatal(err)
	}
	h, err := target.ResolveIn(root.Dir, "/bin/kill")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	like, err := ids.Of(h)
	if err != nil || !slices.Contains(like.Names, "/bin/direct") {
		t.Errorf("%+v, %v", like, err)
	}
	settled(t)
	javas(t, root)
	for _, d := range openPrograms(root).dirs {
		if d.path == "/opt" || d.path == "/opt/own" {
			t.Errorf("%+v is remembered", d)
		}
	}
}

func TestOnlyOverlaysThatCanBeProvenAreRemembered(t *testing.T) {
	here := t.TempDir()
	line := func(dev, options string) string {
		return fmt.Sprintf("9 1 0:%s / /opt%s ro - overlay overlay ro,%s\n", dev, dev, options)
	}
	proven := "lowerdir=/x:" + here + ",xino=on"
	for what, test := range map[string]struct {
		info string
		want bool
	}{
		"as sessions make it":       {line("41", proven), true},
		"another one":               {line("41", proven) + "8 1 0:42 / / rw - overlay o rw,lowerdir=/x:/y,upperdir=/z,xino=on\n", true},
		"it is not the session's":   {line("43", proven), false},
		"without numbers that last": {line("41", "lowerdir=/x:"+here), false},
		"numbers switched off":      {line("41", "lowerdir=/x:"+here+",xino=off"), false},
		"it can be written to":      {line("41", proven+",upperdir=/z,workdir=/w"), false},
		"three layers":              {line("41", "lowerdir=/w:/x:"+here+",xino=on"), false},
		"a layer that is missing":   {line("41", "lowerdir=/x:"+here+"/missing,xino=on"), false},
		"two over one filesystem":   {line("41", proven) + line("42", proven), false},
		"another filesystem":        {strings.ReplaceAll(line("41", proven), "overlay", "ext4"), false},
		"no line of mountinfo":      {"9 1 x / - overlay\n - overlay o ro\n", false},
	} {
		of := map[uint64]bool{unix.Mkdev(0, 41): true, unix.Mkdev(0, 42): true}
		if got := overlayIn([]byte(test.info), of); (got.dev != 0) != test.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}
