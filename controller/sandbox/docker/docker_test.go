package docker

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"

	"agentsh/controller/sandbox"
)

func TestEndpointsOfEngines(t *testing.T) {
	home := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(home, ".docker", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	sum := sha256.Sum256([]byte("build"))
	id := hex.EncodeToString(sum[:])
	write("contexts/meta/"+id+"/meta.json", `{"Name":"build","Endpoints":{"docker":{"Host":"tcp://build:2376","SkipTLSVerify":false}}}`)
	write("contexts/tls/"+id+"/docker/ca.pem", "")
	write("config.json", `{"currentContext":"build"}`)
	certs := filepath.Join(home, ".docker/contexts/tls", id, "docker")
	for _, tt := range []struct {
		address string
		env     map[string]string
		want    endpoint
		err     string
	}{
		{"", nil, endpoint{Host: "tcp://build:2376", certs: certs}, ""},
		{"", map[string]string{"DOCKER_CONTEXT": "default"}, endpoint{Host: "unix:///var/run/docker.sock"}, ""},
		{"", map[string]string{"DOCKER_CONTEXT": "none"}, endpoint{}, `docker has no context "none"`},
		{"", map[string]string{"DOCKER_HOST": "unix:///run/d"}, endpoint{Host: "unix:///run/d"}, ""},
		{"", map[string]string{"DOCKER_HOST": "tcp://d:1", "DOCKER_TLS_VERIFY": "1"},
			endpoint{Host: "tcp://d:1", certs: filepath.Join(home, ".docker")}, ""},
		{"unix:///run/other", map[string]string{"DOCKER_HOST": "unix:///run/d"}, endpoint{Host: "unix:///run/other"}, ""},
		{"context:build", nil, endpoint{Host: "tcp://build:2376", certs: certs}, ""},
	} {
		getenv := func(name string) string {
			if name == "HOME" {
				return home
			}
			return tt.env[name]
		}
		got, err := find(tt.address, getenv)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s %v: %v, want %q", tt.address, tt.env, err, tt.err)
			}
		} else if err != nil || got != tt.want {
			t.Errorf("%s %v: %+v, %v, want %+v", tt.address, tt.env, got, err, tt.want)
		}
	}
	for host, want := range map[string]string{
		"tcp://build:2375":        "has no TLS",
		"tcp://127.0.0.1:2375":    "",
		"tcp://localhost:2375":    "",
		"ssh://me@build":          "",
		"ssh://me:secret@build":   "has a password",
		"npipe:////./pipe/docker": "is no address of an engine",
	} {
		_, err := endpoint{Host: host}.connect(Name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", host, err, want)
		}
	}
}

func TestAContainerOfAUserHasNoRights(t *testing.T) {
	for _, tt := range []struct {
		user   string
		engine []string
		want   api.HostConfig
	}{
		{"1000:1000", nil, api.HostConfig{CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}}},
		{"0:0", []string{"name=apparmor"}, api.HostConfig{
			CapAdd: []string{"SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"}, SecurityOpt: []string{"apparmor=agentsh-container"}}},
	} {
		var got api.HostConfig
		c := container{b: &Backend{cfg: Config{Name: Name}}}
		c.secure(&got, tt.user, tt.engine)
		profiles := 0
		got.SecurityOpt = slices.DeleteFunc(got.SecurityOpt, func(o string) bool {
			is := strings.HasPrefix(o, "seccomp={")
			if is {
				profiles++
			}
			return is
		})
		if profiles != 1 || got.Privileged || !slices.Equal(got.CapAdd, tt.want.CapAdd) || !slices.Equal(got.CapDrop, tt.want.CapDrop) ||
			!slices.Equal(got.SecurityOpt, tt.want.SecurityOpt) {
			t.Errorf("%s: %d profiles, %+v", tt.user, profiles, got)
		}
	}
	for _, tt := range [][3]string{
		{"", "", "1000:1000"}, {"", "root", "1000:1000"}, {"", "0:0", "1000:1000"}, {"", "00", "1000:1000"},
		{"", "+0:7", "1000:1000"}, {"", "node", "node"}, {"0", "node", "0"}, {"7", "", "7"},
	} {
		if got := userOf(tt[0], tt[1]); got != tt[2] {
			t.Errorf("harness %q, image %q: user %q, want %q", tt[0], tt[1], got, tt[2])
		}
	}
}

func TestLimitsThatAnEngineWouldDropAreRefused(t *testing.T) {
	all := sandbox.Container{MemoryMB: 1, CPUs: 1, PIDs: 1}
	can := system.Info{MemoryLimit: true, CPUCfsQuota: true, PidsLimit: true, CgroupVersion: "2"}
	rootless := can
	rootless.CgroupVersion, rootless.SecurityOptions = "1", []string{"name=seccomp,profile=default", "name=rootless"}
	if err := checkLimits(&can, all); err != nil {
		t.Error(err)
	}
	for name, info := range map[string]*system.Info{"none": {}, "rootless": &rootless} {
		err := checkLimits(info, all)
		for _, key := range []string{"memory_mb", "cpus", "pids"} {
			if err == nil || !strings.Contains(err.Error(), "container."+key) {
				t.Errorf("%s: %v, want %s", name, err, key)
			}
		}
		if err := checkLimits(info, sandbox.Container{}); err != nil {
			t.Errorf("%s without limits: %v", name, err)
		}
	}
}

// TestOtherNamesOfRootAreFound reads users as engines do.
func TestOtherNamesOfRootAreFound(t *testing.T) {
	archive := func(h tar.Header, text string) io.Reader {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		h.Size = int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
		return &buf
	}
	const users = "root:x:0:0::/:/bin/sh\ntoor:x:00:0::/:/bin/sh\nnode:x:7:7::/:\nbroken\nnode:x:0:0::/:\n"
	file := tar.Header{Typeflag: tar.TypeReg, Name: "passwd"}
	for name, want := range map[string]string{"toor": "0", "node": "7", "broken": "", "nobody": ""} {
		if uid, link, err := readUID(archive(file, users), name); uid != want || link != "" || err != nil {
			t.Errorf("%s: %q %q %v", name, uid, link, err)
		}
	}
	elsewhere := tar.Header{Typeflag: tar.TypeSymlink, Name: "passwd", Linkname: "../x"}
	if _, link, err := readUID(archive(elsewhere, ""), "toor"); link != "../x" || err != nil {
		t.Errorf("%q %v", link, err)
	}
	for _, h := range []tar.Header{{Typeflag: tar.TypeFifo, Name: "passwd"}, {Typeflag: tar.TypeSymlink, Name: "passwd"}} {
		if _, _, err := readUID(archive(h, ""), "toor"); err == nil {
			t.Errorf("%c: no error", h.Typeflag)
		}
	}
	for harness, want := range map[string]string{"": "1000:1000", "toor": "0", "toor:7": "0:7"} {
		if got := asRoot(harness); got != want {
			t.Errorf("%q: %q", harness, got)
		}
	}
}
