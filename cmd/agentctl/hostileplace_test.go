package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/resume"
	"agentsh/internal/socket"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
)

// manyChannels is how many channels or requests a hostile supervisor sends: a controller
// that stored 500 bytes of each would use more than [maxMemory].
const manyChannels = 200_000

// openChannels opens channels to the controller, many at a time.
func (h *hostilePeer) openChannels() {
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for range manyChannels / 64 {
				_, _, err := h.peer.OpenChannel("exec@agentsh", bytes.Repeat([]byte("x"), 1000))
				if err == nil {
					panic("the controller opened a channel of the supervisor")
				}
				if refused := (*ssh.OpenChannelError)(nil); !errors.As(err, &refused) {
					return // the connection has ended
				}
			}
		})
	}
	all.Wait()
}

// end answers the request for the end of the session.
func (h *hostilePeer) end(ch ssh.Channel, first []byte) {
	var req wire.SessionRequest
	if json.Unmarshal(first, &req) != nil || req.Op != wire.OpEnd {
		return
	}
	reply := wire.SessionReply{Ended: &wire.Ended{}}
	if h.bad("end") {
		switch h.does() {
		case "json":
			_, _ = ch.Write(binary.BigEndian.AppendUint32(nil, hugeJSON))
			huge(ch)
			return
		default:
			reply.Ended.Trashed = 1 << 40
		}
	}
	data, _ := json.Marshal(reply)
	_ = writeMessage(ch, data)
	_ = ch.Close()
	if h.asked != nil {
		close(h.asked)
	}
}

// hugeJSON is the length of a huge message, in bytes.
const hugeJSON = 100 << 20

// huge sends it.
func huge(w io.Writer) {
	part := bytes.Repeat([]byte("["), 1<<20)
	for range hugeJSON / len(part) {
		if _, err := w.Write(part); err != nil {
			return
		}
	}
}

// place answers a controller as agentsh serve --listen does, up to the step that is wrong.
func (h *hostilePeer) place(_ context.Context, c *socket.Conn) {
	if h.bad("place.hello") && !h.wrongly(c) {
		return
	}
	if stdio.Write(c, wire.PlaceHello{Version: wire.Current}) != nil {
		return
	}
	var req wire.PlaceRequest
	if stdio.Read(c, &req, wire.MaxPlaceRequest) != nil {
		return
	}
	switch {
	case req.Op == wire.PlaceCollect && h.bad("place.collect"):
		h.wrongly(c)
		return
	case req.Op != wire.PlaceServe:
		_ = stdio.Write(c, wire.PlaceAttached{Error: "gone"})
		return
	case h.bad("place.answer") && !h.wrongly(c):
		return
	}
	_ = stdio.Write(c, wire.PlaceAttached{})
	if h.bad("place.stream") {
		h.stream(c)
		return
	}
	conn := resume.New(req.Bootstrap.Resume.Token, time.Minute, false)
	go func() {
		_ = h.serveOn(conn, *req.Bootstrap)
		_ = conn.Close()
	}()
	_ = conn.Carry(c)
	conn.Fail(resume.ErrLost)
}

// wrongly does what is wrong instead of a frame. It returns true if the frame follows.
func (h *hostilePeer) wrongly(c *socket.Conn) bool {
	switch h.s.Does {
	case "json":
		_, _ = fmt.Fprintf(c, "\nagentsh-stdio-1 %d\n", hugeJSON)
		huge(c)
	case "endless":
		for line := []byte(strings.Repeat("welcome\n", 1000)); ; {
			if _, err := c.Write(line); err != nil {
				return false
			}
		}
	case "text":
		_ = stdio.Write(c, wire.PlaceAttached{Error: hostile})
	case "messages":
		line := []byte("agentsh: " + strings.Repeat(hostile, 100) + "\n")
		for range hugeJSON / len(line) {
			if _, err := c.Messages().Write(line); err != nil {
				return false
			}
		}
		return true
	}
	return false
}

