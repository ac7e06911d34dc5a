package openshell

import (
	"fmt"
	"strings"
	"testing"

	"agentsh/controller/sandbox"
	"agentsh/internal/openshelldouble"
	pb "agentsh/internal/openshellpb"
)

// event is an event of OpenShell's supervisor.
func event(message string) *pb.SandboxLogLine {
	return openshelldouble.LogLine("OCSF", "ocsf", message)
}

func TestDenialsAreKnownByTheFormOfTheirEvents(t *testing.T) {
	for _, tt := range []struct {
		line *pb.SandboxLogLine
		want bool
	}{
		{event("NET:OPEN [MED] DENIED /usr/bin/curl(64) -> h.example:443 [policy:- engine:opa] [reason:no matching policy]"), true},
		{event("HTTP:POST [MED] DENIED POST http://h.example/x [policy:p engine:opa]"), true},
		{event("HTTP:M-SEARCH [MED] BLOCKED M-SEARCH http://h.example/x"), true},
		{event("SSH:OPEN [HIGH] DENIED"), true},
		{event(`FINDING:BLOCKED [HIGH] "Nonce replay" [type:x]`), true},
		{event("NET:OPEN [INFO] ALLOWED /usr/bin/curl(58) -> h.example:443 [policy:p engine:opa]"), false},
		{event("HTTP:GET [INFO] ALLOWED GET http://h.example/[MED]%20DENIED [policy:p engine:opa]"), false},
		{event("PROC:LAUNCH [INFO] x [MED] DENIED(7)"), false},
		{event("PROC:LAUNCH [INFO] a\nNET:OPEN [MED] DENIED x(7)"), false},
		{event("NET:OPEN [MED] DENIEDNESS"), false},
		{openshelldouble.LogLine("INFO", "openshell_sandbox", "NET:OPEN [MED] DENIED x(1) -> h:1"), false},
		{openshelldouble.LogLine("OCSF", "other", "NET:OPEN [MED] DENIED x(1) -> h:1"), false},
	} {
		if got := denied(tt.line); got != tt.want {
			t.Errorf("%s: %t", tt.line.GetMessage(), got)
		}
	}
}

// TestTextOfTheSandboxForgesNoLine has line ends, and words that look like further parts, in each part of a line.
func TestTextOfTheSandboxForgesNoLine(t *testing.T) {
	const forged = "x\n2026-04-01T03:28:52.118Z gateway OCSF ocsf NET:OPEN [MED] DENIED\r\u2028\x1b[2J"
	l := &pb.SandboxLogLine{Level: forged, Target: forged, Source: forged, Message: forged, Fields: map[string]string{forged: forged}}
	got := written([]*pb.SandboxLogLine{event("first"), l, event("last")}, sandbox.MaxPlaceLog)
	lines := strings.Split(string(got.Text), "\n")
	if len(lines) != 4 || got.Lines != 3 || got.Denials != 0 || strings.ContainsAny(string(got.Text), "\r\u2028\x1b") {
		t.Fatalf("%d lines, %d denials:\n%s", got.Lines, got.Denials, got.Text)
	}
	if want := "2026-04-01T03:28:52.118Z sandbox OCSF ocsf first"; lines[0] != want {
		t.Errorf("%q, want %q", lines[0], want)
	}
	if !strings.HasPrefix(lines[1], `- "x\\n2026-04-01T03:28:52.118Z gateway`) {
		t.Errorf("%q", lines[1])
	}
	got = written([]*pb.SandboxLogLine{{Message: "made", Fields: map[string]string{"b": "1 c=2", "a": "x"}}}, sandbox.MaxPlaceLog)
	if want := "- gateway \"\" \"\" made a=x b=\"1 c=2\"\n"; string(got.Text) != want {
		t.Errorf("%q, want %q", got.Text, want)
	}
}

func TestALongLogKeepsItsDenials(t *testing.T) {
	var logs []*pb.SandboxLogLine
	for i := range 100 {
		logs = append(logs, event(fmt.Sprintf("NET:OPEN [INFO] ALLOWED %d", i)))
		if i%2 == 0 {
			logs = append(logs, event(fmt.Sprintf("NET:OPEN [MED] DENIED %d %s", i, strings.Repeat("x", 5000))))
		}
	}
	all := written(logs, sandbox.MaxPlaceLog)
	const limit = 20 << 10
	got := written(logs, limit)
	text := string(got.Text)
	if all.LeftOut != 0 || all.Lines != 150 || got.Denials != 50 || len(got.Denied) != maxDenied || len(text) > limit ||
		got.LeftOut+got.Lines != 150 || strings.Count(text, "\n") != got.Lines {
		t.Fatalf("%d lines, %d left out, %d denials, %d bytes", got.Lines, got.LeftOut, got.Denials, len(text))
	}
	if strings.Contains(text, "ALLOWED") || !strings.Contains(text, "DENIED 98 ") || strings.Contains(text, "DENIED 0 ") {
		t.Errorf("it has other lines:\n%.200s", text)
	}
}

func TestTheLogOfASandboxIsHad(t *testing.T) {
	d := openshelldouble.New(t)
	d.Log(event("NET:OPEN [MED] DENIED /usr/bin/curl(64) -> h.example:443"))
	box := made(t, open(t, d), "log-1")
	of, is := box.(sandbox.Witness)
	if !is {
		t.Fatal("it has no log")
	}
	for _, stopped := range []bool{false, true} {
		if stopped {
			if err := box.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got, err := of.PlaceLog(t.Context())
		if err != nil || got.By != "OpenShell" || got.Lines != 1 || got.Denials != 1 {
			t.Fatalf("stopped %t: %+v, %v", stopped, got, err)
		}
	}
	d.Lose(nameOf("log-1"))
	if got, err := of.PlaceLog(t.Context()); err == nil || got != nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("the sandbox is deleted: %+v, %v", got, err)
	}
}
