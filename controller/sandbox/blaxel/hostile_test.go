package blaxel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	memory "runtime" // this package has a type of that name
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/controller/sandbox/remote"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// against makes a backend of an API that is not Blaxel's.
func against(t *testing.T, h http.HandlerFunc) *Backend {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	state, err := statedir.Open(layout.State(filepath.Join(t.TempDir(), "state")))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"BL_API_URL": s.URL + "/v0", "BL_API_KEY": "secret", "BL_WORKSPACE": "w"}
	program := filepath.Join(t.TempDir(), "agentsh")
	if err := os.WriteFile(program, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := Open(Config{State: state, Agentsh: program, Getenv: func(name string) string { return env[name] }})
	if err != nil {
		t.Fatal(err)
	}
	b.late = 0
	return b
}

func write(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

// TestTheKeyGoesToBlaxelAlone has answers name other hosts.
func TestTheKeyGoesToBlaxelAlone(t *testing.T) {
	a, err := newAPI("https://api.blaxel.ai/v0", "w", "k", "sandboxes.example.com, other.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for address, ok := range map[string]bool{
		"https://api.blaxel.ai/w/sandboxes/n":         true,
		"https://run.blaxel.ai/w/sandboxes/n/":        true,
		"https://RUN.blaxel.ai:443/n":                 true,
		"https://sbx-n-w.us-pdx-1.bl.run":             true,
		"https://sandboxes.example.com:8443/n":        true,
		"https://evil.example/n":                      false,
		"https://evilblaxel.ai/n":                     false,
		"https://blaxel.ai.evil.example/n":            false,
		"https://blaxel.ai@evil.example/n":            false,
		"https://evil.example/?.blaxel.ai":            false,
		"https://evil.example#.blaxel.ai":             false,
		"https://evil.preview.bl.run/n":               false,
		"https://x.EVIL.Preview.bl.run/n":             false,
		"https://run.blaxel.ai:8443/n":                false,
		"http://run.blaxel.ai/n":                      false,
		"http://sandboxes.example.com/n":              false,
		"https://deep.sandboxes.example.com/n":        false,
		"http://127.0.0.1:1/n":                        false,
		"https://u:p@run.blaxel.ai/n":                 false,
		"https://run.blaxel.ai./n":                    false,
		"https://run.blaxel.ai%2eevil.example/n":      false,
		"":                                            false,
		"//run.blaxel.ai/n":                           false,
		"https://run.blaxel.ai\\.evil.example/n":      false,
		"https://run.blaxel.ai\n.evil.example/":       false,
		"ftp://sandboxes.example.com/n":               false,
		"https://run.blaxel.ai/n?x-blaxel-workspace=": false,
	} {
		if _, err := a.sandboxURL(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	for _, hosts := range []string{"https://a", "*.example.com", "a:1", ".example.com"} {
		if _, err := newAPI(defaultURL, "w", "k", hosts); err == nil || !strings.Contains(err.Error(), hostsVariable) {
			t.Errorf("%q: %v", hosts, err)
		}
	}
}

// TestNoRequestGoesToAForeignSandbox makes and takes a sandbox whose record names a server of somebody else.
func TestNoRequestGoesToAForeignSandbox(t *testing.T) {
	foreign := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s has the key %q", r.Method, r.URL, r.Header.Get("X-Blaxel-Authorization"))
	}))
	defer foreign.Close()
	deleted := 0
	b := against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deleted++
			return
		}
		write(w, record{
			Metadata: metadata{Name: "agentsh-foreign-1", URL: foreign.URL, Labels: map[string]string{labelRun: "foreign-1"}},
			Status:   "DEPLOYED",
		})
	})
	p := &place{b: b, spec: described("foreign-1")}
	if _, err := p.Open(t.Context()); err == nil || !strings.Contains(err.Error(), hostsVariable+"=127.0.0.1") || deleted != 1 {
		t.Errorf("%v, %d deleted", err, deleted)
	}
	if err := p.find(t.Context()); err == nil || !strings.Contains(err.Error(), hostsVariable) {
		t.Error(err)
	}
}

