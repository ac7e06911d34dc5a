package supervisor

import (
	"context"
	"os"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

// secretive runs a command that is allowed, is refused a program and a file, and
// fails, all with one word in their names.
func secretive(t *testing.T, settings string) (*box, string) {
	t.Helper()
	b := openBox(t, testPolicy+settings)
	script := "/bin/echo s3cret; /bin/kill -s3cret 1; mkdir guarded; cd /tmp && mkdir s3cret && cd s3cret && /bin/true"
	if _, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "x", Argv: []string{"sh", "-c", script}},
		wire.Streams{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "y", Argv: []string{"no-s3cret"}}, wire.Streams{}); err != nil {
		t.Fatal(err)
	}
	b.events(t, func(wire.Event) bool { return true }) // waits for those of the file server
	data, err := os.ReadFile(b.log)
	if err != nil {
		t.Fatal(err)
	}
	return b, string(data)
}

func TestARedactedLogShowsNeitherArgumentsNorPaths(t *testing.T) {
	_, open := secretive(t, "")
	if !strings.Contains(open, "s3cret") {
		t.Fatal("the log without redaction does not show what the test looks for")
	}
	b, log := secretive(t, "audit: {redact: true}\n")
	for _, word := range []string{"s3cret", "/guarded", "/bin/", "/tmp", "mkdir of"} {
		if strings.Contains(log, word) {
			t.Errorf("the log shows %q", word)
		}
	}
	for _, want := range []string{b.cfg.Audit.Digest("s3cret"), `"decision":"deny"`, `"name":"no-kill"`, `"name":"guarded"`, `"op":"mkdir"`,
		`"kind":"spawn_failed"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

func TestWhatWasAllowedIsLoggedUnlessThePolicySaysOtherwise(t *testing.T) {
	allowed := func(e wire.Event) bool { return e.Type == wire.EventExec && e.Decision == "allow" }
	for settings, want := range map[string]bool{"": true, "audit: {log_allowed: true}\n": true, "audit: {log_allowed: false}\n": false} {
		b, _ := secretive(t, settings)
		if got := len(b.events(t, allowed)) > 0; got != want {
			t.Errorf("%q: allowed programs are logged: %t", settings, got)
		}
		if len(b.events(t, func(e wire.Event) bool { return e.Type == wire.EventExec && e.Decision == "deny" })) == 0 {
			t.Errorf("%q: a refused program is not logged", settings)
		}
		if len(b.events(t, func(e wire.Event) bool { return e.Type == wire.EventCommand })) != 4 {
			t.Errorf("%q: commands are not logged", settings)
		}
	}
}
