package policytest

import (
	"net/netip"
	"strings"
	"testing"

	"agentsh/policy"
)

const recorded = `{"seq":1,"type":"session","phase":"begin"}
{"seq":2,"type":"command","phase":"begin","argv":["make","test"],"path":"/usr/bin/make","decision":"allow","process":{"pid":9,"start_time":1,"cwd":"/workspace"}}
{"seq":3,"type":"exec","argv":["git","status"],"path":"/usr/bin/git","decision":"allow","process":{"pid":9,"start_time":1,"exe":"/usr/bin/make","cwd":"/workspace"}}
{"seq":4,"type":"exec","argv":["/workspace/bin/tool"],"path":"/workspace/bin/tool","decision":"audit"}
{"seq":5,"type":"exec","argv":["git","push","-f"],"path":"/usr/bin/git","decision":"deny"}
{"seq":6,"type":"file","op":"read","path":"/workspace/a.go","decision":"allow"}
{"seq":7,"type":"file","op":"read","path":"/workspace/b.go","decision":"allow"}
{"seq":8,"type":"file","op":"rename","path":"/workspace/c","target":"/workspace/d","decision":"allow"}
{"seq":9,"type":"file","op":"read","path":"/etc/shadow","decision":"deny"}
{"seq":10,"type":"file","op":"read","path":"/etc/hosts","decision":"allow"}
{"seq":11,"type":"net","op":"tcp","target":"proxy.example:443","decision":"allow","process":{"pid":9,"start_time":1,"exe":"/usr/bin/curl"}}
{"seq":12,"type":"net","op":"tcp","target":"[2001:db8::1]:443","decision":"allow"}
{"seq":13,"type":"net","op":"connect","path":"/run/x.sock","decision":"allow"}
{"seq":14,"type":"signal","op":"SIGTERM","target":"children 12 sleep","decision":"allow"}
{"seq":15,"type":"signal","op":"KILL","target":"external 1","decision":"deny"}
{"seq":16,"type":"file","op":"unheard-of","path":"/a","decision":"allow"}
{"seq":17,"type":"command","phase":"end"}
`

// learnText learns from the text of a log.
func learnText(log string) ([]byte, []policy.Request, error) {
	lesson, err := Learn(strings.NewReader(log), "made", Vars(), nil)
	if err != nil {
		return nil, nil, err
	}
	return lesson.Policy, lesson.Widened, nil
}

func TestLearnAllowsWhatWasDoneAndNothingElse(t *testing.T) {
	text, widened, err := learnText(recorded)
	if err != nil {
		t.Fatal(err)
	}
	p := mustLoad(t, string(text))
	allowed := []policy.Request{
		Command([]string{"make", "test"}), Command([]string{"git", "status"}),
		&policy.CommandRequest{Program: policy.Program{Called: "/workspace/bin/tool", Path: "/workspace/bin/tool"}, Argv: []string{"tool"}},
		&policy.FileRequest{Path: "/workspace/a.go", Op: policy.OpRead}, &policy.FileRequest{Path: "/workspace/d", Op: policy.OpRename},
		&policy.NetworkRequest{
			Domain:   "proxy.example",
			Port:     443,
			Protocol: "tcp",
		}, &policy.NetworkRequest{Addr: netip.MustParseAddr("2001:db8::1"), Port: 443, Protocol: "tcp"},
		&policy.UnixSocketRequest{Path: "/run/x.sock", Op: "connect"}, &policy.SignalRequest{Signal: 15, Target: "children"},
	}
	for _, q := range allowed {
		if d, g := p.Evaluate(q); !d.Permits() {
			t.Errorf("%s: %s\n%s", Describe(q), g.Message, text)
		}
	}
	denied := []policy.Request{
		Command(
			[]string{"ls"},
		), &policy.FileRequest{Path: "/etc/shadow", Op: policy.OpRead}, &policy.FileRequest{Path: "/etc/hosts", Op: policy.OpWrite},
		&policy.FileRequest{Path: "/srv/x", Op: policy.OpRead}, &policy.FileRequest{Path: "/workspace/a.go", Op: policy.OpWrite},
		&policy.NetworkRequest{Domain: "proxy.example", Port: 80, Protocol: "tcp"},
		&policy.NetworkRequest{Domain: "other.example", Port: 443, Protocol: "tcp"}, &policy.UnixSocketRequest{Path: "/run/x.sock", Op: "bind"},
		&policy.SignalRequest{Signal: 9, Target: "children"}, &policy.SignalRequest{Signal: 15, Target: "external"},
	}
	for _, q := range denied {
		if d, _ := p.Evaluate(q); d.Permits() {
			t.Errorf("%s is allowed\n%s", Describe(q), text)
		}
	}
	if len(widened) != 1 || Describe(widened[0]) != "git push -f" {
		t.Errorf("widened are %v: a program denied for its arguments is named", widened)
	}
	if !strings.Contains(string(text), "commands: ['${WORKSPACE}/bin/tool', git, make]") {
		t.Errorf("commands are not one rule:\n%s", text)
	}
}

