package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"agentsh/controller/webui"
)

// ui is a running agentctl ui, asked as its page asks it.
type ui struct {
	t           *testing.T
	base, token string
}

// startUI starts agentctl ui. It ends with the test, by Ctrl-C.
func (p *fixture) startUI(t *testing.T) *ui {
	t.Helper()
	cmd := p.command("ui")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	base, token, found := strings.Cut(strings.TrimSpace(line), "/#")
	if err != nil || !found {
		t.Fatalf("it printed %q: %v", line, err)
	}
	return &ui{t: t, base: base, token: token}
}

func (u *ui) ask(method, path, body string, into any) int {
	u.t.Helper()
	r, err := http.NewRequestWithContext(u.t.Context(), method, u.base+path, strings.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+u.token)
	r.Header.Set("Origin", u.base)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		u.t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		u.t.Fatal(err)
	}
	return answer.StatusCode
}

func TestThePageShowsARunWithItsDenials(t *testing.T) {
	p := newFixture(t, "echo two > a.txt; kill -TERM 1; exit 0", "")
	if r, code := p.run(); code != 0 || r.Refusals == 0 {
		t.Fatalf("exit code %d, %d refusals", code, r.Refusals)
	}
	u := p.startUI(t)
	var all webui.Overview
	if status := u.ask(http.MethodGet, "/api/overview", "", &all); status != 200 || len(all.Runs) != 1 || len(all.Troubles) != 0 {
		t.Fatalf("status %d: %+v", status, all)
	}
	var run webui.Run
	if status := u.ask(http.MethodGet, "/api/runs/"+all.Runs[0].ID, "", &run); status != 200 || run.Status != "done" {
		t.Errorf("status %d: %+v", status, run)
	}
	kinds := map[string]int{}
	for _, m := range run.Moments {
		kinds[m.Kind]++
		if m.Kind == webui.KindDenied && !strings.Contains(m.Rule, "policy.yaml:") {
			t.Errorf("a denial without its rule: %+v", m)
		}
	}
	if kinds[webui.KindStep] < 10 || kinds[webui.KindDenied] == 0 {
		t.Errorf("the timeline has %v", kinds)
	}
}

func TestAQuestionIsAnsweredOnThePage(t *testing.T) {
	p := newFixture(t, `echo asking >&2; touch "$AGENTSH_OUTPUT_DIR/made"`, "")
	p.asks("channel")
	run := p.start("asking")
	u := p.startUI(t)
	for answered := false; !answered; { // the question comes right after the output
		var all webui.Overview
		u.ask(http.MethodGet, "/api/overview", "", &all)
		if len(all.Runs) != 1 || !all.Runs[0].Live {
			t.Fatalf("the run has ended without a question: %+v", all)
		}
		for _, q := range all.Questions {
			var none struct{}
			if status := u.ask(http.MethodPost, "/api/answer", `{"question": "`+q.ID+`", "allow": true}`, &none); status != 200 {
				t.Fatalf("status %d", status)
			}
			answered = true
		}
	}
	if code := run.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
