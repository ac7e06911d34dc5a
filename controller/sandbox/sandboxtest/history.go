package sandboxtest

import (
	"context"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

// historian is a sandbox that remembers states of its files.
type historian interface {
	History(ctx context.Context, r wire.HistoryRequest, fn func(wire.HistoryEntry) error) error
}

// history remembers a state, compares, and goes back.
func (s *suite) history(t *testing.T) {
	box, is := s.box.(historian)
	if !is {
		t.Fatal("it remembers no states of its files")
	}
	ask := func(r wire.HistoryRequest) (list []wire.HistoryEntry, err error) {
		err = box.History(t.Context(), r, func(e wire.HistoryEntry) error {
			list = append(list, e)
			return nil
		})
		return list, err
	}
	sh := func(script string) string {
		t.Helper()
		exit, got, err := s.run(t.Context(), nil, "sh", "-ec", script)
		if err != nil || exit.ExitCode() != 0 {
			t.Fatalf("%s: %+v %s %v", script, exit, got.errs, err)
		}
		return got.out
	}
	sh("mkdir past; echo one >past/a; echo old >past/b")
	made, err := ask(wire.HistoryRequest{Create: true, Name: "first"})
	if err != nil || len(made) != 1 || made[0].Checkpoint == nil || made[0].Checkpoint.Name != "first" || made[0].Checkpoint.Files == 0 {
		t.Fatalf("create: %+v %v", made, err)
	}
	id := made[0].Checkpoint.ID
	sh("echo two >past/a; rm past/b; echo new >past/c; printf '\\0' >past/d")
	lines := map[string]wire.HistoryEntry{}
	list, err := ask(wire.HistoryRequest{Changes: true})
	for _, e := range list {
		lines[string(e.Change.Path)] = e
	}
	if err != nil || !strings.Contains(lines["past/a"].Lines, "+two\n") || lines["past/d"].Without != wire.BinaryFile {
		t.Errorf("changes: %+v %v", lines, err)
	}
	if list, err := ask(wire.HistoryRequest{List: true}); err != nil || len(list) != 1 || list[0].Checkpoint.ID != id {
		t.Errorf("list: %+v %v", list, err)
	}
	if list, err = ask(wire.HistoryRequest{Rollback: id}); err != nil || len(list) != 4 {
		t.Errorf("rollback: %+v %v", list, err)
	}
	if got := sh("cat past/a past/b; ls past"); got != "one\nold\na\nb\n" {
		t.Errorf("after the rollback: %q", got)
	}
	if _, err := ask(wire.HistoryRequest{Delete: []string{id}}); err != nil {
		t.Error(err)
	}
	for _, r := range []wire.HistoryRequest{{Rollback: id}, {Rollback: "../x"}, {Delete: []string{"7"}}, {}} {
		if list, err := ask(r); err == nil {
			t.Errorf("%+v: %+v", r, list)
		}
	}
	sh("rm -r past")
}
