package blaxel

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/blaxeldouble"
	"agentsh/internal/testenv"
)

// builder is a backend that looks often.
func builder(t *testing.T, d *blaxeldouble.Double) *Backend {
	t.Helper()
	b := open(t, d)
	b.look = time.Millisecond
	return b
}

// packed is the archive of a source.
func packed(t *testing.T, s Source) string {
	t.Helper()
	s.Agentsh = testenv.Agentsh(t)
	name := filepath.Join(t.TempDir(), "image.zip")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Pack(t.Context(), f, s); err != nil {
		t.Fatal(err)
	}
	return name
}

// small is a file that stands for a package: the program is 20 MB.
func small(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "agentsh_1.2_amd64.deb")
	if err := os.WriteFile(name, []byte("package"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// directory is one with a Dockerfile.
func directory(t *testing.T, dockerfile string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// member is a file of an archive.
func member(t *testing.T, archive []byte, name string) string {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestAnImageIsBuiltAtADouble builds an image twice, and makes the sandbox of a run from it.
func TestAnImageIsBuiltAtADouble(t *testing.T) {
	d := blaxeldouble.New(t)
	b := builder(t, d)
	archive := packed(t, Source{From: "node:22-bookworm"})
	var seen []string
	i := Image{Name: "app", Memory: 2048, Archive: archive, Report: func(s string) { seen = append(seen, s) }}
	first, err := b.Build(t.Context(), i)
	if err != nil || first.Image != "sandbox/app:1" || !slices.Equal(seen, []string{"BUILDING", "DEPLOYING", "DEPLOYED"}) {
		t.Fatalf("%+v, %v, %q", first, err, seen)
	}
	// The first look sees what was there before.
	d.Builds("DEPLOYED", "DEPLOYED", "BUILDING", "DEPLOYED")
	seen = nil
	second, err := b.Build(t.Context(), i)
	if err != nil || second.Image != "sandbox/app:2" || !slices.Equal(seen, []string{"DEPLOYED", "BUILDING", "DEPLOYED"}) {
		t.Fatalf("%+v, %v, %q", second, err, seen)
	}
	if puts := slices.DeleteFunc(slices.Clone(d.Said), func(s string) bool { return strings.HasPrefix(s, "GET") }); !slices.Equal(puts,
		[]string{"PUT /sandboxes/app", "POST /sandboxes", "PUT /sandboxes/app"}) {
		t.Errorf("%q", puts)
	}
	built := d.Built()
	data, err := os.ReadFile(archive)
	if err != nil || len(built) != 2 || !bytes.Equal(built[1].Archive, data) {
		t.Fatalf("%d archives, %v", len(built), err)
	}
	want := `FROM node:22-bookworm

# Added by agentctl.
USER root
COPY --from=ghcr.io/blaxel-ai/sandbox:latest /sandbox-api /usr/local/bin/sandbox-api
COPY agentsh-image/agentsh /usr/bin/agentsh
COPY agentsh-image/bash_startup.sh /usr/lib/agentsh/bash_startup.sh
RUN chmod 0755 /usr/bin/agentsh && chmod 0644 /usr/lib/agentsh/bash_startup.sh && ln -sf /usr/bin/agentsh /usr/lib/agentsh/agentsh && /usr/bin/agentsh --version
ENTRYPOINT ["/usr/local/bin/sandbox-api"]
CMD []
`
	if got := member(t, data, "Dockerfile"); got != want {
		t.Errorf("%s", got)
	}
	program, err := os.ReadFile(testenv.Agentsh(t))
	if err != nil || member(t, data, "agentsh-image/agentsh") != string(program) {
		t.Errorf("another agentsh, %v", err)
	}
	if err := b.api.remove(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	s := described("built-1")
	s.Container.Image.ID = second.Image
	box, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestABuildThatFailsIsNamed has each way in which a build ends otherwise.
func TestABuildThatFailsIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name       string
		dockerfile string
		prepare    func(*blaxeldouble.Double)
		kind       sandbox.EndKind
		says       string
		left       []string
	}{
		{"a step fails", "FROM a\nRUN false\n", nil, sandbox.EndImage, `FAILED: process "/bin/sh -c false" did not complete`, []string{"app"}},
		{"it is ended by others", "FROM a", func(d *blaxeldouble.Double) {
			d.Builds("BUILDING", "TERMINATED")
		}, sandbox.EndImage, "TERMINATED", []string{"app"}},
		{"a quota is used up", "FROM a", func(d *blaxeldouble.Double) { d.Quota(0) }, sandbox.EndQuota, "QUOTA_EXCEEDED", nil},
		{"the key may not look", "FROM a", func(d *blaxeldouble.Double) {
			d.Refuse(http.MethodGet, "/sandboxes/app", 1, http.StatusForbidden, "")
		}, sandbox.EndRefused, "answers 403", nil},
		{"the store refuses", "FROM a", func(d *blaxeldouble.Double) {
			d.BreakUploads(1, http.StatusForbidden, "<Error><Message>Request has expired</Message></Error>")
		}, "", "answers 403: Request has expired", nil},
		{"the store fails for good", "FROM a", func(d *blaxeldouble.Double) {
			d.BreakUploads(9, http.StatusServiceUnavailable, "")
		}, "", "answers 503", nil},
		{"no address for the archive", "FROM a", func(d *blaxeldouble.Double) {
			d.Refuse(http.MethodPost, "/sandboxes", 1, http.StatusOK, "{}")
		}, "", "X-Blaxel-Upload-Url: is BL_API_URL right", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := blaxeldouble.New(t)
			b := builder(t, d)
			archive := packed(t, Source{Dir: directory(t, tt.dockerfile), Package: small(t)})
			if tt.prepare != nil {
				tt.prepare(d)
			}
			_, err := b.Build(t.Context(), Image{Name: "app", Archive: archive})
			if err == nil || kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("%v, kind %q", err, kindOf(err))
			}
			if said := err.Error(); strings.Contains(said, blaxeldouble.Signature) || strings.Contains(said, blaxeldouble.Key) {
				t.Errorf("a secret is shown: %s", said)
			}
			if left := d.Names(); !slices.Equal(left, tt.left) {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestABuildGoesOnAfterFailuresThatPass(t *testing.T) {
	d := blaxeldouble.New(t)
	b := builder(t, d)
	d.BreakUploads(uploads-1, http.StatusBadGateway, "<html>")
	d.Builds("BUILDING", "DEPLOYED")
	reported := false
	i := Image{Name: "app", Archive: packed(t, Source{From: "a", Package: small(t)}), Report: func(string) {
		if !reported {
			d.Refuse(http.MethodGet, "/sandboxes/app", 3, http.StatusBadGateway, "<html>")
		}
		reported = true
	}}
	if _, err := b.Build(t.Context(), i); err != nil {
		t.Error(err)
	}
}

func TestOnlyOwnSandboxesAreReplaced(t *testing.T) {
	d := blaxeldouble.New(t)
	b := builder(t, d)
	made(t, b, "foreign-1")
	i := Image{Name: "agentsh-foreign-1", Archive: packed(t, Source{From: "a", Package: small(t)})}
	if _, err := b.Build(t.Context(), i); err == nil || !strings.Contains(err.Error(), "--name") {
		t.Error(err)
	}
	if err := b.mayBuild(t.Context(), i); err == nil || !strings.Contains(err.Error(), "--replace") {
		t.Error(err)
	}
	if i.Replace = true; b.mayBuild(t.Context(), i) != nil {
		t.Error("--replace replaces nothing")
	}
}

// TestABuildThatIsInterruptedEnds cancels it while Blaxel builds.
func TestABuildThatIsInterruptedEnds(t *testing.T) {
	d := blaxeldouble.New(t)
	b := builder(t, d)
	d.Builds("BUILDING")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.Build(ctx, Image{Name: "app", Archive: packed(t, Source{From: "a", Package: small(t)}), Report: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestADockerfileIsCompleted has what is added to a Dockerfile, or why it is refused.
func TestADockerfileIsCompleted(t *testing.T) {
	deb := small(t)
	const api = "COPY --from=ghcr.io/blaxel-ai/sandbox:"
	for _, tt := range []struct {
		name   string
		source Source
		text   string
		has    string
		lacks  string
		fails  string
	}{
		{"a package", Source{Package: deb}, "FROM a\nUSER node", "USER node\n\n# Added by agentctl.\nUSER root\n" + api +
			"latest /sandbox-api /usr/local/bin/sandbox-api\nCOPY agentsh-image/agentsh.deb /tmp/agentsh.deb\n" +
			"RUN dpkg -i /tmp/agentsh.deb && rm /tmp/agentsh.deb && /usr/bin/agentsh --version\nENTRYPOINT", "shim", ""},
		{"a package and the shim", Source{Package: deb, Shim: true}, "FROM a", "--version\nRUN agentsh shim install\nENTRYPOINT", "", ""},
		{"another version of the API", Source{API: "v1.2", Package: deb}, "FROM a", api + "v1.2 /", "", ""},
		{"an own API", Source{Package: deb}, "FROM a\nCOPY --from=x /api /usr/local/bin/sandbox-api\n", `ENTRYPOINT ["/usr/local/bin/sandbox-api"]`, api, ""},
		{"an API of another stage", Source{Package: deb}, "FROM a\nCOPY --from=x /api /usr/local/bin/sandbox-api\nFROM b", api, "", ""},
		{"the entry of the API", Source{Package: deb}, "FROM a\nENTRYPOINT [\"/usr/local/bin/sandbox-api\"]\n", api, "", ""},
		{"a script as entry", Source{Package: deb}, "FROM a\nENTRYPOINT [\"/entrypoint.sh\"]\n", "", "", "Dockerfile:2: ENTRYPOINT: Blaxel's sandbox API"},
		{"a shell as entry", Source{Package: deb}, "FROM a\nENTRYPOINT /usr/local/bin/sandbox-api\n", "", "", "Dockerfile:2: ENTRYPOINT"},
		{"an entry of another stage", Source{Package: deb}, "FROM a\nENTRYPOINT x\nFROM b", "FROM b", "", ""},
		{"an own shim", Source{Package: deb}, "FROM a\nRUN agentsh shim install", "", "", "Dockerfile:2: RUN: agentctl installs the shim last"},
		{"the shim without a package", Source{Shim: true}, "FROM a", "", "", "--package FILE"},
		{"a package of another kind", Source{Package: "x.zip"}, "FROM a", "", "", ".deb, .rpm or .apk"},
		{"a key in the Dockerfile", Source{Key: "bl_secret", Package: deb}, "FROM a\nENV KEY=bl_secret", "", "", "it has Blaxel's key"},
		{"a version with a line", Source{API: "v1\nRUN x"}, "FROM a", "", "", "--sandbox-api"},
		{"no Dockerfile", Source{Dockerfile: "other"}, "FROM a", "", "", "other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.source.Dir, tt.source.Agentsh = directory(t, tt.text), testenv.Agentsh(t)
			var out bytes.Buffer
			_, err := Pack(t.Context(), &out, tt.source)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := member(t, out.Bytes(), "Dockerfile")
			if !strings.Contains(text, tt.has) || tt.lacks != "" && strings.Contains(text, tt.lacks) {
				t.Errorf("%s", text)
			}
		})
	}
	for _, from := range []string{"", "a b", "a\nRUN x", "-x"} {
		if _, err := Pack(t.Context(), io.Discard, Source{From: from, Agentsh: testenv.Agentsh(t)}); err == nil {
			t.Errorf("%q is taken", from)
		}
	}
}

func TestTheMemoryOfAMachineHasBounds(t *testing.T) {
	for mib, want := range map[int64]bool{-1: false, 0: false, 511: false, 512: true, 65536: true, 65537: false} {
		if err := CheckMemory(mib); (err == nil) != want || !want && !strings.Contains(err.Error(), "512 to 65536 MiB") {
			t.Errorf("%d: %v", mib, err)
		}
	}
	b, err := Open(Config{Getenv: func(name string) string {
		return map[string]string{"BL_WORKSPACE": "w", "BL_API_KEY": "k"}[name]
	}})
	if err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{Container: sandbox.Container{Image: sandbox.Image{ID: "app"}, MemoryMB: 100}}
	if err := b.Check(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "512 to 65536 MiB") {
		t.Errorf("a harness with 100: %v", err)
	}
}
