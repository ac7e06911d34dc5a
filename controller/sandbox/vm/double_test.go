package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"agentsh/internal/wire"
)

// double stands in for a VMM. Its machine is agentsh serve --listen in a pid namespace of this host.
// It takes the configuration of the VMM alone, and speaks the protocol of the VMM's socket for
// AF_VSOCK. The variable doubleFails in the name of the machine makes it fail.
func double(vmm string) error {
	switch vmm {
	case "firecracker":
		return firecrackerDouble(os.Args[1:])
	default:
		return cloudDouble(os.Args[1:])
	}
}

// strictly decodes JSON without unknown fields.
func strictly(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func firecrackerDouble(args []string) error {
	if len(args) != 5 || args[0] != "--id" || args[2] != "--no-api" || args[3] != "--config-file" {
		return fmt.Errorf("arguments %q", args)
	}
	data, err := os.ReadFile(args[4])
	if err != nil {
		return err
	}
	var c firecrackerConfig
	if err := strictly(data, &c); err != nil {
		return err
	}
	return guest(c.Boot.Kernel, c.Boot.Initrd, c.Vsock.Path, os.Stdout)
}

// cloudDouble takes vm.create, then vm.boot.
func cloudDouble(args []string) error {
	if len(args) != 2 || args[0] != "--api-socket" {
		return fmt.Errorf("arguments %q", args)
	}
	l, err := net.Listen("unix", strings.TrimPrefix(args[1], "path="))
	if err != nil {
		return err
	}
	var c cloudConfig
	created, failed := false, make(chan error, 1)
	return errors.Join(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/api/v1/vm.create" && !created:
			if err := strictly(body, &c); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			created = true
			w.WriteHeader(http.StatusNoContent)
		case r.Method == http.MethodPut && r.URL.Path == "/api/v1/vm.boot" && created:
			w.WriteHeader(http.StatusNoContent)
			console, err := os.OpenFile(c.Serial.File, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			go func() {
				failed <- guest(c.Payload.Kernel, c.Payload.Initrd, c.Vsock.Socket, console)
				fmt.Fprintln(os.Stderr, <-failed)
				os.Exit(1)
			}()
		default:
			http.Error(w, "unexpected "+r.Method+" "+r.URL.Path, http.StatusBadRequest)
		}
	})))
}

// described finds the description of the machine in an initramfs.
func described(initrd string) (m wire.Machine, err error) {
	data, err := os.ReadFile(initrd)
	if err != nil {
		return m, err
	}
	at := bytes.LastIndex(data, []byte(`{"version":`))
	if at < 0 {
		return m, errors.New("the initramfs describes no machine")
	}
	return m, json.NewDecoder(bytes.NewReader(data[at:])).Decode(&m)
}

// guest is the machine.
func guest(kernel, initrd, vsock string, console io.Writer) error {
	if _, err := os.Stat(kernel); err != nil {
		return err
	}
	m, err := described(initrd)
	if err != nil {
		return err
	}
	if m.Listen != fmt.Sprintf("vsock:%d", vsockPort) || len(m.Key) != keySize || len(m.Seed) != keySize || m.LeaseSeconds == 0 {
		return fmt.Errorf("the machine has %q, a key of %d bytes, a lease of %d s", m.Listen, len(m.Key), m.LeaseSeconds)
	}
	if os.Getenv("TMPDIR") == "" {
		return errors.New("no TMPDIR")
	}
	if bytes.Contains(m.Config, []byte("panic")) {
		fmt.Fprintln(console, "[    1.0] Kernel panic - not syncing: a test\r\n[    1.1] ---[ end ]---")
		return errors.New("the machine stopped")
	}
	dir, err := os.MkdirTemp("", "g")
	if err != nil {
		return err
	}
	key, place := filepath.Join(dir, "key"), filepath.Join(dir, "s")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(m.Key)), 0o600); err != nil {
		return err
	}
	l, err := net.Listen("unix", vsock)
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", `mount -t proc proc /proc && exec "$0" serve --listen "unix:$1" --key "$2"`, programOfGuest(), place, key)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "XDG_STATE_HOME=" + dir}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := waitFile(ctx, place); err != nil {
		return err
	}
	fmt.Fprintf(console, "agentsh: machine: listening at 1ms\n")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { _ = bridge(conn, place) }()
	}
}

// programOfGuest is the agentsh of the guest, which tests put beside the double.
func programOfGuest() string { return filepath.Join(filepath.Dir(os.Args[0]), "agentsh") }

// bridge connects a stream of the VMM's socket: the caller writes CONNECT PORT, and reads OK.
func bridge(conn net.Conn, place string) error {
	defer conn.Close()
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	if line != fmt.Sprintf("CONNECT %d\n", vsockPort) {
		return fmt.Errorf("the first line is %q", line)
	}
	to, err := net.Dial("unix", place)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.WriteString(conn, "OK 1073741824\n"); err != nil {
		return err
	}
	done := make(chan error, 2)
	go func() { _, err := io.Copy(to, in); _ = to.(*net.UnixConn).CloseWrite(); done <- err }()
	go func() { _, err := io.Copy(conn, to); _ = conn.(*net.UnixConn).CloseWrite(); done <- err }()
	return errors.Join(<-done, <-done)
}
