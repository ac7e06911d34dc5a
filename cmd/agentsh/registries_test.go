package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// npmRegistry serves one package.
func npmRegistry(t *testing.T) *httptest.Server {
	t.Helper()
	var ball bytes.Buffer
	zipped := gzip.NewWriter(&ball)
	archive := tar.NewWriter(zipped)
	for name, text := range map[string]string{
		"package/package.json": `{"name": "answer", "version": "1.0.0", "main": "index.js"}`, "package/index.js": "module.exports = 42\n",
	} {
		err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = archive.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(ball.Bytes())
	mux := http.NewServeMux()
	mux.HandleFunc("/answer", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{ // the client says what it lacks
			"name": "answer", "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": map[string]any{
				"name": "answer", "version": "1.0.0", "dist": map[string]string{
					"tarball": "http://" + r.Host + "/answer.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
				},
			}},
		})
	})
	mux.HandleFunc("/answer.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(ball.Bytes()) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// serve serves files of a registry by their paths.
func serve(t *testing.T, files map[string]string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text)) // the client says what it lacks
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// zipped is an archive of files: names and texts in turn.
func zipped(t *testing.T, files ...string) string {
	t.Helper()
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		w, err := archive.Create(files[i])
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// pythonIndex serves one package as pip wants it.
func pythonIndex(t *testing.T) (url string) {
	t.Helper()
	const wheel, info = "answer-1.0.0-py3-none-any.whl", "answer-1.0.0.dist-info/"
	return serve(t, map[string]string{
		"/simple/answer/": `<a href="` + wheel + `">` + wheel + `</a>`,
		"/simple/answer/" + wheel: zipped(t, "answer.py", "VALUE = 42\n",
			info+"METADATA", "Metadata-Version: 2.1\nName: answer\nVersion: 1.0.0\n",
			info+"WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
			info+"RECORD", "answer.py,,\n"+info+"METADATA,,\n"+info+"WHEEL,,\n"+info+"RECORD,,\n"),
	})
}

// moduleProxy serves one module as go wants it.
func moduleProxy(t *testing.T) (url string) {
	t.Helper()
	const at, mod = "/example.com/answer/@v/v1.0.0.", "module example.com/answer\n\ngo 1.19\n"
	return serve(t, map[string]string{
		at + "info": `{"Version": "v1.0.0"}`, at + "mod": mod,
		at + "zip": zipped(t, "example.com/answer@v1.0.0/go.mod", mod,
			"example.com/answer@v1.0.0/answer.go", "package answer\n\nconst Value = 42\n"),
	})
}
