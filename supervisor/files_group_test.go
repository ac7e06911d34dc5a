package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"agentsh/internal/testenv"
)

// TestAUserWritesWhereTheGroupIsAnother: a workspace of the user whose group is root's,
// as `chown USER DIR` leaves it, and files of that group in it.
func TestAUserWritesWhereTheGroupIsAnother(t *testing.T) {
	if !asBoth(t) {
		return
	}
	testenv.Need(t, testenv.That("a directory of another group, see asUser", func() error {
		_, err := os.Stat("/mnt/group")
		return err
	}))
	cfg, log := testConfig(t, opensPolicy)
	cfg.User = ""
	dir, err := os.MkdirTemp("/mnt/group", "") // it passes on its group, see asUser
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "old"), nil, 0o644), os.Mkdir(filepath.Join(dir, "below"), 0o755),
		os.Chmod(filepath.Join(dir, "below"), 0o755), os.Chmod(dir, 0o755), os.Remove(cfg.Cwd), os.Rename(dir, cfg.Cwd),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.Cwd, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
	exit, out := b.run(t, "sh", "-ec", `
		echo new >new; echo x >>old; echo x >>mine; mkdir -p made/deep; echo x >below/new; ln -s new link; mv new moved
		chown "$(id -u):$(id -g)" old moved; chmod 600 old; rm mine; stat -c '%u:%g %a' . old moved below/new`)
	if want := "1000:1000 755\n1000:1000 600\n1000:1000 644\n1000:1000 644\n"; exit.Code != 0 || out != want {
		t.Errorf("%+v %q, want %q", exit, out, want)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
