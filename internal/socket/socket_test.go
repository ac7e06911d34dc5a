package socket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

func keyFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	secret := make([]byte, minKey)
	_, _ = rand.Read(secret)
	if err := os.WriteFile(name, []byte(base64.StdEncoding.EncodeToString(secret)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func readKey(t *testing.T, name string) *Key {
	t.Helper()
	if name == "" {
		return nil
	}
	k, err := ReadKey(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func echo(_ context.Context, c *Conn) {
	n, err := io.Copy(c, c)
	_, _ = fmt.Fprintf(c.Messages(), "agentsh: %d bytes, %v\n", n, err)
}

// listenAt listens in this process. Each form of an address for clients has %s.
func listenAt(t *testing.T, address, form, key string, handle func(context.Context, *Conn)) Address {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := Listen(ctx, address, readKey(t, key))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, handle) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	a, err := ParseAddress(strings.ReplaceAll(form, "%s", l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func dial(t *testing.T, a Address, key string, messages io.Writer) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), a, readKey(t, key), messages)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// kind makes a listener of one kind, and returns its address and the file with its key.
type kind func(t *testing.T, handle func(context.Context, *Conn)) (Address, string)

func kinds() map[string]kind {
	all := kindsWithKey()
	all["unix"] = func(t *testing.T, h func(context.Context, *Conn)) (Address, string) {
		path := filepath.Join(t.TempDir(), "s")
		return listenAt(t, "unix:"+path, "unix://"+path, "", h), ""
	}
	return all
}

func kindsWithKey() map[string]kind {
	return map[string]kind{
		"unix with a key": func(t *testing.T, h func(context.Context, *Conn)) (Address, string) {
			path, key := filepath.Join(t.TempDir(), "s"), keyFile(t)
			return listenAt(t, "unix:"+path, "unix://"+path, key, h), key
		},
		"tcp": func(t *testing.T, h func(context.Context, *Conn)) (Address, string) {
			key := keyFile(t)
			return listenAt(t, "tcp:127.0.0.1:0", "tcp://%s", key, h), key
		},
		"ws": func(t *testing.T, h func(context.Context, *Conn)) (Address, string) {
			key := keyFile(t)
			return listenAt(t, "ws:127.0.0.1:0", "ws://%s/any/path?x=1", key, h), key
		},
		"vsock": func(t *testing.T, h func(context.Context, *Conn)) (Address, string) {
			testenv.Asked(t, "AGENTSH_TEST_VSOCK", "kernels")
			l, err := vsock.ListenContextID(unix.VMADDR_CID_LOCAL, 7000, nil)
			if err != nil {
				t.Fatalf("no loopback of AF_VSOCK (module vsock_loopback), see vsock(7): %v", err)
			}
			_ = l.Close()
			key := keyFile(t)
			return listenAt(t, "vsock:7000", "vsock://1:7000", key, h), key
		},
		"vsock+unix": func(t *testing.T, h func(context.Context, *Conn)) (Address, string) {
			path, key := filepath.Join(t.TempDir(), "s"), keyFile(t)
			listenAt(t, "unix:"+path, "unix://"+path, key, h)
			return hybrid(t, path, "OK 1024\n"), key
		},
	}
}

// hybrid is a socket like that of Firecracker, for port 7000 of a machine that listens at
// its third request.
func hybrid(t *testing.T, to, answer string) Address {
	t.Helper()
	name := filepath.Join(t.TempDir(), "vm.sock")
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for try := 1; ; try++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				line := make([]byte, len("CONNECT 7000\n"))
				if _, err := io.ReadFull(c, line); err != nil || string(line) != "CONNECT 7000\n" || try < 3 {
					return
				}
				far, err := net.Dial("unix", to)
				if err != nil {
					t.Error(err)
					return
				}
				defer far.Close()
				_, _ = io.WriteString(c, answer)
				all.Go(func() {
					_, _ = io.Copy(far, c)
					_ = far.Close()
				})
				_, _ = io.Copy(c, far)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	a, err := ParseAddress("vsock+unix://" + name + ":7000")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestBytesPassUnchangedAndMessagesApart(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) {
			a, key := open(t, func(ctx context.Context, c *Conn) {
				_, _ = io.WriteString(c.Messages(), "agentsh: hello\n")
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				_, _ = io.CopyN(c, c, 3<<20)
				_, _ = io.WriteString(c.Messages(), "agentsh: bye\n")
			})
			var said bytes.Buffer
			c := dial(t, a, key, &said)
			sent := make([]byte, 3<<20)
			_, _ = rand.Read(sent)
			wrote := make(chan error, 1)
			go func() {
				_, err := c.Write(sent)
				wrote <- err
			}()
			got, err := io.ReadAll(c)
			if err = errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d of %d bytes, %v", len(got), len(sent), err)
			}
			<-c.Gone()
			if said.String() != "agentsh: hello\nagentsh: bye\n" || c.Err() != nil {
				t.Errorf("messages: %q, %v", said.String(), c.Err())
			}
		})
	}
}

func TestAReadHasADeadlineThatCanBeChanged(t *testing.T) {
	for name, open := range kinds() {
		t.Run(name, func(t *testing.T) {
			a, key := open(t, echo)
			c := dial(t, a, key, io.Discard)
			// Of reads alone: a write's that has passed may end a WebSocket, whatever is set after it.
			if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read: %v", err)
			}
			if err := c.SetDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 2)); n != 1 || err != nil {
				t.Errorf("read: %d, %v", n, err)
			}
		})
	}
}

