package tools

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// openBox makes a sandbox of the local backend.
func openBox(t testing.TB) sandbox.Sandbox {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	policy, err := os.ReadFile("../../examples/policies/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	backend := local.New(local.Config{State: state, Agentsh: testenv.Agentsh(t)})
	ctx := context.Background()
	box, err := backend.Create(ctx, sandbox.Spec{
		RunID: "tools", Home: layout.Home, Policy: []wire.PolicySource{{Name: "demo.yaml", Data: policy}},
		Vars: map[string]string{"WORKSPACE": layout.Workspace, "PROJECT_ROOT": layout.Workspace, "HOME": layout.Home},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Delete(ctx); err != nil {
			t.Error(err)
		}
	})
	if _, err := box.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return box
}

// openTools makes the tools of a new sandbox.
func openTools(t testing.TB) *Toolbox {
	t.Helper()
	box, err := New(context.Background(), Config{Program: "test", Version: "1", Sandbox: openBox(t), Dir: layout.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

// serve connects a stream to the tools. The result ends when Serve has returned.
func serve(t testing.TB, box *Toolbox) (in io.WriteCloser, out io.Reader, ended <-chan error) {
	t.Helper()
	read, in := io.Pipe()
	out, write := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the stream, which the test closes
		done <- box.Serve(context.Background(), read, write)
		_ = write.Close()
	}()
	t.Cleanup(func() { _ = in.Close() })
	return in, out, done
}

// connect connects a client of the SDK.
func connect(t testing.TB, box *Toolbox) *mcp.ClientSession {
	t.Helper()
	in, out, _ := serve(t, box)
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(context.Background(), &mcp.IOTransport{Reader: io.NopCloser(out), Writer: in}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func callExec(ctx context.Context, client *mcp.ClientSession, argv ...string) (*mcp.CallToolResult, error) {
	return client.CallTool(ctx, &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"argv": argv}})
}

// TestCallsLeaveNothing holds memory, descriptors and goroutines after 1,000 calls.
func TestCallsLeaveNothing(t *testing.T) {
	box := openTools(t)
	client := connect(t, box)
	calls := func(n int) {
		for i := range n {
			if res, err := callExec(context.Background(), client, "sh", "-c", "echo $0", fmt.Sprint(i)); err != nil || res.IsError {
				t.Fatal(res, err)
			}
		}
	}
	used := func() (memory uint64, files, routines int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return m.HeapAlloc, len(list), runtime.NumGoroutine()
	}
	calls(2 * maxEnded) // until what is kept is full
	memory, files, routines := used()
	calls(1000)
	m, f, r := used()
	if m > memory+1<<20 || f > files+2 || r > routines+5 {
		t.Errorf("heap %d to %d bytes, %d to %d descriptors, %d to %d goroutines", memory, m, files, f, routines, r)
	}
}

// TestCallsAreCancelledUnderLoad cancels calls at any time while others run.
func TestCallsAreCancelledUnderLoad(t *testing.T) {
	box := openTools(t)
	client := connect(t, box)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*5*time.Millisecond)
			defer cancel()
			if i%4 == 0 {
				ctx = context.Background()
			}
			argv := []string{"sh", "-c", "sleep 86399 & sleep 86399"}
			if i%4 == 0 {
				argv = []string{"seq", "1000"}
			}
			res, err := callExec(ctx, client, argv...)
			if i%4 == 0 && (err != nil || res.IsError) {
				t.Errorf("a call beside cancelled ones: %v %v", res, err)
			}
			if i%4 != 0 && err == nil {
				t.Error("a cancelled call has a result")
			}
		})
	}
	wg.Wait()
	limit := time.After(2 * time.Minute)
	for {
		res, err := callExec(context.Background(), client, "pgrep", "-a", "-x", "sleep")
		if err != nil {
			t.Fatal(err)
		}
		said := res.Content[0].(*mcp.TextContent).Text
		if !strings.Contains(said, "86399") {
			return
		}
		select {
		case <-limit:
			t.Fatalf("commands of cancelled calls go on: %s", said)
		default:
		}
	}
}

