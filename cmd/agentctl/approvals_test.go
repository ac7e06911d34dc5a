package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/cmd/agentctl/sandboxcmd"
	"agentsh/controller"
	"agentsh/internal/wire"
)

// asks gives the policy of a fixture a rule that a person has to approve touch.
func (p *fixture) asks(via string) {
	p.t.Helper()
	policy := p.read("policy.yaml")
	rule := "command_rules:\n  - {name: ask-touch, commands: [touch], decision: approve, timeout: 1m, message: it makes files}\n"
	changed := strings.Replace(policy, "command_rules:\n", rule, 1)
	if changed == policy || strings.Contains(policy, "\napprovals:") {
		p.t.Fatal("the policy is another one")
	}
	p.write("policy.yaml", changed+"\napprovals: {via: "+via+"}\n", 0o644)
}

const webhookKey = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// approver is the operator's server of a webhook. It knows the protocol by its documentation alone.
type approver struct {
	mu    sync.Mutex
	asked []string
}

// serve answers with what decide says about the question and its run.
func (a *approver) serve(t *testing.T, decide func(question wire.Question, run map[string]any) string) string {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(webhookKey, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	sign := func(id, at string, body []byte) string {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
		return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, at := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
		if r.Header.Get("webhook-signature") != sign(id, at, body) {
			t.Errorf("the request is not signed: %s", body)
		}
		var q struct {
			Run      map[string]any
			Question wire.Question
		}
		if err := json.Unmarshal(body, &q); err != nil {
			t.Error(err)
		}
		a.mu.Lock()
		a.asked = append(a.asked, strings.Join(q.Question.Argv, " "))
		a.mu.Unlock()
		answer := []byte(decide(q.Question, q.Run))
		if len(answer) == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusAccepted)
			return
		}
		now := strconv.FormatInt(time.Now().Unix(), 10)
		w.Header().Set("webhook-id", id)
		w.Header().Set("webhook-timestamp", now)
		w.Header().Set("webhook-signature", sign(id, now, answer))
		_, _ = w.Write(answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestAWebhookAnswersTheQuestionsOfARun(t *testing.T) {
	p := newFixture(t, `touch "$AGENTSH_OUTPUT_DIR/good" && touch "$AGENTSH_OUTPUT_DIR/bad" || echo refused >&2`, "")
	p.asks("webhook")
	if _, errs, code := p.try("", p.runArgs()...); code != controller.ExitConfiguration ||
		!strings.Contains(errs, "no webhook is configured") {
		t.Errorf("without a webhook: %d %s", code, errs)
	}
	var a approver
	again := true
	url := a.serve(t, func(q wire.Question, run map[string]any) string {
		if run["agent"] != "tester" || q.Rule == nil || q.Rule.Name != "ask-touch" || q.Message != "it makes files" {
			t.Errorf("asked %+v for %v", q, run)
		}
		if again {
			again = false
			return ""
		}
		if strings.HasSuffix(q.Argv[1], "/bad") {
			return `{"type": "approval.answer", "decision": "deny", "by": "ada", "reason": "not that one"}`
		}
		return `{"type": "approval.answer", "decision": "allow", "by": "ada"}`
	})
	p.write("key", webhookKey+"\n", 0o600)
	p.write("config/agentsh/agentctl.yaml", "approvals: {webhook: "+url+", key_file: ../../key}\n", 0o644)
	p.setenv = []string{"XDG_CONFIG_HOME=" + p.path("config")}
	r, code := p.run()
	if code != 0 {
		t.Fatalf("exit code %d: %+v", code, r.Error)
	}
	if _, errs, _ := p.try("", "runs", "show", "latest"); errs != "" {
		t.Error(errs)
	}
	p.read("out/output/good")
	log := p.read("out/audit.jsonl")
	if len(a.asked) != 3 || strings.Count(log, `"op":"exec","decision":"allow","by":"ada"`) != 1 || !strings.Contains(log, "not that one") {
		t.Errorf("asked %q\n%s", a.asked, log)
	}
	if !slices.ContainsFunc(r.Refused, func(x controller.Refusal) bool {
		return strings.Contains(x.Message, "(ada did not approve: not that one)")
	}) {
		t.Errorf("%+v", r.Refused)
	}
}

func TestQuestionsOfAllRunsAreAnsweredByOperators(t *testing.T) {
	p := newFixture(t, `touch "$AGENTSH_OUTPUT_DIR/$AGENTSH_RUN_ID"; echo "$?" > "$AGENTSH_OUTPUT_DIR/status"`, "")
	p.asks("channel")
	var ended sync.WaitGroup
	for i := range 2 {
		ended.Go(func() {
			cmd := p.command(append(p.runArgs("--quiet"), "--out", fmt.Sprint("out", i))...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	var list []sandboxcmd.Question
	eventually(t, func() bool {
		out, errs, code := p.try("", "approvals", "list", "--json")
		if list = nil; json.Unmarshal([]byte(out), &list) != nil || code != 0 && !strings.Contains(errs, "not ready yet") {
			t.Fatalf("%d %s%s", code, out, errs)
		}
		return len(list) == 2
	})
	out, _, code := p.try("", "approvals", "list")
	for _, q := range list {
		if !strings.Contains(out, q.ID+"  tester  exec") || code != 0 {
			t.Errorf("%d %s", code, out)
		}
	}
	for _, wrong := range []string{"x", "latest/", "latest/99", "nowhere/1"} {
		if _, errs, code := p.try("", "approvals", "allow", wrong); code == 0 || !strings.Contains(errs, "hint: 'agentctl ") {
			t.Errorf("%s: %d %s", wrong, code, errs)
		}
	}
	for i, verb := range []string{"allow", "deny"} {
		if out, errs, code := p.try("", "approvals", verb, list[i].ID); code != 0 {
			t.Errorf("%s: %d %s%s", verb, code, out, errs)
		}
	}
	ended.Wait()
	statuses := strings.TrimSpace(p.read("out0/output/status")) + strings.TrimSpace(p.read("out1/output/status"))
	if strings.Count(statuses, "0") != 1 {
		t.Errorf("statuses %s", statuses)
	}
	var all bytes.Buffer
	for i := range 2 {
		all.WriteString(p.read(fmt.Sprintf("out%d/audit.jsonl", i)))
	}
	if !strings.Contains(all.String(), `"by":"operator root"`) {
		t.Error("the audit logs do not say who answered")
	}
	shown, _, _ := p.try("", "runs", "show", "latest")
	if !strings.Contains(shown, "operator root: allow question 1") && !strings.Contains(shown, "operator root: deny question 1") {
		t.Errorf("runs show: %s", shown)
	}
}
