package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// scenario says what a hostile supervisor does wrong. It is in the file that
// --agentsh-config names, because a supervisor has no other input of the test.
type scenario struct {
	At    string `json:"at"`    // the operation: hello, files.OP, exec.agent, exec.git, events
	Does  string `json:"does"`  // what it does then
	Ready string `json:"ready"` // a fifo that gets a byte when it begins

	// Operator is what it does to operators, which come once the agent was started. It
	// then also stays when its stream has ended. Empty: nothing.
	Operator   string `json:"operator"`
	OperatorAt string `json:"operator_at"` // at this operation; empty: at all
	Reached    string `json:"reached"`     // a fifo that gets a byte when an operator begins it
}

// hostile is the text of messages that control a terminal.
const hostile = "\x1b]0;title\x07\x1b[2J\u009b31m\r\u202e\x7f\n::error::x\nagentctl: hint: rm -rf /"

// hostileSupervisor is a supervisor that answers keepalives. It does what a run
// expects, up to one operation.
func hostileSupervisor() {
	if err := (&hostilePeer{}).serve(); err != nil {
		fmt.Fprintln(os.Stderr, "agentsh: hostile supervisor:", err)
		os.Exit(1)
	}
}

// wrong and never are the bytes that a fifo of a scenario gets: from the supervisor when it
// begins to do wrong, and from the test when it cannot begin any more.
const wrong, never = 'w', 'n'

type hostilePeer struct {
	s      scenario
	once   sync.Once
	atWork atomic.Bool // the agent was started, and others are operators
	peer   ssh.Conn
	asked  chan struct{} // of a place: closed when the session is to end
}

func (h *hostilePeer) serve() error {
	data, err := os.ReadFile(os.Args[len(os.Args)-1])
	if err == nil {
		err = json.Unmarshal(data, &h.s)
	}
	if err != nil {
		return err
	}
	var boot wire.Bootstrap
	if err := json.NewDecoder(os.NewFile(4, "bootstrap")).Decode(&boot); err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(3, "stream"))
	if err != nil {
		return err
	}
	return h.serveOn(conn, boot)
}

// serveOn serves a controller on a connection.
func (h *hostilePeer) serveOn(conn net.Conn, boot wire.Bootstrap) error {
	key, err := ssh.ParsePrivateKey(boot.HostKey)
	if err != nil {
		return err
	}
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
	cfg.AddHostKey(key)
	peer, chans, reqs, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return err
	}
	h.peer = peer
	go h.globals(reqs)
	for n := range chans {
		go h.channel(n)
	}
	if h.s.Operator != "" {
		select {}
	}
	return nil
}

