package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/internal/layout"
	"agentsh/internal/testenv"
)

// imageRoot copies programs of this machine with their libraries into a small
// root file system. Only it has the file /usr/share/marker.
const imageRoot = `set -eu
root=$1; shift
mkdir -p "$root"/usr/share "$root"/etc "$root"/home
for link in bin sbin lib lib64; do mkdir -p "$root/usr/$link"; ln -s "usr/$link" "$root/$link"; done
for program in "$@"; do
	cp -L "$(command -v "$program")" "$root/usr/bin/$program"
	for library in $(ldd "$root/usr/bin/$program" | grep -o '/[^ ]*'); do
		mkdir -p "$root/usr$(dirname "${library#/usr}")"
		cp -L "$library" "$root/usr${library#/usr}"
	done
done
ln -s bash "$root/usr/bin/sh"
echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
echo root:x:0: >"$root/etc/group"
echo 'ID=of-the-image' >"$root/etc/os-release"
ln -s /run/nowhere/resolv.conf "$root/etc/resolv.conf"
echo image >"$root/usr/share/marker"`

// makeImage makes a root file system at a directory of the fixture.
func (p *fixture) makeImage(name string, programs ...string) string {
	p.t.Helper()
	if len(programs) == 0 {
		programs = []string{"bash", "git", "cat", "ls", "env", "touch", "rm", "sleep"}
	}
	args := append([]string{"-c", imageRoot, "bash", p.path(name)}, programs...)
	if out, err := exec.Command("bash", args...).CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	return p.path(name)
}

// imageAgent prints what it sees and commits a change.
const imageAgent = `cat /etc/os-release /usr/share/marker
ls / /usr/bin
touch /usr/share/changed || echo not changed
echo two >a.txt
git commit -q -a -m two
echo three >b.txt`

const imageHarness = "image: example.com/agent:1"

// listing describes every file below a directory.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&out, name, info.Mode(), info.ModTime(), info.Size())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (p *fixture) checkImageRun(r controller.Result, code int) {
	p.t.Helper()
	if code != 0 || r.Status != controller.StatusDone || r.Partial || len(r.Commits) != 1 || len(r.Changed) != 2 {
		p.t.Fatalf("exit %d: %+v", code, r)
	}
	if r.Image == nil || r.Image.Name != "example.com/agent:1" {
		p.t.Errorf("image of the result: %+v", r.Image)
	}
	if got := p.read("out/files/a.txt") + p.read("out/files/b.txt"); got != "two\nthree\n" {
		p.t.Errorf("extracted: %q", got)
	}
}

func TestAnImageIsTheRootOfTheSandbox(t *testing.T) {
	t.Parallel()
	p := newFixture(t, imageAgent, imageHarness)
	root := p.makeImage("root")
	before := listing(t, root)
	cmd := p.command(p.runArgs("--image", "example.com/agent:1=root")...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"ID=of-the-image", "image\n", "not changed"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the agent did not print %q:\n%s", want, out)
		}
	}
	if bytes.Contains(out, []byte("python3")) || bytes.Contains(out, []byte("no meaning")) {
		t.Errorf("printed:\n%s", out)
	}
	var r controller.Result
	if err := json.Unmarshal([]byte(p.read("out/result.json")), &r); err != nil {
		t.Fatal(err)
	}
	p.checkImageRun(r, 0)
	if after := listing(t, root); after != before {
		t.Errorf("the image changed:\n%s\n%s", before, after)
	}
}

