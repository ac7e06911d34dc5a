package controller

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/controller/scan"
)

// scorer writes a scanner: a script that scores texts that contain "moon" with
// 0.97.
func scorer(t *testing.T, script string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "scorer")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

const goodScorer = `while read -r line; do case $line in *moon*) echo '{"score": 0.97}';; *) echo '{"score": 0.1}';; esac; done`

var hostEnviron = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}

func TestAModelProgramIsAskedUntilTheEnd(t *testing.T) {
	dir := t.TempDir()
	m, err := StartModel(context.Background(), scorer(t, goodScorer+"; pwd >"+dir+"/ended"), hostEnviron)
	if err != nil {
		t.Fatal(err)
	}
	s := scan.New(scan.Options{Model: m, Threshold: 0.9, Sentences: true})
	for range 3 {
		found, err := s.Text(
			context.Background(),
			"AGENTS.md",
			scan.Instructions,
			strings.NewReader("Run the tests. Obey the moon. "+strings.Repeat("Long. ", 500)),
		)
		if err != nil || len(found) != 1 || found[0].Column != 15 || found[0].Severity != scan.Critical {
			t.Fatalf("%v %v", found, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if where, err := os.ReadFile(dir + "/ended"); string(where) != "/\n" {
		t.Errorf("it ended in %q: %v", where, err)
	}
}

func TestAModelProgramThatFailsIsAnError(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"ends at once":    {"exit 0", "ended before its answer"},
		"crashes":         {"read -r line; echo no model here >&2; exit 7", "exit status 7: no model here"},
		"is killed":       {"read -r line; kill -KILL $$", "SIGKILL"},
		"answers garbage": {"read -r line; echo hello; cat >/dev/null", `"hello\n" has no score`},
		"a wrong score":   {"read -r line; echo '{\"score\": 1.5}'; cat >/dev/null", "has no score from 0 to 1"},
		"no end of line":  {"read -r line; head -c 300000 /dev/zero; cat >/dev/null", "read the model's answer"},
		"hangs":           {"cat >/dev/null", "no answer in time"},
		"does not read":   {"exec sleep 1000", "no answer in time"},
		"ignores TERM":    {"trap '' TERM; cat >/dev/null; while :; do sleep 1000; done", "no answer in time"},
		"answers too often": {
			"read -r line; echo '{\"score\": 0.1}'; echo '{\"score\": 0.1}'; cat >/dev/null", "answered more than it was asked",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := StartModel(context.Background(), scorer(t, tt.script), hostEnviron)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(tt.want, "in time") {
				m.limit = 50 * time.Millisecond // it never answers
			}
			_, err = m.Score(context.Background(), strings.Repeat("x", 200<<10)) // more than a pipe holds
			if name == "answers too often" {
				if err != nil {
					t.Fatal(err)
				}
				err = m.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
			if again := m.Close(); !errors.Is(again, err) {
				t.Errorf("closing it: %v", again)
			}
			if _, again := m.Score(context.Background(), "x"); !errors.Is(again, err) {
				t.Errorf("asked again: %v", again)
			}
		})
	}
}

func TestAModelProgramEndsWithItsRun(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(context.Background())
	m, err := StartModel(ctx, scorer(t, "cat >/dev/null"), hostEnviron)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan error)
	go func() {
		_, err := m.Score(ctx, "text")
		asked <- err
	}()
	cancel(stopped)
	if err := <-asked; !errors.Is(err, stopped) {
		t.Errorf("%v", err)
	}
	if err := m.Close(); !errors.Is(err, stopped) {
		t.Errorf("closing it: %v", err)
	}
}

func TestANonExecutableModelIsNotStarted(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"scorer", "./scorer", "/nowhere/scorer", "/usr", plain} {
		if m, err := StartModel(context.Background(), name, hostEnviron); err == nil {
			t.Errorf("%s was started: %v", name, m.Close())
		}
	}
}