// bad reports whether an operation is the one at which it does wrong.
func (h *hostilePeer) bad(at string) bool {
	if h.atWork.Load() {
		if !strings.HasPrefix(at, h.s.OperatorAt) {
			return false
		}
		if f, err := os.OpenFile(h.s.Reached, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil { // else nobody waits
			_, _ = f.Write([]byte{wrong})
			f.Close()
		}
		return true
	}
	if !strings.HasPrefix(at, h.s.At) {
		return false
	}
	h.once.Do(func() {
		h.atWork.Store(h.s.Operator != "") // before anybody knows
		if f, err := os.OpenFile(h.s.Ready, os.O_WRONLY, 0); err == nil {
			_, _ = f.Write([]byte{wrong})
			f.Close()
		}
	})
	return true
}

func (h *hostilePeer) globals(reqs <-chan *ssh.Request) {
	for r := range reqs {
		hello := wire.Hello{Version: wire.Current, Instance: "hostile", PolicyDigest: "sha256:0"}
		switch {
		case r.Type == "keepalive@agentsh":
			_ = r.Reply(true, nil)
		case r.Type != "hello@agentsh":
		case !h.bad("hello"):
			data, _ := json.Marshal(map[string]any{"hello": hello})
			_ = r.Reply(true, data)
		case h.s.Does == "text":
			hello.PolicyDigest, hello.Build = hostile, hostile
			data, _ := json.Marshal(map[string]any{"hello": hello, "error": wire.Error{Code: wire.CodeRefused, Message: hostile}})
			_ = r.Reply(true, data)
		}
	}
}

func (h *hostilePeer) channel(n ssh.NewChannel) {
	kind, _, _ := strings.Cut(n.ChannelType(), "@")
	if h.does() == "closed" && h.s.OperatorAt == "" && h.bad(kind) {
		return
	}
	ch, reqs, err := n.Accept()
	if err != nil {
		return
	}
	go func() {
		for range reqs { // without an answer
		}
	}()
	extra := n.ExtraData()
	if len(extra) == 0 {
		if extra, err = readMessage(ch); err != nil {
			return
		}
	}
	switch kind {
	case "exec":
		h.exec(ch, extra)
	case "files":
		h.files(ch, extra)
	case "events":
		h.events(ch, extra)
		if h.asked != nil {
			<-h.asked
			_ = ch.Close()
		}
	case "session":
		h.end(ch, extra)
	}
}

func (h *hostilePeer) exec(ch ssh.Channel, first []byte) {
	var req wire.ExecRequest
	_ = json.Unmarshal(first, &req)
	what, code := "exec.agent", 0
	if len(req.Argv) > 0 && req.Argv[0] == "git" {
		what, code = "exec.git", 1
	}
	exit, printed := wire.Exit{Kind: wire.ExitExited, Code: code}, wire.OutputEnd{}
	operator := h.atWork.Load()
	if h.bad(what) {
		does := h.does()
		if !operator {
			does = h.s.Does
		}
		switch does {
		case "mute":
			return
		case "endless":
			line := bytes.Repeat([]byte("all work and no play\n"), 1000)
			for {
				if _, err := ch.Write(line); err != nil {
					return
				}
			}
		case "text":
			_, _ = io.WriteString(ch, hostile+"\n")
			printed.Stdout = int64(len(hostile) + 1)
			exit = wire.Exit{Kind: wire.ExitDenied, Message: hostile, Hint: hostile, Rule: &wire.RuleAt{Name: hostile, File: hostile, Line: 1}}
		case "junk":
			_, _ = ch.SendRequest("end@agentsh", false, []byte(strings.Repeat("[", 200_000)))
			return
		case "channels":
			h.openChannels()
		case "requests":
			for range manyChannels {
				_, _, _ = h.peer.SendRequest("more@agentsh", false, bytes.Repeat([]byte("x"), 1000))
			}
		}
	}
	end, _ := json.Marshal(map[string]any{"exit": exit, "output": printed, "tree": wire.TreeEmpty{}})
	_, _ = ch.SendRequest("end@agentsh", false, end)
	_ = ch.Close()
}

func (h *hostilePeer) files(ch ssh.Channel, first []byte) {
	var req wire.FileRequest
	_ = json.Unmarshal(first, &req)
	bad := h.bad("files." + req.Op)
	out, listing, reply := chunks{ch}, []byte(nil), wire.FileReply{}
	switch req.Op {
	case wire.OpChanges: // a commit, which is then asked for
		listing = []byte(`[{"path":"workspace/repo/.git/HEAD","kind":"modified"}]`)
	case wire.OpList, wire.OpHistory:
		listing = []byte("[]")
	case wire.OpStat:
		reply.Info = &wire.FileInfo{Name: "a", Type: "dir"}
	}
	if req.Op == wire.OpCopyIn || req.Op == wire.OpWrite {
		if bad && h.does() == "mute" {
			return // its window fills
		}
		listing = unpack(ch)
	}
	if req.Op == wire.OpCopyOut {
		listing = []byte(`{"entries":[]}`)
	}
	if bad {
		switch h.does() {
		case "mute":
			return
		case "endless":
			if req.Op == wire.OpChanges || req.Op == wire.OpHistory {
				out.end()
			}
			endlessly(out, req)
			return
		case "names":
			if req.Op == wire.OpChanges || req.Op == wire.OpHistory {
				out.end()
			}
			manyNames(out, req)
			return
		case "lies":
			lie(out)
		case "trailer":
			archive := tarfs.NewWriter(out, tarfs.Limits{})
			_, _ = archive.Close()
			zeros := make([]byte, 64<<10)
			for {
				if _, err := out.Write(zeros); err != nil {
					return
				}
			}
		case "text":
			out.end()
			out.end()
			reply, _ := json.Marshal(wire.FileReply{Error: &wire.Error{Code: wire.CodeInternal, Message: hostile}})
			writeMessage(ch, reply)
			_ = ch.Close()
			return
		case "junk":
			_, _ = ch.Write([]byte{0xff, 0xff, 0xff, 0xf0})
			return
		}
	} else if req.Op == wire.OpCopyOut {
		_, _ = tarfs.NewWriter(out, tarfs.Limits{}).Close()
	}
	out.end()
	_, _ = out.Write(listing)
	out.end()
	data, _ := json.Marshal(reply)
	writeMessage(ch, data)
	_ = ch.Close()
}

// unpack reads an archive and returns its manifest.
func unpack(ch io.Reader) []byte {
	dir, err := os.MkdirTemp("", "hostile-")
	if err != nil {
		return nil
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	r, w := io.Pipe()
	go func() {
		for {
			chunk, err := readMessage(ch)
			if err != nil || len(chunk) == 0 {
				w.CloseWithError(err)
				return
			}
			_, _ = w.Write(chunk)
		}
	}()
	m, _ := tarfs.Unpack(context.Background(), root, r, tarfs.UnpackOptions{})
	_, _ = io.Copy(io.Discard, r)
	data, _ := json.Marshal(m)
	return data
}

// endlessly sends an archive, or a list, without an end.
func endlessly(w io.Writer, req wire.FileRequest) {
	if req.Op != wire.OpCopyOut {
		one := `{"path":"a","kind":"created"},`
		if req.Op == wire.OpHistory && req.History.List {
			one = `{"checkpoint":{"id":"1"}},`
		} else if req.Op == wire.OpHistory {
			one = `{"change":` + strings.TrimSuffix(one, ",") + `},`
		}
		_, err := io.WriteString(w, "[")
		for some := strings.Repeat(one, 1000); err == nil; {
			_, err = io.WriteString(w, some)
		}
		return
	}
	archive := tarfs.NewWriter(w, tarfs.Limits{Files: 1 << 30})
	for i := 0; ; i++ {
		if _, err := archive.File(fmt.Sprint("f", i), 0o644, 0, strings.NewReader("")); err != nil {
			return
		}
	}
}

// manyNames sends an archive, or a list, of long names without an end.
func manyNames(w io.Writer, req wire.FileRequest) {
	dir, base := strings.Repeat(strings.Repeat("d", 250)+"/", 14), strings.Repeat("n", 200)
	archive := tarfs.NewWriter(w, tarfs.Limits{Files: 1 << 30})
	_, err := io.WriteString(w, strings.Repeat("[", btoi(req.Op != wire.OpCopyOut)))
	for i := 0; err == nil; i++ {
		name := fmt.Sprintf("%x%s%d%s", i%16, dir, i, base)
		switch req.Op {
		case wire.OpChanges:
			_, err = fmt.Fprintf(w, `{"path":"workspace/repo/%s","kind":"deleted"},`, name)
		case wire.OpHistory:
			_, err = fmt.Fprintf(w, `{"checkpoint":{"id":"1","name":"%s"}},`, name)
		default:
			err = archive.Symlink(name, name)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// lie sends an archive that ends without its manifest.
func lie(w io.Writer) {
	var b bytes.Buffer
	archive := tarfs.NewWriter(&b, tarfs.Limits{})
	_, _ = archive.File("f", 0o644, 4, strings.NewReader("true"))
	_, _ = archive.Close()
	_, _ = w.Write(bytes.Replace(b.Bytes(), []byte("true"), []byte("lies"), 1))
}

func (h *hostilePeer) events(ch ssh.Channel, first []byte) {
	var req wire.EventRequest
	_ = json.Unmarshal(first, &req)
	bad := h.bad("events")
	if !bad && req.SoFar { // there is none
		_, _ = ch.SendRequest("end@agentsh", false, nil)
		_ = ch.Close()
	}
	if !bad || h.does() == "mute" {
		return
	}
	if h.does() == "junk" {
		_, _ = ch.Write([]byte{0xff, 0xff, 0xff, 0xf0})
		return
	}
	e := wire.Event{Type: wire.EventExec, Decision: "deny", Path: hostile, Message: hostile, Hint: hostile, Argv: wire.Names{hostile}}
	for e.Seq = 1; ; e.Seq++ {
		if h.does() == "endless" {
			e.Path, e.Command, e.By = fmt.Sprint(e.Seq), fmt.Sprint(e.Seq), "x"
		}
		data, _ := json.Marshal(e)
		if writeMessage(ch, data) != nil {
			return
		}
		if h.does() == "text" { // without the message that everything was sent
			_ = ch.Close()
			return
		}
	}
}

// does says what it does wrong now.
func (h *hostilePeer) does() string {
	if h.atWork.Load() {
		return h.s.Operator
	}
	return h.s.Does
}

func readMessage(r io.Reader) ([]byte, error) {
	var n uint32
	if err := binary.Read(r, binary.BigEndian, &n); err != nil {
		return nil, err
	}
	if n > 1<<24 {
		return nil, errors.New("too long")
	}
	data := make([]byte, n)
	_, err := io.ReadFull(r, data)
	return data, err
}

func writeMessage(w io.Writer, data []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// chunks is a body of a file operation.
type chunks struct{ w io.Writer }

func (c chunks) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := min(len(p), 64<<10)
		if err := writeMessage(c.w, p[:n]); err != nil {
			return 0, err
		}
		p = p[n:]
	}
	return total, nil
}

func (c chunks) end() { _ = writeMessage(c.w, nil) }

// maxMemory is what agentctl may use whatever a supervisor sends, in KiB.
const maxMemory = 100_000_000 >> 10

// moment is a fifo of a scenario, open before anybody writes to it.
type moment struct {
	fifo  *os.File
	began chan struct{} // closed when the supervisor does what is wrong
	over  chan struct{} // closed when the fifo is read no more
}

func (p *fixture) moment(name string) moment {
	p.t.Helper()
	if err := syscall.Mkfifo(p.path(name), 0o600); err != nil {
		p.t.Fatal(err)
	}
	fifo, err := os.OpenFile(p.path(name), os.O_RDWR, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { fifo.Close() }) // ends the read
	m := moment{fifo, make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(m.over)
		b := make([]byte, 1)
		if _, err := fifo.Read(b); err == nil && b[0] == wrong {
			close(m.began)
		}
	}()
	return m
}

// was reports whether the moment has come. The supervisor has ended.
func (m moment) was() bool {
	_, _ = m.fifo.Write([]byte{never})
	<-m.over
	select {
	case <-m.began:
		return true
	default:
		return false
	}
}

// hostileRun prepares a run with a hostile supervisor. The moment is that in which the
// supervisor does what is wrong.
func (p *fixture) hostileRun(at, does string, more ...string) (cmd *exec.Cmd, said *bytes.Buffer, wrong moment) {
	p.t.Helper()
	return p.hostileTo(scenario{At: at, Does: does}, more...)
}

// hostileTo is hostileRun for a scenario.
func (p *fixture) hostileTo(s scenario, more ...string) (cmd *exec.Cmd, said *bytes.Buffer, wrong moment) {
	p.t.Helper()
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	s.Ready = p.path("ready")
	wrong = p.moment("ready")
	data, _ := json.Marshal(s)
	p.write("scenario", string(data), 0o644)
	cmd = p.command(p.runArgs(append([]string{"--agentsh", program, "--agentsh-config", p.path("scenario")}, more...)...)...)
	said = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	p.t.Cleanup(func() { _ = p.command("gc").Run() })
	return cmd, said, wrong
}

// endHostile runs agentctl to its end, which must come after the moment in which its peer did
// wrong, and checks it. It returns its greatest memory in KiB.
func endHostile(t *testing.T, cmd *exec.Cmd, said *bytes.Buffer, wrong moment) int64 {
	t.Helper()
	ended, used := start(t, cmd)
	limit := time.AfterFunc(2*time.Minute, func() {
		t.Error("it did not end")
		_ = cmd.Process.Kill()
	})
	<-ended
	limit.Stop()
	if !wrong.was() {
		t.Error("it ended before its peer did wrong")
	}
	checkHostile(t, cmd, said.String(), used.Load())
	return used.Load()
}

// checkHostile checks an ended agentctl, and its greatest memory in KiB.
func checkHostile(t *testing.T, cmd *exec.Cmd, said string, used int64) {
	t.Helper()
	t.Logf("%s, %d KiB\n%.3000s", cmd.ProcessState, used, said)
	checkText(t, "the output", said)
	if used > maxMemory {
		t.Errorf("it used %d KiB", used)
	}
	if peakMemory(os.Getpid()) == 0 {
		t.Error("the memory of a process cannot be read")
	}
	if strings.Contains(said, " was not answered within ") {
		t.Error("it waited for an answer until the end of its patience")
	}
}

// start starts a command. ended is closed when it has ended. used is its greatest
// memory in KiB until then, read every 10 ms: the maximum that wait4(2) reports
// includes the memory of this process, whose memory the command shared before its
// execve. It is 0 if the command ended before the first look.
func start(t testing.TB, cmd *exec.Cmd) (ended <-chan struct{}, used *atomic.Int64) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited, used := make(chan struct{}), &atomic.Int64{}
	used.Store(peakMemory(cmd.Process.Pid))
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-waited:
				return
			case <-tick.C:
				used.Store(max(used.Load(), peakMemory(cmd.Process.Pid)))
			}
		}
	}()
	go func() {
		_ = cmd.Wait()
		close(waited)
	}()
	return waited, used
}