// stream breaks the protocol of package resume.
func (h *hostilePeer) stream(c *socket.Conn) {
	_, _ = io.ReadFull(c, make([]byte, resume.TokenSize+8))
	_, _ = c.Write(make([]byte, 8))
	switch h.s.Does {
	case "acks":
		_, _ = c.Write(binary.BigEndian.AppendUint64([]byte{'a'}, 1<<60))
	case "json":
		_, _ = c.Write(binary.BigEndian.AppendUint64([]byte{'d'}, hugeJSON))
		huge(c)
	case "endless": // lines before the greeting of SSH
		line := []byte(strings.Repeat("x", 100) + "\r\n")
		frame := append(binary.BigEndian.AppendUint64([]byte{'d'}, uint64(len(line))), line...)
		for {
			if _, err := c.Write(frame); err != nil {
				return
			}
		}
	}
	_, _ = io.Copy(io.Discard, c)
}

// hostilePlace prepares a run at a hostile place.
func (p *fixture) hostilePlace(at, does string) (run []string, wrong moment) {
	p.t.Helper()
	wrong = p.moment("ready")
	ctx, cancel := context.WithCancel(context.Background())
	l, err := socket.Listen(ctx, "unix:"+p.path("place.sock"), nil)
	if err != nil {
		cancel()
		p.t.Fatal(err)
	}
	h := &hostilePeer{s: scenario{At: at, Does: does, Ready: p.path("ready")}, asked: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- l.Serve(ctx, h.place) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			p.t.Error(err)
		}
	})
	p.place = []string{"--backend", "socket", "--connect", "unix://" + p.path("place.sock")}
	return p.runArgs("--lease", "10s", "--max-output", "2"), wrong
}

// diskUse is the sum of the files below a directory, in bytes.
func diskUse(t *testing.T, dir string) (sum int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			sum += diskUse(t, dir+"/"+e.Name())
		} else if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

func TestAHostilePlaceIsBounded(t *testing.T) {
	for _, tt := range []struct {
		at, does, says string
		code           int
	}{
		{"place.hello", "json", "at most", 4},
		{"place.hello", "endless", "no frame of agentsh within", 4},
		{"place.hello", "messages", "", 4},
		{"place.answer", "json", "at most", 4},
		{"place.answer", "endless", "no frame of agentsh within", 4},
		{"place.answer", "text", "title", 4},
		{"place.answer", "messages", "", 4},
		{"place.stream", "acks", "breaks the protocol of streams", 4},
		{"place.stream", "json", "breaks the protocol of streams", 4},
		{"place.stream", "endless", "handshake", 4},
		{"exec.agent", "channels", "", 4},
		{"exec.agent", "requests", "", 4},
		{"exec.agent", "endless", "more than 2 MiB", 1},
		{"events", "endless", "audit", 4},
		{"events", "junk", "", 4},
		{"files.changes", "endless", "listing has more than", 4},
		{"files.changes", "names", "the names of the changed files take more than", 4},
		{"files.copy_out", "endless", "", 4},
		{"files.copy_out", "names", "brings the names of the archive to", 4},
		{"files.copy_out", "lies", "", 4},
		{"end", "trash", "", 4},
		{"end", "json", "", 4},
	} {
		t.Run(tt.does+" at "+tt.at, func(t *testing.T) {
			t.Parallel()
			p := newFixture(t, "true", "security: {enabled: false}")
			args, wrong := p.hostilePlace(tt.at, tt.does)
			cmd, said := p.command(args...), &bytes.Buffer{}
			cmd.Stdout, cmd.Stderr = said, said
			used := endHostile(t, cmd, said, wrong)
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(said.String(), tt.says) {
				t.Errorf("exit code %d, want %d and %q", code, tt.code, tt.says)
			}
			if disk := diskUse(t, p.state); disk > 50<<20 {
				t.Errorf("it left %d bytes", disk)
			}
			t.Logf("%d KiB, %s", used, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		})
	}
}