func TestAnotherServiceIsNamed(t *testing.T) {
	near, far := net.Pipe()
	go func() {
		go func() { _, _ = io.Copy(io.Discard, far) }()
		_, _ = io.WriteString(far, "SSH-2.0-OpenSSH_9.2p1\r\n")
	}()
	_, err := readKey(t, keyFile(t)).client(t.Context(), near)
	if err == nil || !strings.Contains(err.Error(), "the other end is not 'agentsh serve") {
		t.Errorf("%v", err)
	}
	_ = far.Close()
}

func TestBothEndsMustHaveTheSameKey(t *testing.T) {
	for name, open := range kindsWithKey() {
		t.Run(name, func(t *testing.T) {
			served := make(chan struct{}, 1)
			a, _ := open(t, func(context.Context, *Conn) { served <- struct{}{} })
			c, err := Dial(t.Context(), a, readKey(t, keyFile(t)), io.Discard)
			if err == nil {
				_, err = c.Read(make([]byte, 1))
				_ = c.Close()
			}
			if !errors.Is(err, ErrKey) {
				t.Errorf("another key: %v", err)
			}
			select {
			case <-served:
				t.Error("a controller with another key was served")
			default:
			}
		})
	}
	// The place has the key of the controller only: the same secret, used the wrong way round.
	k := readKey(t, keyFile(t))
	near, far := net.Pipe()
	go func() { _, _ = (&Key{place: k.controller, controller: k.controller}).server(t.Context(), far) }()
	if _, err := k.client(t.Context(), near); !errors.Is(err, ErrKey) {
		t.Errorf("a place with the controller's key: %v", err)
	}
}