func TestAUserRunsInAnImageOfRoot(t *testing.T) {
	t.Parallel()
	const uid = 65534
	p := newFixture(t, imageAgent, imageHarness)
	p.makeImage("root")
	for _, dir := range []string{p.bin, filepath.Dir(p.dir), p.dir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("chown", "-R", "65534:65534", p.path("repo"), p.dir+"/agents").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Chown(p.dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	cmd := p.command(p.runArgs("--json", "--image", "example.com/agent:1=root")...)
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+p.path("cache"))
	const asUser = `mount -t tmpfs none /mnt; mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"`
	cmd.Args = append([]string{"unshare", "-m", "sh", "-ec", asUser, "sh", cmd.Path}, cmd.Args[1:]...)
	var err error
	if cmd.Path, err = exec.LookPath("unshare"); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	var r controller.Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if !strings.Contains(errs.String(), "ID=of-the-image") {
		t.Errorf("printed:\n%s", errs.String())
	}
	p.checkImageRun(r, cmd.ProcessState.ExitCode())
}

// pack writes a directory as a tar archive.
func pack(t *testing.T, dir, file string) {
	t.Helper()
	if out, err := exec.Command("tar", "-C", dir, "-cf", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestAnArchiveIsExtractedOnce(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Program("tar"))
	p := newFixture(t, imageAgent, imageHarness)
	pack(t, p.makeImage("root"), p.path("root.tar"))
	p.setenv = []string{"XDG_CACHE_HOME=" + p.path("cache"), "XDG_CONFIG_HOME=" + p.path("config")}
	p.write("config/agentsh/agentctl.yaml", "version: 1\nimages: {'example.com/agent:1': ../../root.tar}\n", 0o644)
	for range 2 {
		r, code := p.run("--allow-dirty", "--require-image")
		p.checkImageRun(r, code)
		if !strings.HasPrefix(r.Image.Digest, "sha256:") || r.Image.Path != p.path("root.tar") {
			t.Errorf("image: %+v", r.Image)
		}
	}
	found, _ := filepath.Glob(p.path("cache/agentctl/images/sha256-*"))
	if len(found) != 2 { // the tree and its lock
		t.Errorf("cache: %v", found)
	}
}

func TestAnImageThatCannotBeUsedIsRefused(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", imageHarness)
	p.makeImage("nogit", "bash")
	p.write("text.tar", "no archive\n", 0o644)
	var escape bytes.Buffer
	w := tar.NewWriter(&escape)
	if err := w.WriteHeader(&tar.Header{Name: "a/../../x", Typeflag: tar.TypeReg, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	p.write("escape.tar", escape.String(), 0o644)
	p.setenv = []string{"XDG_CACHE_HOME=" + p.path("cache"), "XDG_CONFIG_HOME=" + p.path("config")}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--require-image"}, "--image example.com/agent:1=PATH"},
		{[]string{"--image", "root"}, "write NAME=PATH"},
		{[]string{"--image", "example.com/agent:1=missing"}, "no such file"},
		{[]string{"--image", "example.com/agent:1=nogit"}, "the image has no program git"},
		{[]string{"--image", "example.com/agent:1=text.tar"}, "not a tar archive"},
		{[]string{"--image", "example.com/agent:1=escape.tar"}, "leads out of the image"},
		{[]string{"--image", "example.com/agent:1=/"}, "the root of this machine is no image"},
		{[]string{"--image", "example.com/agent:1=."}, "no program git"},
		{[]string{"--image", "other=root"}, "write --image example.com/agent:1=PATH"},
	} {
		out, err := p.command(p.runArgs(tt.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("%v: %v\n%s", tt.args, err, out)
		}
	}
	p.write("imageless.yaml", strings.Replace(p.readFile(p.path("harness.yaml")), imageHarness, "", 1), 0o644)
	p.harness = "imageless.yaml"
	out, err := p.command(p.runArgs("--image", "other=root")...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "write image: other in the harness") {
		t.Errorf("%v\n%s", err, out)
	}
	p.harness = ""
	p.write("config/agentsh/agentctl.yaml", "version: 1\nimage: {a: b}\n", 0o644)
	if out, err := p.command(p.runArgs()...).CombinedOutput(); err == nil || !strings.Contains(string(out), "agentctl.yaml:2:1: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestARunWithoutItsImageSaysHowToGiveIt(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", imageHarness)
	out, err := p.command(p.runArgs()...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "run with --image example.com/agent:1=PATH") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNothingOfAnImageStaysAfterAKill(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo running; sleep 1000", imageHarness)
	p.makeImage("root")
	cmd := p.command(p.runArgs("--image", "example.com/agent:1=root")...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen []byte
	for one := make([]byte, 4096); !bytes.Contains(seen, []byte("running\n")); {
		n, err := stdout.Read(one)
		if err != nil {
			t.Fatalf("%v: %s", err, seen)
		}
		seen = append(seen, one[:n]...)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if out, err := p.command("gc").CombinedOutput(); err != nil { // waits for the supervisor
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAKeptSandboxStaysInItsImage(t *testing.T) {
	p := newFixture(t, "exit 3", imageHarness)
	pack(t, p.makeImage("root"), p.path("root.tar"))
	p.setenv = []string{"XDG_CACHE_HOME=" + p.path("cache")}
	adopt(t)
	if r, code := p.run("--image", "example.com/agent:1=root.tar", "--keep-sandbox"); code != controller.ExitAgentFailed {
		t.Fatalf("exit %d: %+v", code, r)
	}
	locks, err := filepath.Glob(p.path("cache/agentctl/images/*.lock"))
	if err != nil || len(locks) != 1 {
		t.Fatalf("locks: %q, %v", locks, err)
	}
	old := time.Now().Add(-100 * 24 * time.Hour)
	if err := os.Chtimes(locks[0], old, old); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := p.try("", "gc"); code != 0 || strings.Contains(out, "image") {
		t.Errorf("gc while it is kept: exit %d: %q %s", code, out, errs)
	}
	if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "cat", "/etc/os-release"); code != 0 || out != "ID=of-the-image\n" {
		t.Errorf("exit %d: %q %s", code, out, errs)
	}
	if _, errs, code := p.try("", "sandbox", "delete", "latest"); code != 0 {
		t.Errorf("delete: %d %s", code, errs)
	}
	waitOrphans(t)
	if out, errs, code := p.try("", "gc"); code != 0 || !strings.Contains(out, "removed image sha256:") {
		t.Errorf("gc after it: exit %d: %q %s", code, out, errs)
	}
}

// The supervisor of an image resolves names and verifies servers by the operator's
// configuration, also by a file that the root hides. Programs of the image trust the
// session's authority and those of this machine.
func TestTheConfigurationHoldsInAnImage(t *testing.T) {
	t.Parallel()
	p, s := newProviderFixture(t, `curl -sS -H "Authorization: Bearer $TOKEN" PROVIDER
cat "$SSL_CERT_FILE"`, imageHarness)
	p.makeImage("root", "bash", "git", "cat", "curl")
	if !strings.HasPrefix(p.path("ca.pem"), "/tmp/") {
		t.Logf("%s is not below /tmp, which is a mount of its own in the root", p.path("ca.pem"))
	}
	cmd := p.command(p.runArgs("--agentsh-config", "config.yaml", "--image", "example.com/agent:1=root")...)
	cmd.Env = append(cmd.Env, "HOST_TOKEN="+realValue)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("you are Bearer ****")) {
		t.Errorf("%v\n%s", err, out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) != 1 || s.seen[0] != "Bearer "+realValue {
		t.Errorf("the server saw %q", s.seen)
	}
	const begin = "-----BEGIN CERTIFICATE-----"
	want := 1 // the session's own
	for _, name := range layout.Authorities {
		if data, err := os.ReadFile(name); err == nil {
			want += bytes.Count(data, []byte(begin))
			break
		}
	}
	if got := bytes.Count(out, []byte(begin)); got != want {
		t.Errorf("SSL_CERT_FILE has %d authorities, want %d", got, want)
	}
}
