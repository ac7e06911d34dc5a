package program

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/sandbox"
	"agentsh/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestVersionsThatWereReadAreKnown(t *testing.T) {
	for version, want := range map[string]bool{
		"0.0.45": true, "v0.0.83": true, "0.0.87": true, "0.0.44": false, "0.0.88": false, "0.0.083": false, "0.0.83-dev.3+g12": false,
		"0.0.": false, "0.0.-50": false, "0.1.83": false, "": false, "0.0.83\n": false,
	} {
		if Known(version) != want {
			t.Errorf("%q: %t", version, !want)
		}
	}
}

func TestMessagesOfTheProgramAreOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"Error: \x1b[31m  × \x1b[0mfailed to connect to\n  │ gateway 'x'\n  ╰─▶ transport error\n": "failed to connect to gateway 'x' transport error",
		"  \x1b[31m×\x1b[0m a × b │ c": "a × b │ c",
		"plain":                        "plain",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// printing makes a program openshell that prints.
func printing(t *testing.T, script string) Program {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return Program{Gateway: "g", Dir: "/", Environ: []string{"PATH=" + dir + ":/usr/bin:/bin"}}
}

func TestAConfigurationOfAnotherFormIsRefused(t *testing.T) {
	const good = "Host openshell-a\n    User sandbox\n    ProxyCommand /usr/bin/openshell ssh-proxy --gateway-name g --name a\n"
	for name, text := range map[string]string{
		"":                     good,
		"another host":         strings.Replace(good, "openshell-a", "*", 1),
		"two hosts":            good + good,
		"a command":            good + "    LocalCommand touch /tmp/x\n",
		"an included file":     "Include /tmp/x\n" + good,
		"another proxy":        strings.Replace(good, "ssh-proxy --gateway-name", "other", 1),
		"a token":              strings.Replace(good, "--name a", "--name a --token t", 1),
		"nothing":              "",
		"text before the host": "Warning: x\n" + good,
	} {
		p := printing(t, "cat <<'E'\n"+text+"E")
		got, err := p.SSHConfig(t.Context(), "a")
		if (err == nil) != (name == "") || err == nil && got != good {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestSandboxesWithoutTheLabelAreNotListed(t *testing.T) {
	p := printing(t, `echo '[{"name": "a", "labels": {"k": "v"}, "phase": "Ready"}, {"name": "b", "labels": {}, "phase": "Ready"}]'`)
	if got, err := p.List(t.Context(), "k", "v"); err != nil || len(got) != 1 || got[0].Name != "a" || got[0].Phase != Ready {
		t.Errorf("%+v, %v", got, err)
	}
	p = printing(t, "echo No sandboxes found.")
	if got, err := p.List(t.Context(), "k", "v"); err == nil || !strings.Contains(err.Error(), "No sandboxes found.") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestADeletionIsKnownByWhatIsPrinted(t *testing.T) {
	for said, ok := range map[string]bool{
		"✓ Deleted sandbox a": true, "! Sandbox a not found": true, "! Sandbox b not found": false, "": false,
	} {
		if err := printing(t, "echo '"+said+"'").Delete(t.Context(), "a"); (err == nil) != ok {
			t.Errorf("%q: %v", said, err)
		}
	}
}

func TestANameThatIsTakenIsKnown(t *testing.T) {
	p := printing(t, "echo 'Error:   × sandbox already exists' >&2; echo '  │ hint: delete it first with: openshell sandbox\n  │ delete <name>' >&2; exit 1")
	err := p.Create(t.Context(), New{Name: "a", Image: "h/i:1", Policy: "/p"})
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "'openshell sandbox create': sandbox already exists") {
		t.Errorf("%v", err)
	}
	var end *sandbox.End
	if !errors.As(err, &end) || end.Kind != sandbox.EndRefused {
		t.Errorf("%+v", end)
	}
}