// TestAHostileClientHarmsOnlyItself sends what no client sends. The tools go on for the next one.
func TestAHostileClientHarmsOnlyItself(t *testing.T) {
	box := openBox(t)
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	for name, lines := range map[string][]string{
		"a huge message":    {`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", maxMessage+1) + `"}`},
		"no line end":       {strings.Repeat("[", maxMessage+1)},
		"deep JSON":         {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + deep + `}`},
		"no JSON":           {"\x00\xff\xfe{{{{"},
		"an early call":     {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"argv":["true"]}}}`},
		"a huge id":         {`{"jsonrpc":"2.0","id":"` + strings.Repeat("i", 1<<20) + `","method":"ping"}`},
		"a flood of pings":  repeated(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, 20_000),
		"a flood of cancel": repeated(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, 20_000),
	} {
		t.Run(name, func(t *testing.T) {
			tools, err := New(context.Background(), Config{Program: "test", Version: "1", Sandbox: box, Dir: layout.Sandbox})
			if err != nil {
				t.Fatal(err)
			}
			defer tools.Close()
			in, out, ended := serve(t, tools)
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the server
			for _, line := range lines {
				if _, err := io.WriteString(in, line+"\n"); err != nil {
					break // the server has ended the stream
				}
			}
			_ = in.Close()
			select {
			case <-ended: // with an error, or without
			case <-time.After(2 * time.Minute):
				t.Fatal("the server does not end")
			}
		})
	}
	tools, err := New(context.Background(), Config{Program: "test", Version: "1", Sandbox: box, Dir: layout.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	defer tools.Close()
	if res, err := callExec(context.Background(), connect(t, tools), "true"); err != nil || res.IsError {
		t.Errorf("%v %v", res, err)
	}
}

func repeated(format string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(format, i))
	}
	return out
}

// TestAFloodOfCallsIsBounded holds that calls beyond the limit of running commands wait.
func TestAFloodOfCallsIsBounded(t *testing.T) {
	box := openTools(t)
	client := connect(t, box)
	var wg sync.WaitGroup
	for range 5 * maxRunning {
		wg.Go(func() {
			if res, err := callExec(context.Background(), client, "true"); err != nil || res.IsError {
				t.Errorf("%v %v", res, err)
			}
		})
	}
	wg.Wait()
	box.Close() // a command that has answered may still be leaving
	if len(box.slots) != 0 {
		t.Errorf("%d slots are taken", len(box.slots))
	}
}

// TestMessagesAreLines holds the form of the stream, without the SDK's client.
func TestMessagesAreLines(t *testing.T) {
	in, out, _ := serve(t, openTools(t))
	go func() { // ends when they are read
		_, _ = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
			`"clientInfo":{"name":"x","version":"1"}}}`+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"+
			`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`+"\n")
	}()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for _, want := range []string{`"protocolVersion":"2025-06-18"`, `"name":"exec"`} {
		if !lines.Scan() || !json.Valid(lines.Bytes()) || !bytes.Contains(lines.Bytes(), []byte(want)) {
			t.Errorf("%q does not have %q: %v", lines.Text(), want, lines.Err())
		}
	}
}

// BenchmarkCall compares a program that does nothing by a tool with one by the channel alone. The two take turns, and
// the medians are compared: what else the machine does weighs on both.
func BenchmarkCall(b *testing.B) {
	box := openTools(b)
	client := connect(b, box)
	ctx := context.Background()
	var channel, tool []time.Duration
	for b.Loop() {
		start := time.Now()
		if _, err := box.cfg.Sandbox.Run(ctx, wire.ExecRequest{Argv: []string{"true"}}, wire.Streams{}); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		res, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"argv": []string{"true"}}})
		if err != nil || res.IsError {
			b.Fatal(res, err)
		}
		channel, tool = append(channel, between.Sub(start)), append(tool, time.Since(between))
	}
	slices.Sort(channel)
	slices.Sort(tool)
	middle := len(channel) / 2
	b.ReportMetric(float64(channel[middle].Microseconds()), "us/channel")
	b.ReportMetric(float64(tool[middle].Microseconds()), "us/tool")
	b.ReportMetric(float64((tool[middle] - channel[middle]).Microseconds()), "us/more")
}

// withoutBash is a sandbox that has no bash, and takes the input of a program before it looks for it.
type withoutBash struct{ sandbox.Executor }

func (w withoutBash) Run(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, error) {
	if req.Argv[0] == "bash" {
		_, err := io.Copy(io.Discard, s.Stdin)
		return wire.Exit{Kind: wire.ExitSpawnFailed, Code: 127}, err
	}
	return w.Executor.Run(ctx, req, s)
}

func TestAScriptWithoutBashHasItsInput(t *testing.T) {
	box := openTools(t)
	box.cfg.Sandbox = withoutBash{box.cfg.Sandbox}
	res, err := connect(t, box).CallTool(context.Background(), &mcp.CallToolParams{
		Name: "exec", Arguments: map[string]any{"command": "cat; echo $0", "stdin": "input\n"},
	})
	if err != nil || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "input\nsh\n") {
		t.Errorf("%+v %v", res, err)
	}
}