// TestASandboxOfSomebodyElseIsNotTakenOver looks for a sandbox whose name somebody else took.
func TestASandboxOfSomebodyElseIsNotTakenOver(t *testing.T) {
	b := against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path == "/run" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		write(w, record{Metadata: metadata{URL: "http://" + r.Host + "/run", Labels: map[string]string{labelRun: "other"}}, Status: "DEPLOYED"})
	})
	p := &place{b: b, spec: described("taken-1")}
	if err := p.find(t.Context()); err == nil || !strings.Contains(err.Error(), "it is not of this run") || p.asked {
		t.Errorf("%v, asked %v", err, p.asked)
	}
	if err := p.remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAListEnds has a list whose cursors are new ever again.
func TestAListEnds(t *testing.T) {
	n := 0
	b := against(t, func(w http.ResponseWriter, _ *http.Request) {
		n++
		write(w, map[string]any{"data": []any{}, "meta": map[string]any{"nextCursor": fmt.Sprint(n)}})
	})
	if _, err := b.api.list(t.Context()); err == nil || !strings.Contains(err.Error(), "does not end") || n != maxPages {
		t.Errorf("%d pages: %v", n, err)
	}
}

// TestAListHasABound has pages that are too large, and pages of records that take more memory than their text.
func TestAListHasABound(t *testing.T) {
	const many = 2 << 20
	for _, tt := range []struct {
		name, data, says string
		pages            int // that are asked for at most
	}{
		{"large pages", `{"metadata": {"name": "` + strings.Repeat("x", 10<<20) + `"}}`, "does not end after 500 pages or 64 MiB", 7},
		{"a huge page", `{"metadata": {"name": "` + strings.Repeat("x", maxAnswer) + `"}}`, "more than 16 MiB", 1},
		{"many records", strings.Repeat("{},", many) + "{}", "more than 1000 sandboxes in a page", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := 0
			b := against(t, func(w http.ResponseWriter, _ *http.Request) {
				n++
				_, _ = fmt.Fprintf(w, `{"data": [%s], "meta": {"nextCursor": "%d"}}`, tt.data, n) // a client may end
			})
			var before, after memory.MemStats
			memory.ReadMemStats(&before)
			list, err := b.api.list(t.Context())
			memory.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), tt.says) || n > tt.pages || len(list) > 0 {
				t.Errorf("%d pages, %d sandboxes: %v", n, len(list), err)
			}
			if tt.pages == 1 && after.TotalAlloc-before.TotalAlloc > 200<<20 {
				t.Errorf("%d MiB were taken", (after.TotalAlloc-before.TotalAlloc)>>20)
			}
		})
	}
}

// TestForeignSandboxesAreLeftAlone has a list that no server filtered.
func TestForeignSandboxesAreLeftAlone(t *testing.T) {
	var deleted []string
	var owner string
	b := against(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			deleted = append(deleted, r.URL.Path)
			return
		}
		of := func(name, owner, run string) record {
			return record{Metadata: metadata{Name: name, Labels: map[string]string{labelOwner: owner, labelRun: run}}}
		}
		write(w, map[string]any{"data": []record{
			of("agentsh-mine-1", owner, "mine-1"),
			of("agentsh-other-1", "other", "other-1"),
			of("agentsh-none-1", "", "none-1"),
			of("production", owner, "mine-2"), // a label that somebody copied
			of("agentsh-mine-3", owner, ""),
			{Metadata: metadata{Name: "agentsh-mine-4"}},
			of("", owner, "mine-5"),
		}})
	})
	owner, err := remote.Owner(b.cfg.State)
	if err != nil {
		t.Fatal(err)
	}
	found, err := b.found(t.Context(), owner)
	if err != nil || len(found) != 1 || found[0].Run != "mine-1" {
		t.Fatalf("%+v, %v", found, err)
	}
	if err := found[0].Remove(t.Context()); err != nil || len(deleted) != 1 || deleted[0] != "/v0/sandboxes/agentsh-mine-1" {
		t.Errorf("%q, %v", deleted, err)
	}
}

