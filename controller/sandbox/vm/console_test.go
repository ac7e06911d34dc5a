package vm

import (
	"os"
	"path/filepath"
	"testing"
)

// What firmware writes for a terminal is no part of a message.
func TestTheLastLineOfAConsoleIsText(t *testing.T) {
	for console, want := range map[string]string{
		"\x1bc\x1b[?7l\x1b[2Jagentsh: machine: no disk\n":   "agentsh: machine: no disk",
		"Booting from ROM..\x1bc\x1b[?7l\x1b[2J\x1b[0m\r\n": "Booting from ROM..",
		"said\n\x1b[1;31m\x1b[0m\r\n":                       "said",
		"a [ and \x1b] stay\n":                              `a [ and \x1b] stay`,
	} {
		m := &machine{dir: t.TempDir()}
		if err := os.WriteFile(filepath.Join(m.dir, consoleFile), []byte(console), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.lastLine(); got != want {
			t.Errorf("%q: %q, want %q", console, got, want)
		}
	}
}
