// Package blaxeldouble is a strict double of Blaxel for tests: of its control plane, and of the sandbox API that runs in
// each of its virtual machines. The vendor's own library drives it first, so that it answers as Blaxel does as far
// as the library can tell. A virtual machine is a set of namespaces of this machine with files of its own in
// /opt, /root and /var/lib. Requests that Blaxel does not describe are errors.
package blaxeldouble

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/layout"
	"agentsh/internal/testenv"
)

// What the double knows.
const (
	Workspace = "double"
	Key       = "bl_key_of_the_double"
	Region    = "us-pdx-1"
	Image     = "blaxel/base-image:latest"
)

// Double is a workspace.
type Double struct {
	t      testing.TB
	server *httptest.Server

	mu       sync.Mutex
	machines map[string]*machine
	deploys  int // looks at a new sandbox before it is there
	quota    int
	refusals []refusal
	streams  map[io.Closer]bool
	lose     []int    // statuses in place of the answers to requests that made a sandbox; 0: none, the connection ends
	Said     []string // requests of the control plane, as METHOD PATH

	images      map[string]bool
	uploads     map[string]*build // by the end of the address for the archive
	built       []Build
	buildStates []string
	idle        time.Duration
	limited     bool
}

// refusal is an answer to the next requests of a kind.
type refusal struct {
	method, path string // path is a part of it
	status       int
	body         string
	times        int
}

// New starts a double. It needs root.
func New(t testing.TB) *Double {
	testenv.Need(t, testenv.Root)
	d := &Double{t: t, machines: map[string]*machine{}, quota: 100, streams: map[io.Closer]bool{},
		images: map[string]bool{Image: true}, uploads: map[string]*build{}}
	d.server = httptest.NewServer(http.HandlerFunc(d.serve))
	t.Cleanup(func() {
		d.server.Close()
		for _, m := range d.machines {
			m.end()
		}
	})
	return d
}

// URL is the address of the control plane.
func (d *Double) URL() string { return d.server.URL + "/v0" }

// Getenv has the variables of Blaxel's programs for this workspace.
func (d *Double) Getenv(name string) string {
	return map[string]string{"BL_API_URL": d.URL(), "BL_API_KEY": Key, "BL_WORKSPACE": Workspace, "BL_REGION": Region}[name]
}

// Slowly has new sandboxes be there after so many looks at them.
func (d *Double) Slowly(looks int) { d.with(func() { d.deploys = looks }) }

// Quota is how many sandboxes there may be.
func (d *Double) Quota(n int) { d.with(func() { d.quota = n }) }

// Refuse answers the next requests with a method and a path so.
func (d *Double) Refuse(method, path string, times, status int, body string) {
	d.with(func() { d.refusals = append(d.refusals, refusal{method, path, status, body, times}) })
}

// WithoutPtrace has machines that are made from now on lack CAP_SYS_PTRACE, so that sessions have no namespaces there. They have a
// directory /sandbox of their own, which belongs to the user of commands.
func (d *Double) WithoutPtrace() {
	if os.Mkdir(layout.Sandbox, 0o755) == nil { // else it is there
		d.t.Cleanup(func() { _ = os.Remove(layout.Sandbox) })
	}
	d.with(func() { d.limited = true })
}

// Lose has the next sandbox be made, and answers with a status instead; 0: the connection ends without an answer.
func (d *Double) Lose(status int) { d.with(func() { d.lose = append(d.lose, status) }) }

// Names are the names of the sandboxes.
func (d *Double) Names() (names []string) {
	d.with(func() { names = slices.Sorted(maps.Keys(d.machines)) })
	return names
}

// Fail has the virtual machine of a sandbox end, as one that Blaxel reports as FAILED.
func (d *Double) Fail(name, why string) {
	d.with(func() {
		m := d.machines[name]
		m.record["status"] = "FAILED"
		m.record["errors"] = []map[string]any{{"message": why, "fatal": true}}
		m.end()
	})
}

// Delete deletes a sandbox as somebody else would.
func (d *Double) Delete(name string) {
	d.with(func() {
		d.machines[name].end()
		delete(d.machines, name)
	})
}

