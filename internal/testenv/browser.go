package testenv

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Browser returns the path of Chromium, which 'make report-check' installs. Without that target the test is skipped.
func Browser(t *testing.T) string {
	t.Helper()
	Asked(t, "REPORT_CHECK", "report-check")
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Browse loads an address in Chromium with further arguments. It returns the
// standard output and the log.
func Browse(t *testing.T, address string, more ...string) (dom, log string) {
	t.Helper()
	args := append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
		"--disable-sync", "--disable-component-update", "--disable-default-apps", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
		"--user-data-dir=" + t.TempDir(),
	}, append(more, address)...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, Browser(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LANG=C.UTF-8", "DBUS_SESSION_BUS_ADDRESS=disabled:"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // its child processes may hold the pipes open
	if err := cmd.Run(); err != nil && out.Len() == 0 {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	return out.String(), errs.String()
}