// peakMemory is the greatest resident memory of a process so far in KiB, or 0.
func peakMemory(pid int) (kib int64) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := bytes.Cut(data, []byte("VmHWM:"))
	_, _ = fmt.Sscan(string(rest), &kib)
	return kib
}

// interrupt sends signals to a process until it has ended. Without an end by the second
// one the process would stay for ever.
func interrupt(t *testing.T, cmd *exec.Cmd, ended <-chan struct{}) {
	t.Helper()
	_ = cmd.Process.Signal(syscall.SIGINT)
	tick := time.NewTicker(200 * time.Millisecond) // signals that come together are one
	defer tick.Stop()
	hangs := time.After(2 * time.Minute)
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			_ = cmd.Process.Signal(syscall.SIGINT)
		case <-hangs:
			t.Errorf("process %d goes on after the second signal", cmd.Process.Pid)
			_ = cmd.Process.Kill()
			<-ended
			return
		}
	}
}

func TestTwoSignalsEndARunWithAMuteSupervisor(t *testing.T) {
	for _, at := range []string{
		"hello", "events", "files.copy_in", "exec.agent", "exec.git", "files.changes", "files.copy_out",
	} {
		for _, does := range []string{"mute", "closed"} {
			if at == "hello" && does == "closed" || at == "events" && does == "mute" {
				continue
			}
			t.Run(does+" at "+at, func(t *testing.T) {
				t.Parallel()
				p := newFixture(t, "true", "security: {enabled: false}")
				if does == "closed" {
					at, _, _ = strings.Cut(at, ".")
				}
				cmd, said, wrong := p.hostileRun(at, does)
				ended, used := start(t, cmd)
				select {
				case <-wrong.began:
				case <-ended:
					t.Fatalf("it ended before: %s", said)
				}
				interrupt(t, cmd, ended)
				checkHostile(t, cmd, said.String(), used.Load())
				if strings.Contains(said.String(), "context canceled") {
					t.Error("it speaks of a context")
				}
				if code := cmd.ProcessState.ExitCode(); code != 130 {
					t.Errorf("exit code %d", code)
				}
			})
		}
	}
}