func TestLearnPutsADirectoryForManyFiles(t *testing.T) {
	var log strings.Builder
	for _, name := range strings.Fields("/workspace/a /workspace/b /workspace/c/d /workspace/c/e /usr/lib/x /usr/lib/y /usr/bin/z /usr/share/w /etc/a /etc/b /etc/c /etc/d /home/agent/a /home/agent/b /home/agent/c /home/agent/d /home/other/a") {
		log.WriteString(`{"type":"file","op":"read","path":"` + name + `","decision":"allow"}` + "\n")
	}
	text, _, err := learnText(log.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"${WORKSPACE}/**", "/usr/**", "/etc/a", "${HOME}/a"} {
		if !strings.Contains(string(text), "- "+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, never := range []string{"/home/**", "${WORKSPACE}/a"} {
		if strings.Contains(string(text), "- "+never+"\n") {
			t.Errorf("%s in\n%s", never, text)
		}
	}
	withDenial := log.String() + `{"type":"file","op":"read","path":"/workspace/secret","decision":"deny"}` + "\n"
	if text, _, err = learnText(withDenial); err != nil {
		t.Fatal(err)
	}
	d, _ := mustLoad(t, string(text)).Evaluate(&policy.FileRequest{Path: "/workspace/secret", Op: policy.OpRead})
	if d.Permits() || !strings.Contains(string(text), "${WORKSPACE}/a\n") {
		t.Errorf("a denied file lies below a pattern:\n%s", text)
	}
}

func TestLogsThatCannotBeLearnedFrom(t *testing.T) {
	tests := []struct{ name, log, want string }{
		{"an empty log", "", "holds no request"},
		{"only denials", `{"type":"file","op":"read","path":"/a","decision":"deny"}`, "holds no request"},
		{"not JSON", "{\"type\":\"file\"}\nhello\n", "line 2: not an audit event"},
		{"a line without end", `{"type":"` + strings.Repeat("x", 5<<20), "line 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text, _, err := learnText(tt.log)
			if err == nil || !strings.Contains(err.Error(), tt.want) || text != nil {
				t.Errorf("error is %v, want %q in it", err, tt.want)
			}
		})
	}
}

// A session does not log all that it allows. What a log cannot have is allowed, and said.
func TestLearnSaysWhatALogDoesNotHave(t *testing.T) {
	const ran = `{"type":"command","phase":"begin","path":"/usr/bin/make","argv":["make"],"decision":"allow"}
{"type":"command","phase":"end","path":"/usr/bin/make","argv":["make"],"exit":{"kind":"exited"}}
`
	const program = `{"type":"exec","path":"/usr/bin/make","argv":["make"],"decision":"allow"}` + "\n"
	const file = `{"type":"file","op":"read","path":"/workspace/a","decision":"audit"}` + "\n"
	const noFiles, noPrograms = "has no operations on files", "has no programs"
	for _, tt := range []struct {
		name, log  string
		notes      []string
		want, lack string // in the policy
	}{
		{"everything", ran + program + file, nil, "commands: [make]", "name: workspace\n"},
		{"no files", ran + program, []string{noFiles}, "name: workspace\n", "name: rest-of-the-workspace"},
		{"no programs", ran + file, []string{noPrograms}, "commands: ['*']", "name: workspace\n"},
		{"a denied file", ran + program + `{"type":"file","op":"write","path":"/workspace/b","decision":"deny"}` + "\n",
			[]string{noFiles}, "name: denied-write", "rest-of"},
		{"the guard", `{"type":"session","phase":"begin","git_guard":true}` + "\n" + ran + program + file, nil, "git_guard: true", "name: workspace\n"},
		{"a trash", ran + program + `{"type":"file","op":"delete","path":"/workspace/c","decision":"soft_delete"}` + "\n", nil,
			"decision: soft_delete", "name: workspace\n"},
		{"an absorbed signal", ran + program + file + `{"type":"signal","op":"SIGTERM","target":"parent 1 x","decision":"absorb"}` + "\n", nil,
			"decision: absorb", "name: workspace\n"},
		{"a redirect", ran + program + file + `{"type":"command","phase":"begin","path":"/usr/bin/true","argv":["curl","x"],"decision":"redirect"}` + "\n",
			[]string{"curl x was redirected"}, "commands: [make]", "curl"},
	} {
		lesson, err := Learn(strings.NewReader(tt.log), "made", Vars(), nil)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		text := string(lesson.Policy)
		if !strings.Contains(text, tt.want) || strings.Contains(text, tt.lack) {
			t.Errorf("%s: want %q and not %q in\n%s", tt.name, tt.want, tt.lack, text)
		}
		if len(lesson.Notes) != len(tt.notes) {
			t.Errorf("%s: notes are %q", tt.name, lesson.Notes)
		}
		for i, want := range tt.notes {
			if i < len(lesson.Notes) && !strings.Contains(lesson.Notes[i], want) {
				t.Errorf("%s: note %q, want %q in it", tt.name, lesson.Notes[i], want)
			}
		}
	}
	_, err := Learn(strings.NewReader(`{"type":"exec","path":"redacted:00","argv":["redacted:01"],"decision":"allow"}`), "made", Vars(), nil)
	if err == nil || !strings.Contains(err.Error(), "redacted") {
		t.Errorf("a redacted log: %v", err)
	}
}

// A connection by an address has its name in the log, and one by a name its address.
func TestLearnKnowsTheNameAndTheAddressOfAConnection(t *testing.T) {
	const log = `{"type":"net","phase":"end","target":"store.test at 198.51.100.7:443","decision":"allow","net":{"id":1,"address":"198.51.100.7:443"}}
{"type":"net","phase":"end","target":"localhost at [::1]:5432","decision":"allow","net":{"id":2,"address":"[::1]:5432"}}
{"type":"net","phase":"end","target":"inner.test:443","decision":"allow","net":{"id":3,"address":"10.1.2.3:443"}}
`
	text, _, err := learnText(log)
	if err != nil {
		t.Fatal(err)
	}
	p := mustLoad(t, string(text))
	for _, q := range []*policy.NetworkRequest{
		{Domain: "store.test", Addr: netip.MustParseAddr("198.51.100.7"), Port: 443, Protocol: "tcp"},
		{Addr: netip.MustParseAddr("::1"), Port: 5432, Protocol: "tcp"},
		{Domain: "inner.test", Addr: netip.MustParseAddr("10.1.2.3"), Port: 443, Protocol: "tcp"},
	} {
		if d, why := p.Evaluate(q); !d.Permits() {
			t.Errorf("%s: %s\n%s", Describe(q), why.Message, text)
		}
	}
	other := &policy.NetworkRequest{Domain: "other.test", Addr: netip.MustParseAddr("198.51.100.7"), Port: 443, Protocol: "tcp"}
	if d, _ := p.Evaluate(other); d.Permits() {
		t.Errorf("another name is allowed\n%s", text)
	}
}

func TestReplayJudgesARecordedSession(t *testing.T) {
	p := mustLoad(
		t,
		strings.Replace(
			small,
			"block-kill",
			"block-make",
			1,
		)+"network_rules: [{name: n, domains: [proxy.example], ports: [443], decision: allow}]\n",
	)
	var changed []string
	count, err := Replay(p, strings.NewReader(recorded), nil, func(r Replayed) error {
		if r.Changed() {
			changed = append(changed, r.Was+">"+r.Now.Effect.String()+" "+Describe(r.Request))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if count != (ReplayCount{Judged: 15, Changed: 6, Skipped: 1}) {
		t.Errorf("count is %+v, changed are %q", count, changed)
	}
	for _, want := range []string{"allow>deny make test (in /workspace)", "allow>deny read /etc/hosts", "allow>deny signal TERM to children sleep pid 12"} {
		if !strings.Contains(strings.Join(changed, "\n"), want) {
			t.Errorf("changed are %q, want %q in them", changed, want)
		}
	}
}

func FuzzReplay(f *testing.F) {
	for line := range strings.Lines(recorded) {
		f.Add(line)
	}
	p := mustLoad(f, small)
	f.Fuzz(func(t *testing.T, log string) {
		count, err := Replay(p, strings.NewReader(log), nil, func(Replayed) error { return nil })
		if err == nil && count.Changed > count.Judged {
			t.Errorf("count is %+v", count)
		}
		text, _, err := learnText(log)
		if (text == nil) != (err != nil) && !strings.Contains(err.Error(), "learned policy") {
			t.Errorf("policy %q, error %v", text, err)
		}
	})
}