// Cut cuts all streams to ports, as standby and gateways do.
func (d *Double) Cut() {
	d.with(func() {
		for s := range d.streams {
			_ = s.Close()
		}
		clear(d.streams)
	})
}

// Address is a public address of each virtual machine: one for documents, see RFC 5737.
const Address = "203.0.113.7"

// Serve starts a web server at a port of a virtual machine, and waits for it.
func (d *Double) Serve(name, port string) error {
	var m *machine
	d.with(func() { m = d.machines[name] })
	_, err := m.start(wantedProcess{Command: "cd /opt && exec python3 -m http.server " + port, Dir: "/"})
	for err == nil {
		conn, refused := m.dial(port)
		if refused == nil {
			return conn.Close()
		}
		select {
		case <-d.t.Context().Done():
			err = refused
		default:
		}
	}
	return err
}

// until waits for something that a process brings about.
func (d *Double) until(p *process, there func() bool) error {
	for !there() {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %v", p.command, p.shown()["logs"])
		case <-d.t.Context().Done():
			return d.t.Context().Err()
		default:
		}
	}
	return nil
}

func (d *Double) with(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

// failure is an answer of the control plane.
func failure(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": code, "message": message})
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (d *Double) serve(w http.ResponseWriter, r *http.Request) {
	refused := false
	d.with(func() {
		i := slices.IndexFunc(d.refusals, func(x refusal) bool {
			return x.times > 0 && x.method == r.Method && strings.Contains(r.URL.Path, x.path)
		})
		if i >= 0 {
			d.refusals[i].times--
			refused = true
			w.WriteHeader(d.refusals[i].status)
			_, _ = io.WriteString(w, d.refusals[i].body)
		}
	})
	switch h := r.Header; {
	case refused:
	case strings.HasPrefix(r.URL.Path, "/store/"):
		d.store(w, r)
	case h.Get("X-Blaxel-Authorization") != "Bearer "+Key:
		failure(w, http.StatusUnauthorized, "UNAUTHORIZED", "Invalid or missing authentication credentials")
	case h.Get("X-Blaxel-Workspace") != Workspace:
		failure(w, http.StatusForbidden, "FORBIDDEN", "Insufficient permissions for the workspace")
	case h.Get("Blaxel-Version") != "2026-04-28":
		failure(w, http.StatusBadRequest, "BAD_REQUEST", "unknown Blaxel-Version")
	case strings.HasPrefix(r.URL.Path, "/v0/sandboxes"):
		d.control(w, r)
	case strings.HasPrefix(r.URL.Path, "/run/"):
		d.data(w, r)
	default:
		failure(w, http.StatusNotFound, "NOT_FOUND", r.URL.Path)
	}
}

// control answers as the control plane.
func (d *Double) control(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Said = append(d.Said, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v0"))
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v0/sandboxes"), "/")
	name, below, _ := strings.Cut(name, "/")
	m := d.machines[name]
	switch {
	case m != nil && (below == "previews" || strings.HasPrefix(below, "previews/")):
		d.previews(w, r, m, strings.TrimPrefix(below, "previews"))
	case below != "":
		failure(w, http.StatusNotFound, "NOT_FOUND", r.URL.Path)
	case name == "" && r.Method == http.MethodPost && r.URL.Query().Get("upload") == "true":
		d.upload(w, r, "")
	case name == "" && r.Method == http.MethodPost:
		d.create(w, r)
	case name == "" && r.Method == http.MethodGet:
		d.list(w, r.URL.Query())
	case m == nil:
		failure(w, http.StatusNotFound, "SANDBOX_NOT_FOUND", "no sandbox "+name)
	case r.Method == http.MethodPut && r.URL.Query().Get("upload") == "true":
		d.upload(w, r, name)
	case r.Method == http.MethodGet:
		if len(m.states) > 0 {
			m.record["status"], m.states = m.states[0], m.states[1:]
		} else if m.left--; m.left < 0 && m.record["status"] == "DEPLOYING" {
			m.record["status"] = "DEPLOYED"
		}
		reply(w, m.shown())
	case r.Method == http.MethodDelete:
		m.end()
		delete(d.machines, name)
		m.record["status"] = "DELETING"
		reply(w, m.shown())
	default:
		failure(w, http.StatusMethodNotAllowed, "METHOD", r.Method)
	}
}

// wanted is the body of a request for a sandbox, with all fields that the vendor's library sends.
type wanted struct {
	Metadata struct {
		Name       string            `json:"name"`
		Labels     map[string]string `json:"labels"`
		ExternalID string            `json:"externalId"`
	} `json:"metadata"`
	Spec struct {
		Region  string `json:"region"`
		Runtime struct {
			Image      string           `json:"image"`
			Memory     int64            `json:"memory"`
			Generation string           `json:"generation"`
			Envs       []map[string]any `json:"envs"`
			Ports      []struct {
				Name     string `json:"name"`
				Target   int    `json:"target"`
				Protocol string `json:"protocol"`
			} `json:"ports"`
			ExtraArgs map[string]string `json:"extraArgs"`
			TTL       string            `json:"ttl"`
		} `json:"runtime"`
		Lifecycle struct {
			Policies []struct {
				Type   string `json:"type"`
				Value  string `json:"value"`
				Action string `json:"action"`
			} `json:"expirationPolicies"`
		} `json:"lifecycle"`
	} `json:"spec"`
}

// shown is a sandbox as the control plane shows it. Looking does not wake it.
func (m *machine) shown() map[string]any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record["state"] = m.freezer.state()
	return m.record
}

// wrongName reports whether a sandbox may not have a name.
func wrongName(name string) bool {
	return name == "" || len(name) > 49 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != ""
}

func (d *Double) create(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	var want wanted
	in := json.NewDecoder(strings.NewReader(string(data)))
	in.DisallowUnknownFields()
	if err == nil {
		err = in.Decode(&want)
	}
	name := want.Metadata.Name
	switch {
	case err != nil:
		failure(w, http.StatusBadRequest, "BAD_REQUEST", err.Error())
	case wrongName(name):
		failure(w, http.StatusBadRequest, "INVALID_NAME", "the name "+strconv.Quote(name))
	case want.Spec.Region != Region:
		failure(w, http.StatusBadRequest, "INVALID_REGION", "no region "+strconv.Quote(want.Spec.Region))
	case want.Spec.Runtime.Memory < 512 || want.Spec.Runtime.Memory > 65536:
		failure(w, http.StatusBadRequest, "INVALID_MEMORY", fmt.Sprintf("memory %d", want.Spec.Runtime.Memory))
	case !d.images[want.Spec.Runtime.Image]:
		failure(w, http.StatusBadRequest, "IMAGE_NOT_FOUND", "no image "+strconv.Quote(want.Spec.Runtime.Image))
	case d.machines[name] != nil:
		failure(w, http.StatusConflict, "SANDBOX_ALREADY_EXISTS", "a sandbox "+name+" is there")
	case len(d.machines) >= d.quota:
		failure(w, http.StatusForbidden, "QUOTA_EXCEEDED", fmt.Sprintf("the workspace may have %d sandboxes", d.quota))
	default:
		m, err := d.newMachine()
		if err != nil {
			failure(w, http.StatusInternalServerError, "INTERNAL", err.Error())
			return
		}
		_ = json.Unmarshal(data, &m.record) // was read above
		m.record["metadata"].(map[string]any)["url"] = d.server.URL + "/run/" + Workspace + "/sandboxes/" + name
		m.record["status"], m.left = "DEPLOYED", d.deploys
		if d.deploys > 0 {
			m.record["status"] = "DEPLOYING"
		}
		d.machines[name] = m
		if len(d.lose) == 0 {
			reply(w, m.shown())
			return
		}
		status := d.lose[0]
		if d.lose = d.lose[1:]; status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	}
}

// list answers with pages of two, so that a client must ask for more.
func (d *Double) list(w http.ResponseWriter, q url.Values) {
	names := slices.Sorted(maps.Keys(d.machines))
	from, _ := strconv.Atoi(q.Get("cursor"))
	from = min(from, len(names))
	to := min(from+2, len(names))
	data, meta := []any{}, map[string]any{"hasMore": to < len(names)}
	for _, name := range names[from:to] {
		data = append(data, d.machines[name].shown())
	}
	if to < len(names) {
		meta["nextCursor"] = strconv.Itoa(to)
	}
	reply(w, map[string]any{"data": data, "meta": meta})
}