func TestAHostileSupervisorIsBounded(t *testing.T) {
	for _, tt := range []struct {
		at, does, says string
		code           int
		more           []string
	}{
		{"exec.agent", "endless", "more than 2 MiB", 1, []string{"--max-output", "2"}},
		{"exec.git", "endless", "wrote more bytes than are taken", 4, nil},
		{"files.changes", "endless", "listing has more than", 4, nil},
		{"files.copy_out", "endless", "", 4, nil},
		{"files.copy_out", "names", "brings the names of the archive to", 4, nil},
		{"files.changes", "names", "the names of the changed files take more than", 4, nil},
		{"files.copy_out", "lies", "", 4, nil},
		{"files.copy_out", "trailer", "", 0, nil},
		{"files.copy_out", "junk", "", 4, nil},
		{"files.copy_in", "junk", "", 4, nil},
		{"exec.agent", "junk", "end@agentsh", 4, nil},
		{"events", "endless", "", 0, nil},
		{"hello", "text", "refused by the supervisor", 4, nil},
		{"events", "text", "refused: exec", 0, nil},
		{"exec.agent", "text", "", 1, nil},
		{"files.changes", "text", "", 4, nil},
		{"files.copy_out", "text", "", 4, nil},
		{"files.copy_in", "text", "", 4, nil},
	} {
		t.Run(tt.does+" at "+tt.at, func(t *testing.T) {
			t.Parallel()
			p := newFixture(t, "true", "security: {enabled: false}")
			cmd, said, wrong := p.hostileRun(tt.at, tt.does, tt.more...)
			endHostile(t, cmd, said, wrong)
			if code := cmd.ProcessState.ExitCode(); tt.code != 0 && code != tt.code || !strings.Contains(said.String(), tt.says) {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