// TestAMachineThatIsMadeLateIsDeleted loses the answer to the request, and has the record only after some looks.
func TestAMachineThatIsMadeLateIsDeleted(t *testing.T) {
	for _, tt := range []struct {
		name    string
		run     string // of the record
		deletes int
	}{{"of the run", "late-1", 1}, {"of somebody else", "other", 0}} {
		t.Run(tt.name, func(t *testing.T) {
			looks, deletes := 0, 0
			b := against(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPost:
					panic(http.ErrAbortHandler)
				case r.Method == http.MethodDelete:
					deletes++
				case looks < 2: // the first is of create
					looks++
					w.WriteHeader(http.StatusNotFound)
				default:
					write(w, record{Metadata: metadata{Labels: map[string]string{labelRun: tt.run}}})
				}
			})
			b.late = time.Minute
			p := &place{b: b, spec: described("late-1")}
			if _, err := p.Open(t.Context()); err == nil || deletes != tt.deletes || p.asked {
				t.Errorf("%v, %d deletes, asked %v", err, deletes, p.asked)
			}
		})
	}
}

// TestARequestThatIsCancelledLeavesNoMachine ends the run while the request is under way.
func TestARequestThatIsCancelledLeavesNoMachine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	looks, deletes := 0, 0
	b := against(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			_, _ = io.Copy(io.Discard, r.Body) // the server sees that a client is gone only then
			cancel()
			<-r.Context().Done()
		case r.Method == http.MethodDelete:
			deletes++
		case looks < 1:
			looks++
			w.WriteHeader(http.StatusNotFound)
		default:
			write(w, record{Metadata: metadata{Labels: map[string]string{labelRun: "late-2"}}})
		}
	})
	b.late = time.Minute
	if _, err := (&place{b: b, spec: described("late-2")}).Open(ctx); err == nil || deletes != 1 {
		t.Errorf("%v, %d deletes", err, deletes)
	}
}

// TestAnAnswerThatCannotBeReadIsTheEnd answers one kind of request with a page and status 200.
func TestAnAnswerThatCannotBeReadIsTheEnd(t *testing.T) {
	for _, kind := range []string{"POST /sandboxes", "GET /sandboxes/", "POST /filesystem-multipart", "PUT /filesystem-multipart",
		"POST /process", "GET /process/"} {
		t.Run(kind, func(t *testing.T) {
			var mu sync.Mutex
			junk, status := 0, "DEPLOYED"
			method, part, _ := strings.Cut(kind, " ")
			if kind == "GET /sandboxes/" {
				status = "DEPLOYING"
			}
			b := against(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				path := strings.TrimPrefix(r.URL.Path, "/v0")
				if r.Method == method && strings.Contains(path, part) {
					junk++
					_, _ = fmt.Fprint(w, "<html>welcome")
					return
				}
				switch {
				case strings.HasPrefix(path, "/run/filesystem-multipart/initiate"):
					write(w, map[string]any{"uploadId": "u"})
				case strings.HasPrefix(path, "/run/"):
					write(w, map[string]any{"status": "running", "logs": listening})
				default:
					write(w, record{
						Metadata: metadata{URL: "http://" + r.Host + "/run", Labels: map[string]string{labelRun: "junk-1"}},
						Status:   status,
					})
				}
			})
			if strings.Contains(part, "multipart") {
				if err := b.api.upload(t.Context(), b.api.base+"/run", "/x", "0600", []byte("x")); !isJunk(err) || junk != 1 {
					t.Errorf("%v, %d times", err, junk)
				}
				return
			}
			p := &place{b: b, spec: described("junk-1")}
			do := p.make
			if strings.Contains(part, "process") {
				do = func(ctx context.Context) error { return p.start(ctx, b.api.base+"/run", "agentsh") }
			}
			if err := do(t.Context()); err == nil || !strings.Contains(err.Error(), "BL_API_URL") || junk != 1 {
				t.Errorf("%v, %d times", err, junk)
			}
		})
	}
}