func TestAPlaceServesNobodyWithoutAKey(t *testing.T) {
	served := make(chan struct{}, 1)
	path := filepath.Join(t.TempDir(), "s")
	a := listenAt(t, "unix:"+path, "unix://"+path, keyFile(t), func(context.Context, *Conn) { served <- struct{}{} })
	c := dial(t, a, "", io.Discard)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Error(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read: %d, %v", n, err)
	}
	select {
	case <-served:
		t.Error("it was served")
	default:
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}

func TestOnlyAUnixSocketGoesWithoutAKey(t *testing.T) {
	for _, address := range []string{"tcp:127.0.0.1:0", "vsock:7000", "ws:127.0.0.1:0"} {
		if l, err := Listen(t.Context(), address, nil); err == nil || !strings.Contains(err.Error(), "--key") {
			t.Errorf("%s: %v, %v", address, l, err)
		}
	}
	for _, address := range []string{"", "tcp", "udp:1", "unix:relative", "vsock:x", "tcp:nowhere.invalid:1"} {
		if l, err := Listen(t.Context(), address, readKey(t, keyFile(t))); err == nil {
			t.Errorf("%s: %v", address, l)
		}
	}
	for address, want := range map[string]string{ // as agentctl has them
		"tcp://127.0.0.1:0": "write tcp:127.0.0.1:0", "ws://127.0.0.1:0": "write ws:127.0.0.1:0", "vsock://7000": "write vsock:7000",
		"unix:rel.sock": "the path of the socket is not absolute: write unix:PATH", "unix://rel": "is not absolute",
	} {
		if l, err := Listen(t.Context(), address, readKey(t, keyFile(t))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", address, l, err, want)
		}
	}
	for _, address := range []string{"tcp://127.0.0.1:1", "vsock://3:1", "ws://127.0.0.1:1", "vsock+unix:///s:1"} {
		a, err := ParseAddress(address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Dial(t.Context(), a, nil, nil); err == nil || !strings.Contains(err.Error(), "no key") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestAKeyIsThatOfItsOwnerAlone(t *testing.T) {
	dir := t.TempDir()
	good, err := os.ReadFile(keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		data []byte
		mode os.FileMode
		uid  int
		want string
	}{
		"a group":  {good, 0o640, 0, "chmod 600"},
		"others":   {good, 0o604, 0, "chmod 600"},
		"short":    {[]byte("c2hvcnQ="), 0o600, 0, "32 bytes in base64"},
		"no text":  {[]byte("\x00\xff"), 0o600, 0, "32 bytes in base64"},
		"empty":    {nil, 0o600, 0, "32 bytes in base64"},
		"too long": {bytes.Repeat([]byte("QUJD"), maxKeyFile), 0o600, 0, ""},
		"stranger": {good, 0o600, 12345, "belongs to user 12345"},
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, tt.data, tt.mode); err != nil {
			t.Fatal(err)
		}
		if tt.uid != 0 && os.Geteuid() == 0 {
			if err := os.Chown(file, tt.uid, tt.uid); err != nil {
				t.Fatal(err)
			}
		} else if tt.uid != 0 {
			continue
		}
		if _, err := ReadKey(file); tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", name, err)
		} else if err != nil && len(tt.data) > 0 && strings.Contains(err.Error(), string(tt.data)) {
			t.Errorf("%s: the error has the key", name)
		}
	}
	for _, file := range []string{fifo, dir, filepath.Join(dir, "missing")} {
		if _, err := ReadKey(file); err == nil {
			t.Errorf("%s was read", file)
		}
	}
}

func TestAddresses(t *testing.T) {
	for _, good := range []string{
		"unix:///run/s", "tcp://h:1", "tcp://[::1]:1", "vsock://3:1024", "vsock+unix:///a:b:1024", "ws://h", "wss://h/p?q=1",
	} {
		if a, err := ParseAddress(good); err != nil || a.String() != good {
			t.Errorf("%s: %v, %v", good, a, err)
		}
	}
	for _, bad := range []string{
		"", "unix:/run/s", "unix://run/s", "tcp://h", "tcp://:1", "vsock://3", "vsock://x:1", "vsock://3:4294967296", "vsock+unix://s:1",
		"vsock+unix:///s", "ws://", "ws://u:p@h", "wss://h#f", "http://h",
	} {
		if a, err := ParseAddress(bad); err == nil {
			t.Errorf("%s: %v", bad, a)
		}
	}
}

func TestAHybridSocketThatAnswersWrongIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	key := keyFile(t)
	listenAt(t, "unix:"+path, "unix://"+path, key, echo)
	for _, answer := range []string{"NO\n", "OK\n", "OK x\n", strings.Repeat("OK 1", 1000), "\n"} {
		c, err := Dial(t.Context(), hybrid(t, path, answer), readKey(t, key), nil)
		if err == nil {
			_ = c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "instead of OK") {
			t.Errorf("%.10q: %v", answer, err)
		}
	}
}

func TestStrangersAreBounded(t *testing.T) {
	for _, name := range []string{"tcp", "ws"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, key := kindsWithKey()[name](t, echo)
			var silent []net.Conn
			for range 2*maxStreams + maxHandshakes + 10 {
				c, err := net.Dial("tcp", hostOf(a))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				silent = append(silent, c)
			}
			begun := time.Now()
			// The oldest are closed at once, before their time is over.
			for _, c := range silent[:10] {
				if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
					t.Fatal(err)
				}
				if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("read: %d, %v", n, err)
				}
			}
			c := dial(t, a, key, io.Discard)
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("the controller: %d, %v", n, err)
			}
			if took := time.Since(begun); took > handshakeWait*9/10 {
				t.Errorf("the controller waited for %s", took)
			}
		})
	}
}

// hostOf is the host and port of an address of TCP or of a WebSocket.
func hostOf(a Address) string {
	if a.host != "" {
		return a.host
	}
	rest, _ := strings.CutPrefix(a.text, "ws://")
	host, _, _ := strings.Cut(rest, "/")
	return host
}

func TestFramesAreBounded(t *testing.T) {
	for name, frame := range map[string]string{
		"long":       "d\x00\x01\x00\x01",
		"very long":  "d\xff\xff\xff\xff",
		"unknown":    "x\x00\x00\x00\x00",
		"a message":  "m\x00\x00\x00\x01x", // where none is accepted
		"TLS":        "\x16\x03\x01\x00\x05hello",
		"incomplete": "d\x00\x00\x00\x09x",
	} {
		near, far := net.Pipe()
		c := newConn(near, nil)
		go func() {
			_, _ = io.WriteString(far, frame)
			_ = far.Close()
		}()
		data, err := io.ReadAll(c)
		if err == nil {
			t.Errorf("%s: %q is accepted", name, data)
		}
		_ = c.Close()
		<-c.Gone()
	}
}
