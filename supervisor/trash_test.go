package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/trash"
)

// TestTheOperatorBoundsTheTrash: what does not fit any more is denied.
func TestTheOperatorBoundsTheTrash(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	for what, limits := range map[string]trash.Limits{"files": {Bytes: 1 << 20, Entries: 2}, "bytes": {Bytes: 1 << 20, Entries: 100}} {
		cfg, _ := testConfig(
			t,
			strings.Replace(
				testPolicy,
				"file_rules:\n",
				"file_rules:\n  - {name: pages, paths: ['${WORKSPACE}/docs/**'], operations: [delete], decision: soft_delete}\n",
				1,
			),
		)
		cfg.Files.Store, cfg.Files.Trash = filepath.Join(t.TempDir(), "keep"), limits
		docs := filepath.Join(cfg.Cwd, "docs")
		if err := os.Mkdir(docs, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"1", "2", "3"} {
			if err := os.WriteFile(filepath.Join(docs, name), make([]byte, 400<<10), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		b := &box{Session: s, workspace: cfg.Cwd}
		if _, out := b.run(t, "sh", "-c", "rm docs/1; rm docs/2; rm docs/3 2>&1; ls docs"); !strings.Contains(out, "quota") ||
			!strings.HasSuffix(out, "3\n") {
			t.Errorf("%s: %q", what, out)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
