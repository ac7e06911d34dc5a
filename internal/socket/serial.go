package socket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// A port of virtio-serial carries one stream after the other, and neither end learns for
// certain that the other one began anew. So a stream begins with lines of text that cannot
// be taken for what an earlier stream left on the way:
//
//	controller              machine
//	    | -- knock N ---------> |    again until it is answered; N is random
//	    | <- open N ----------- |    once for each knock
//	    | -- go N ------------> |    the machine skips everything before it
//	    | <- begin N ---------- |    the controller skips everything before it
//	    | <- the stream ------> |
const (
	serialMark  = "agentsh-serial "
	wordKnock   = "knock"
	wordOpen    = "open"
	wordGo      = "go"
	wordBegin   = "begin"
	serialNonce = 16 // bytes
)

// Times of a serial port.
const (
	knockAgain = 300 * time.Millisecond
	portWait   = 2 * time.Second        // for a port to answer, before the next one is tried
	portLook   = 100 * time.Millisecond // interval at which a port without a controller is looked at
)

// SerialPorts is how many ports a machine has: one for a stream, and one for the next.
const SerialPorts = 2

// SerialPort is the name of a port.
func SerialPort(base string, n int) string { return fmt.Sprintf("%s.%d", base, n) }

// serialLine is one of the lines above. What it follows may be a part of an earlier stream.
func serialLine(word, nonce string) []byte {
	return []byte("\n" + serialMark + word + " " + nonce + "\n")
}

// lineReader reads such lines byte by byte: the next byte after the last one is of the stream.
type lineReader struct {
	in   io.Reader
	line []byte
}

// next returns the next line of a word that has a nonce. It skips everything else.
func (r *lineReader) next() (word, nonce string, err error) {
	const most = len(serialMark) + 8 + 2*serialNonce
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r.in, b); err != nil {
			return "", "", err
		}
		if b[0] != '\n' {
			if len(r.line) <= most { // else it is no such line
				r.line = append(r.line, b[0])
			}
			continue
		}
		rest, is := bytes.CutPrefix(r.line, []byte(serialMark))
		word, nonce, found := strings.Cut(string(rest), " ")
		r.line = r.line[:0]
		if is && found && len(nonce) == 2*serialNonce {
			return word, nonce, nil
		}
	}
}

// DialSerial opens a stream to a machine by the sockets of its ports, in a directory. It tries one port
// after the other until ctx ends: an earlier stream may still have one.
func DialSerial(ctx context.Context, dir, base string, key *Key, messages io.Writer) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	for n := 0; ; n = (n + 1) % SerialPorts {
		conn, err := knock(ctx, filepath.Join(dir, SerialPort(base, n)))
		if err == nil {
			secured, err := key.client(ctx, conn)
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return newConn(secured, messages), nil
		}
		if ctx.Err() != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
	}
}

// knock opens a port.
func knock(ctx context.Context, socket string) (_ net.Conn, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	random := make([]byte, serialNonce)
	_, _ = rand.Read(random) // never fails, see crypto/rand
	nonce := hex.EncodeToString(random)
	lines := &lineReader{in: conn}
	await := func(word string, until time.Time) error {
		if err := conn.SetReadDeadline(until); err != nil {
			return err
		}
		for {
			got, of, err := lines.next()
			if err != nil || got == word && of == nonce {
				return err
			}
		}
	}
	limit := time.Now().Add(portWait)
	for {
		if _, err := conn.Write(serialLine(wordKnock, nonce)); err != nil {
			return nil, err
		}
		err := await(wordOpen, time.Now().Add(knockAgain))
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(limit) || ctx.Err() != nil {
			return nil, err
		}
	}
	if _, err := conn.Write(serialLine(wordGo, nonce)); err != nil {
		return nil, err
	}
	if err := await(wordBegin, time.Now().Add(portWait)); err != nil {
		return nil, err
	}
	return conn, errors.Join(conn.SetDeadline(time.Time{}), ctx.Err())
}

// serialListener listens at the ports of a machine.
type serialListener struct {
	base   string
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	ports  sync.WaitGroup
}

// listenSerial listens at the ports of a name.
func listenSerial(base string) (*serialListener, error) {
	l := &serialListener{base: base, conns: make(chan net.Conn), closed: make(chan struct{})}
	var files []string
	for n := range SerialPorts {
		file, err := findPort(SerialPort(base, n))
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	for _, file := range files {
		l.ports.Go(func() { l.serve(file) })
	}
	return l, nil
}

// findPort is the device of a port. See Documentation/ABI/testing/sysfs-class-virtio-ports... of
// Linux: each port has its name in sysfs.
func findPort(name string) (string, error) {
	const class = "/sys/class/virtio-ports"
	found, err := filepath.Glob(class + "/*/name")
	if err != nil {
		return "", err
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(text)) == name {
			return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
		}
	}
	return "", fmt.Errorf("no port %s of virtio-serial", name)
}

// serve accepts one stream after the other at a port.
func (l *serialListener) serve(device string) {
	look := time.NewTicker(portLook)
	defer look.Stop()
	for {
		if conn := l.answer(device); conn != nil {
			select {
			case l.conns <- conn:
				<-conn.gone
			case <-l.closed:
				_ = conn.Close()
			}
		}
		select {
		case <-l.closed:
			return
		case <-look.C:
		}
	}
}

// answer waits for a controller at a port; nil: there is none.
func (l *serialListener) answer(device string) *serialConn {
	f, err := os.OpenFile(device, os.O_RDWR, 0) // not blocking, see os.OpenFile
	if err != nil {
		return nil
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends with the call
		select {
		case <-l.closed:
			_ = f.SetDeadline(time.Unix(1, 0))
		case <-stop:
		}
	}()
	lines := &lineReader{in: f}
	for {
		word, nonce, err := lines.next()
		answer := ""
		switch {
		case err != nil: // without a controller a port is at its end
			_ = f.Close()
			return nil
		case word == wordKnock:
			answer = wordOpen
		case word == wordGo:
			answer = wordBegin
		default:
			continue
		}
		if _, err := f.Write(serialLine(answer, nonce)); err != nil {
			_ = f.Close()
			return nil
		}
		if answer == wordBegin {
			return &serialConn{File: f, gone: make(chan struct{})}
		}
	}
}

// Accept implements [net.Listener].
func (l *serialListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *serialListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l *serialListener) Addr() net.Addr { return serialAddr(l.base) }

// serialAddr is the name of ports.
type serialAddr string

func (serialAddr) Network() string  { return "serial" }
func (a serialAddr) String() string { return "serial:" + string(a) }

// serialConn is a port as a stream.
type serialConn struct {
	*os.File
	gone chan struct{}
	once sync.Once
}

func (c *serialConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		err = c.File.Close()
		close(c.gone)
	})
	return err
}

func (c *serialConn) LocalAddr() net.Addr  { return serialAddr(c.Name()) }
func (c *serialConn) RemoteAddr() net.Addr { return serialAddr(c.Name()) }
