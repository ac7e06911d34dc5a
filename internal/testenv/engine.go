package testenv

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// EngineImage is an image that an [Engine] has. It has no programs: mount /usr of this machine.
const EngineImage = "localhost/bare:1"

// Engine is a container engine of a test, in namespaces of its own. Nothing of it reaches the
// network, and nothing of it is left.
type Engine struct {
	Host     string // address of its API
	Messages *bytes.Buffer
	control  io.Writer
	ready    chan struct{}
	Backend  string // that makes sandboxes in its containers
}

// engineScript starts an engine each time that it reads a line. It ends the one before by force.
// Distributions let everybody open /dev/fuse.
const engineScript = `
ip link set lo up
[ -e "$1/fuse" ] || { mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse"; }
mount --bind "$1/fuse" /dev/fuse
engine=
while read -r word; do
	if [ -n "$engine" ]; then # podman of a user serves in a child of its first process
		mapfile -t all < <(pgrep -x -P "$engine" podman; echo "$engine")
		kill -"${word#* }" "${all[@]}"
		wait "$engine"
		engine=
	fi
	case $word in start*) rm -f "$1/engine.pid"; "${@:2}" </dev/null & engine=$! ;; esac
done`

// lastLines is how many lines of an engine a failed test shows.
const lastLines = 4

// startEngine starts a program that serves the API of Docker, and gives it an image.
func startEngine(t *testing.T, dir, socket string, argv ...string) *Engine {
	t.Helper()
	Need(t, Root, Program("ip"), Program(argv[0]))
	e := &Engine{Host: "unix://" + socket, Messages: new(bytes.Buffer), ready: make(chan struct{}, 8), Backend: "podman"}
	if argv[0] == "dockerd" {
		e.Backend = "docker"
	}
	all := []string{"--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount", "bash", "-c", engineScript, "engine", dir}
	all = append(all, argv...)
	cmd := exec.Command("unshare", all...) //nolint:noctx // it ends with the test
	cmd.Dir = dir                          // podman leaves a file in it where a process used up its memory
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	messages, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	e.control = stdin
	read := make(chan struct{})
	go func() { // ends with the engine
		defer close(read)
		for lines := bufio.NewScanner(messages); lines.Scan(); {
			fmt.Fprintln(e.Messages, lines.Text())
			if strings.Contains(lines.Text(), "API listen on") || strings.Contains(lines.Text(), "API service listening on") {
				e.ready <- struct{}{}
			}
		}
		close(e.ready)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it all processes of the namespace
		<-read
		_ = cmd.Wait()
		if t.Failed() {
			lines := strings.Split(e.Messages.String(), "\n")
			t.Logf("the engine said:\n%s", strings.Join(lines[max(0, len(lines)-lastLines):], "\n"))
		}
	})
	e.Restart(t)
	e.Load(t, EngineImage, nil)
	return e
}

// Docker starts a dockerd with further arguments.
func Docker(t *testing.T, more ...string) *Engine {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "docker.sock")
	return startEngine(t, dir, socket, append([]string{
		"dockerd", "--data-root", filepath.Join(dir, "docker"), "--exec-root", filepath.Join(dir, "exec"), "-H", "unix://" + socket,
		"--pidfile", filepath.Join(dir, "engine.pid"),
	}, more...)...)
}

// Restart ends the engine by force, if it runs, and starts it.
func (e *Engine) Restart(t *testing.T) {
	t.Helper()
	e.say(t, "start KILL")
	if _, ok := <-e.ready; !ok {
		t.Fatalf("the engine does not start:\n%s", e.Messages)
	}
}

// Stop ends the engine.
func (e *Engine) Stop(t *testing.T) {
	t.Helper()
	e.say(t, "stop KILL")
}

func (e *Engine) say(t *testing.T, word string) {
	t.Helper()
	if _, err := io.WriteString(e.control, word+"\n"); err != nil {
		t.Fatal(err)
	}
}

// Ask sends a request to the API.
func (e *Engine) Ask(t *testing.T, method, path string, body io.Reader) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(e.Host, "unix://"))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), method, "http://engine"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil || got.StatusCode >= http.StatusBadRequest {
		t.Fatalf("%s %s: %s: %s, %v", method, path, got.Status, text, err)
	}
	return string(text)
}

// Containers returns what the API says of all containers.
func (e *Engine) Containers(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(e.Ask(t, http.MethodGet, "/containers/json?all=1", nil))
}

// ImageFile is a file of an image of a test.
type ImageFile struct {
	Name, Text string
	Link       string // target of a symbolic link
	Type       byte   // of archive/tar; 0: a directory if the name ends with a slash, or a link or regular file
	Mode       int64  // 0: 0o755
}

// Load makes an image with no programs, with further files and changes such as "USER toor".
func (e *Engine) Load(t *testing.T, image string, more []ImageFile, changes ...string) {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range append(slices.DeleteFunc(bareImage(), func(f ImageFile) bool { // an engine refuses a name twice
		return slices.ContainsFunc(more, func(other ImageFile) bool { return f.Name == other.Name })
	}), more...) {
		h := tar.Header{Typeflag: f.Type, Name: f.Name, Linkname: f.Link, Mode: cmp.Or(f.Mode, 0o755), Size: int64(len(f.Text))}
		switch {
		case h.Typeflag != 0:
		case strings.HasSuffix(f.Name, "/"):
			h.Typeflag = tar.TypeDir
		case f.Link != "":
			h.Typeflag = tar.TypeSymlink
		default:
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.Text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name, tag, _ := strings.Cut(image, ":")
	query := url.Values{"changes": changes}
	request := "/images/create?fromSrc=-&repo=" + name + "&tag=" + tag + "&" + query.Encode()
	if e.Backend == "podman" {
		request = "/v4.0.0/libpod/images/import?reference=" + image + "&" + query.Encode()
	}
	e.Ask(t, http.MethodPost, request, &archive)
}

// bareImage are the files of [EngineImage].
func bareImage() []ImageFile {
	var files []ImageFile
	for _, dir := range []string{"usr", "etc", "etc/alternatives", "root", "run", "proc", "sys", "dev", "var", "home", "mnt"} {
		files = append(files, ImageFile{Name: dir + "/"})
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		files = append(files, ImageFile{Name: dir + "/", Mode: 0o1777})
	}
	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		files = append(files, ImageFile{Name: link, Link: "usr/" + link, Mode: 0o777})
	}
	return append(files,
		ImageFile{Name: "etc/passwd", Text: "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n", Mode: 0o644},
		ImageFile{Name: "etc/group", Text: "root:x:0:\nuser:x:1000:\n", Mode: 0o644},
		ImageFile{Name: "etc/shadow", Text: "root:*:1:0:99999:7:::\n", Mode: 0o600})
}
