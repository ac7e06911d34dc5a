package supervisor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// expectScripts runs each script with bash and compares the last line it prints.
func (b *box) expectScripts(t *testing.T, scripts []clientScript) {
	t.Helper()
	for _, s := range scripts {
		exit, out := b.request(t, wire.ExecRequest{ID: s.name, Argv: []string{"bash", "-c", s.script}})
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if last := lines[len(lines)-1]; exit.Code != 0 || last != s.want {
			t.Errorf("%s: %+v %q instead of %q at the end", s.name, exit, out, s.want)
		}
	}
}

type clientScript struct{ name, script, want string }

// direct runs a program without the variables that name the proxy.
const direct = "env -u HTTPS_PROXY -u https_proxy -u ALL_PROXY -u all_proxy -u HTTP_PROXY -u http_proxy "

func TestGitClonesOverHTTPS(t *testing.T) {
	testenv.Need(t, testenv.Program("git"))
	repo := bareRepository(t)
	files := http.StripPrefix("/repo.git", http.FileServer(http.Dir(repo)))
	eachMode(t, func(t *testing.T, change func(*Config)) {
		b := newOutside(t, files).open(t, netRules, change)
		const clone = "git -c http.sslCAInfo=$PWD/ca.pem clone -q "
		b.expectScripts(t, []clientScript{
			{"git by the proxy", clone + "https://allowed.test/repo.git a && cat a/file", "content of the file"},
			{"git without a proxy", direct + clone + "https://allowed.test/repo.git b && cat b/file", "content of the file"},
			{"git to what is denied", clone + "https://refused.test/repo.git c 2>/dev/null || ls c 2>/dev/null || echo refused", "refused"},
			{
				"git to what is denied, without a proxy",
				direct + clone + "https://refused.test/repo.git d 2>/dev/null || ls d 2>/dev/null || echo refused",
				"refused",
			},
			{
				"git to what is for another program",
				clone + "https://curl.test/repo.git e 2>/dev/null || ls e 2>/dev/null || echo refused",
				"refused",
			},
		})
		if denied := b.events(t, func(e wire.Event) bool {
			return e.Type == wire.EventNet && e.Decision == "deny" && e.Command == "git to what is denied" && e.Rule.Name == "no-refused"
		}); len(denied) == 0 {
			t.Error("the denial is not in the log")
		}
	})
}

// bareRepository is a repository with one commit that a server of plain files
// can serve.
func bareRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("bash", "-ec", `git init -q work; cd work; echo content of the file >file; git add file
git -c user.name=a -c user.email=a@example.com commit -qm one; git clone -q --bare . ../repo.git; git -C ../repo.git update-server-info`)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make a repository: %v\n%s", err, out)
	}
	return filepath.Join(dir, "repo.git")
}

func TestNpmInstallsFromARegistry(t *testing.T) {
	testenv.Need(t, testenv.Program("npm"), testenv.Program("node"))
	b := newOutside(t, npmRegistry(t)).open(t, netRules, func(*Config) {})
	const install = `mkdir $dir && cd $dir && echo '{"name":"x","version":"1.0.0"}' >package.json && HOME=/tmp npm install --cafile ../ca.pem --no-audit --no-fund --no-update-notifier --fetch-retries 0 --cache /tmp/npm-$dir `
	const use = " && node -e 'console.log(require(\"tiny\"))'"
	b.expectScripts(t, []clientScript{
		{"npm by the proxy", "dir=a; " + install + "--registry https://registry.test/ tiny >/dev/null 2>err || cat err" + use, "a tiny package"},
		{
			"npm from what is denied",
			"dir=b; " + install + "--registry https://refused.test/ tiny >/dev/null 2>&1 || ls node_modules 2>/dev/null || echo refused",
			"refused",
		},
	})
	if ended := b.events(t, func(e wire.Event) bool {
		return e.Type == wire.EventNet && e.Phase == "end" && e.Command == "npm by the proxy" && e.Target == "registry.test:443" &&
			e.Net.Received > 0
	}); len(ended) == 0 {
		t.Error("what npm fetched is not in the log")
	}
}

// npmRegistry serves one package.
func npmRegistry(t *testing.T) http.Handler {
	t.Helper()
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	for name, text := range map[string]string{"package/package.json": `{"name":"tiny","version":"1.0.0"}`,
		"package/index.js": `module.exports = "a tiny package"`} {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(packed.Bytes())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tiny", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(
			w,
		).Encode(
			map[string]any{"name": "tiny", "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": map[string]any{
				"name": "tiny", "version": "1.0.0",
				"dist": map[string]string{
					"tarball":   fmt.Sprintf("https://%s/tiny.tgz", r.Host),
					"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
				},
			}}},
		)
	})
	mux.HandleFunc("GET /tiny.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(packed.Bytes()) })
	return mux
}

// goClient is a program of Go's own network code, without the C library.
const goClient = `package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	r, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if _, err := io.Copy(os.Stdout, r.Body); err != nil {
		os.Exit(1)
	}
}
`

func TestAGoProgramReachesWhatRulesAllow(t *testing.T) {
	testenv.Need(t, testenv.Program("go"))
	dir := t.TempDir()
	for name, text := range map[string]string{"main.go": goClient, "go.mod": "module client\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", "client", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "client"))
	if err != nil {
		t.Fatal(err)
	}
	eachMode(t, func(t *testing.T, change func(*Config)) {
		b := newOutside(t, http.HandlerFunc(greet)).open(t, netRules, change)
		if err := os.WriteFile(filepath.Join(b.workspace, "client"), program, 0o755); err != nil {
			t.Fatal(err)
		}
		const client = "SSL_CERT_FILE=ca.pem ./client "
		b.expectScripts(t, []clientScript{
			{"Go by the proxy", client + "https://allowed.test/", "hello from allowed.test"},
			{"Go without a proxy", direct + client + "https://allowed.test/", "hello from allowed.test"},
			{"Go to what is denied", client + "https://refused.test/ 2>/dev/null || echo refused", "refused"},
			{"Go to what is denied, without a proxy", direct + client + "https://refused.test/ 2>/dev/null || echo refused", "refused"},
		})
	})
}

// What a session gets is never faster than its policy says; how much slower is
// the machine's matter.
func TestTheBandwidthOfASessionIsLimited(t *testing.T) {
	testenv.Need(t, testenv.Program("curl"))
	const size = 1 << 20
	big := make([]byte, size)
	o := newOutside(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(big) }))
	b := o.open(t, "resource_limits: {net_bandwidth_mbps: 8}\n"+netRules, func(*Config) {})
	begin := time.Now()
	b.expectScripts(
		t,
		[]clientScript{
			{
				"two at once",
				`for f in a b; do curl -sS --cacert ca.pem -o $f https://allowed.test/ & done; wait; cat a b | wc -c`,
				fmt.Sprint(2 * size),
			},
		},
	)
	// 2 MiB at 1 MB/s, of which what 50 ms are worth may pass at once.
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("%d bytes took %s at 1,000,000 bytes per second", 2*size, took)
	}
}
