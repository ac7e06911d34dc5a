package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestATerminalShowsAPageByMan runs itself on a terminal, with a program of its own
// in place of man(1).
func TestATerminalShowsAPageByMan(t *testing.T) {
	const child = "AGENTSH_TEST_PAGE"
	if page := os.Getenv(child); page != "" {
		t.Fatal(show(os.Stdout, page))
	}
	dir := t.TempDir()
	for man, want := range map[string]string{
		"#!/bin/sh\necho \"man $*\"; exec /bin/cat\n": "man -l -\r\n.TH A 1\r\nlast line\r\n",
		"": "man is not installed here",
	} {
		if err := os.RemoveAll(filepath.Join(dir, "man")); err != nil {
			t.Fatal(err)
		}
		if man != "" {
			if err := os.WriteFile(filepath.Join(dir, "man"), []byte(man), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		master, terminal := openTerminal(t)
		cmd := exec.Command(os.Args[0], "-test.run=^TestATerminalShowsAPageByMan$")
		cmd.Env = append(os.Environ(), "PATH="+dir, child+"=.TH A 1\nlast line\n")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = terminal.Close()
		got, _ := io.ReadAll(master) // EIO once nobody has the terminal
		err := cmd.Wait()
		if !strings.Contains(string(got), want) || (err == nil) != (man != "") {
			t.Errorf("%v\n%q, want %q", err, got, want)
		}
	}
}

func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, terminal
}

func TestManIsFoundInPATH(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", "relative:"+dir)
	if got := findMan(); got != "" {
		t.Errorf("%q without a program", got)
	}
	man := filepath.Join(dir, "man")
	if err := os.WriteFile(man, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := findMan(); got != "" {
		t.Errorf("%q may not be executed", got)
	}
	if err := os.Chmod(man, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := findMan(); got != man {
		t.Errorf("%q, want %q", got, man)
	}
}
