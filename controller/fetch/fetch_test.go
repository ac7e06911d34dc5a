package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// serve serves files by HTTPS with an authority of its own.
func serve(t *testing.T, files map[string]string) (url string, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		text, ok := files[r.URL.Path]
		switch {
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/a/harness/b.yaml", http.StatusFound)
		case !ok:
			http.NotFound(w, r)
		default:
			_, _ = w.Write([]byte(text))
		}
	}))
	before := http.DefaultTransport
	http.DefaultTransport = s.Client().Transport
	t.Cleanup(func() { http.DefaultTransport = before; s.Close() })
	return s.URL, requests
}

func pinned(t *testing.T, url, content string) Pinned {
	t.Helper()
	p, err := ParsePinned(url + "#sha256=" + sum([]byte(content)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAPinnedFileIsFetchedOnceAndVerified(t *testing.T) {
	url, requests := serve(t, map[string]string{"/a/harness/b.yaml": "role: r\n", "/a/s/x.sh": "#!/bin/sh\n"})
	s, p := Store{t.TempDir(), []string{url + "/"}}, pinned(t, url+"/a/harness/b.yaml", "role: r\n")
	for range 2 {
		name, err := s.Get(t.Context(), p)
		if data, _ := os.ReadFile(name); err != nil || string(data) != "role: r\n" {
			t.Fatalf("%q, %v", data, err)
		}
		name, err = s.Companion(t.Context(), p, "s/x.sh", 0o755)
		info, statErr := os.Stat(name)
		if err != nil || statErr != nil || info.Mode().Perm() != 0o755 {
			t.Fatalf("%v %v", err, info)
		}
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	name, _ := s.Companion(t.Context(), p, "s/x.sh", 0o755)
	if err := os.WriteFile(name, []byte("changed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Companion(t.Context(), p, "s/x.sh", 0o755); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Errorf("a changed copy is used: %v", err)
	}
}

func TestOtherContentIsRefused(t *testing.T) {
	url, _ := serve(t, map[string]string{"/a/harness/b.yaml": "role: r\n"})
	s := Store{t.TempDir(), []string{url + "/"}}
	for path, want := range map[string]string{
		"/a/harness/b.yaml": "the content has the SHA-256 ", "/none.yaml": "404 Not Found", "/moved": "the server redirects to ",
	} {
		if name, err := s.Get(t.Context(), pinned(t, url+path, "other")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", path, name, err)
		}
	}
	p := pinned(t, url+"/a/harness/b.yaml", "role: r\n")
	for _, rel := range []string{"../x", "/etc/passwd", "a/../../x", "a?b", "a//b", "a#b", "%2e%2e/x"} {
		if name, err := s.Companion(t.Context(), p, rel, 0o644); err == nil {
			t.Errorf("%s is fetched as %s", rel, name)
		}
	}
}

func TestURLsThatAreNotPinnedOrNotAllowed(t *testing.T) {
	digest := strings.Repeat("0", 64)
	for text, want := range map[string]string{
		"http://h/x#sha256=" + digest: "only https", "https://h/x": "no #sha256=", "https://h/x#sha256=00": "no #sha256=",
		"https://u@h/x#sha256=" + digest: "neither a user", "https://h/x?y#sha256=" + digest: "nor a query",
		"https://h/a/../x#sha256=" + digest: "not clean", "https://h/%2e%2e/x#sha256=" + digest: "not clean",
	} {
		if _, err := ParsePinned(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	p, err := ParsePinned("https://h/a/x.yaml#sha256=" + digest)
	if err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]bool{
		"https://h/a/": true, "https://h/": true, "https://h/a": false, "https://h/b/": false, "http://h/": false, "https://h.evil/": false,
	} {
		if (Store{Allowed: []string{prefix}}).Allows(p.URL) != want {
			t.Errorf("%s: %v", prefix, !want)
		}
	}
}

// The files of a base may lie above its directory, and so outside what is allowed.
func TestNothingOutsideIsFetchedOrUsed(t *testing.T) {
	url, requests := serve(t, map[string]string{"/a/harness/b.yaml": "role: r\n", "/a/s/x.sh": "x"})
	p := pinned(t, url+"/a/harness/b.yaml", "role: r\n")
	wide := Store{t.TempDir(), []string{url + "/a/"}}
	narrow := Store{wide.Dir, []string{url + "/a/harness/"}}
	for range 2 { // also when the wide store has a copy
		before := requests.Load()
		name, err := narrow.Companion(t.Context(), p, "s/x.sh", 0o644)
		if err == nil || !strings.Contains(err.Error(), "/a/s/x.sh is below no URL") {
			t.Errorf("%q, %v", name, err)
		}
		if requests.Load() != before {
			t.Error("it was asked for")
		}
		if _, err := wide.Companion(t.Context(), p, "s/x.sh", 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if name, err := (Store{wide.Dir, nil}).Get(t.Context(), p); err == nil {
		t.Errorf("%s is used", name)
	}
}

// A copy that is gone does not make the server's new content a first one.
func TestAFileKeepsItsFirstDigest(t *testing.T) {
	files := map[string]string{"/a/s/x.sh": "first"}
	url, _ := serve(t, files)
	s, p := Store{t.TempDir(), []string{url + "/"}}, pinned(t, url+"/a/harness/b.yaml", "role: r\n")
	name, err := s.Companion(t.Context(), p, "s/x.sh", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	files["/a/s/x.sh"] = "second"
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Companion(t.Context(), p, "s/x.sh", 0o644); err == nil || !strings.Contains(err.Error(), "another content than at first") {
		t.Errorf("%v", err)
	}
	files["/a/s/x.sh"] = "first"
	if _, err := s.Companion(t.Context(), p, "s/x.sh", 0o644); err != nil {
		t.Error(err)
	}
}

// A copy of a known file at another URL must not decide which files belong to the
// first one.
func TestFilesBelongToAURLNotToItsContent(t *testing.T) {
	url, _ := serve(t, map[string]string{
		"/a/harness/b.yaml": "role: r\n", "/a/s/x.sh": "good", "/evil/harness/b.yaml": "role: r\n", "/evil/s/x.sh": "bad",
	})
	s := Store{t.TempDir(), []string{url + "/"}}
	for at, want := range map[string]string{"/evil": "bad", "/a": "good"} {
		p := pinned(t, url+at+"/harness/b.yaml", "role: r\n")
		if _, err := s.Get(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		name, err := s.Companion(t.Context(), p, "s/x.sh", 0o755)
		if data, _ := os.ReadFile(name); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", at, data, err)
		}
	}
}

// The digest of a file is no file that the server has a name for.
func TestNoFileReplacesTheDigestOfAnother(t *testing.T) {
	evil := sha256.Sum256([]byte("evil"))
	files := map[string]string{"/a/s/x.sh": "first", "/a/s/x.sh.sha256": hex.EncodeToString(evil[:])}
	url, _ := serve(t, files)
	s, p := Store{t.TempDir(), []string{url + "/"}}, pinned(t, url+"/a/harness/b.yaml", "role: r\n")
	for range 2 { // each file has its own digest
		for path, content := range files {
			name, err := s.Companion(t.Context(), p, strings.TrimPrefix(path, "/a/"), 0o644)
			if data, _ := os.ReadFile(name); err != nil || string(data) != content {
				t.Errorf("%s: %q, %v", path, data, err)
			}
		}
	}
	name, err := s.Companion(t.Context(), p, "s/x.sh", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	files["/a/s/x.sh"] = "evil"
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if name, err := s.Companion(t.Context(), p, "s/x.sh", 0o644); err == nil {
		t.Errorf("%s has other content", name)
	}
}
