package supervisor

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// caseless is a filesystem without case, as far as looking goes.
type caseless struct{ fs.LoopbackNode }

func (c *caseless) Lookup(ctx context.Context, name string, out *gofuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return c.LoopbackNode.Lookup(ctx, strings.ToLower(name), out)
}

// TestAWorkspaceWithoutCaseIsRefused unless the rules say one thing for all of it.
func TestAWorkspaceWithoutCaseIsRefused(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, _ := testConfig(t, testPolicy)
	store := t.TempDir()
	if err := os.Mkdir(store+"/guarded", 0o755); err != nil {
		t.Fatal(err)
	}
	root, remembered := &fs.LoopbackRoot{Path: store}, time.Hour
	server, err := fs.Mount(cfg.Cwd, &caseless{fs.LoopbackNode{RootData: root}}, &fs.Options{
		EntryTimeout: &remembered, AttrTimeout: &remembered, MountOptions: gofuse.MountOptions{DirectMountStrict: true, AllowOther: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(cfg.Cwd, unix.MNT_DETACH)
		server.Wait()
	})
	if s, err := Open(context.Background(), cfg); err == nil {
		s.Close()
		t.Error("the session opened")
	} else if !strings.Contains(err.Error(), "governed "+cfg.Cwd+": names on the filesystem of "+cfg.Cwd+" are without case") {
		t.Error(err)
	}
}
