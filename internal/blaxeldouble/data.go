package blaxeldouble

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// data answers as the sandbox API of a virtual machine.
func (d *Double) data(w http.ResponseWriter, r *http.Request) {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.EscapedPath(), "/run/"+Workspace+"/sandboxes/"), "/", 3)
	var m *machine
	d.with(func() {
		if m = d.machines[parts[0]]; m != nil && m.record["status"] != "DEPLOYED" {
			m = nil
		}
	})
	if m == nil || len(parts) < 2 {
		wrong(w, http.StatusNotFound, "no sandbox")
		return
	}
	done, err := m.use()
	if err != nil {
		wrong(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer done()
	rest := ""
	if len(parts) == 3 {
		rest = parts[2]
	}
	switch parts[1] {
	case "process":
		m.process(w, r, rest)
	case "filesystem":
		m.file(w, r, path(rest))
	case "filesystem-multipart":
		m.multipart(w, r, rest)
	case "port":
		d.port(w, r, m, rest)
	default:
		wrong(w, http.StatusNotFound, r.URL.Path)
	}
}

// wrong is an answer of the sandbox API.
func wrong(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": message})
}

// path is the name of a file in an address: with escaped or plain slashes.
func path(escaped string) string {
	name, err := url.PathUnescape(escaped)
	if err != nil {
		return ""
	}
	return "/" + strings.TrimLeft(name, "/")
}

func (m *machine) process(w http.ResponseWriter, r *http.Request, id string) {
	id, _, _ = strings.Cut(id, "/")
	if id != "" && r.Method != http.MethodPost {
		p := m.find(id)
		if p == nil {
			wrong(w, http.StatusNotFound, "process not found")
			return
		}
		if r.Method == http.MethodDelete { // stop, and kill at /kill
			p.kill()
			<-p.done
		}
		reply(w, p.shown())
		return
	}
	var want wantedProcess
	in := json.NewDecoder(r.Body)
	in.DisallowUnknownFields()
	if err := in.Decode(&want); err != nil || r.Method != http.MethodPost || id != "" || want.Command == "" {
		wrong(w, http.StatusBadRequest, fmt.Sprint("a process needs a command: ", err))
		return
	}
	if want.Dir == "" {
		want.Dir = "/"
	}
	p, err := m.start(want)
	if err != nil {
		wrong(w, http.StatusBadRequest, err.Error())
		return
	}
	for _, port := range want.Ports {
		m.awaitPort(p, port)
	}
	if want.Wait {
		<-p.done
	}
	reply(w, p.shown())
}

// wantedProcess is the body of a request for a process, with all fields that the vendor's library sends.
type wantedProcess struct {
	Name    string            `json:"name"`
	Command string            `json:"command"`
	Dir     string            `json:"workingDir"`
	Env     map[string]string `json:"env"`
	Awake   bool              `json:"keepAlive"`
	Timeout *int              `json:"timeout"` // seconds; with keepAlive 600 if it is missing; 0: none
	Wait    bool              `json:"waitForCompletion"`
	Ports   []int             `json:"waitForPorts"`
}

func (w wantedProcess) timeout() time.Duration {
	switch {
	case w.Timeout != nil:
		return time.Duration(*w.Timeout) * time.Second
	case w.Awake:
		return 10 * time.Minute
	}
	return 0
}

// awaitPort waits until a port accepts connections, or the process has ended.
func (m *machine) awaitPort(p *process, port int) {
	for !p.ended() {
		conn, err := m.dial(strconv.Itoa(port))
		if err == nil {
			_ = conn.Close()
			return
		}
	}
}

func (m *machine) file(w http.ResponseWriter, r *http.Request, name string) {
	switch r.Method {
	case http.MethodGet:
		data, err := m.read(name)
		if err != nil {
			wrong(w, http.StatusNotFound, "file not found")
			return
		}
		reply(w, map[string]any{"path": name, "name": name, "content": string(data), "size": len(data)})
	case http.MethodPut:
		mode, data, err := sent(r)
		if err == nil {
			err = m.write(name, mode, data)
		}
		if err != nil {
			wrong(w, http.StatusBadRequest, err.Error())
			return
		}
		reply(w, map[string]any{"path": name, "message": "file written"})
	default:
		wrong(w, http.StatusMethodNotAllowed, r.Method)
	}
}

// sent is a file in a request: a form, or JSON.
func sent(r *http.Request) (mode string, data []byte, err error) {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var in struct{ Content, Permissions string }
		err = json.NewDecoder(r.Body).Decode(&in)
		return orDefault(in.Permissions), []byte(in.Content), err
	}
	if err = r.ParseMultipartForm(16 << 20); err != nil {
		return "", nil, err
	}
	f, _, err := r.FormFile("file")
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	data, err = io.ReadAll(f)
	return orDefault(r.FormValue("permissions")), data, err
}

func orDefault(mode string) string {
	if mode == "" {
		return "0644"
	}
	return mode
}

// maxPart is the largest part of a file that the sandbox API takes, in bytes.
const maxPart = 5 << 20

func (m *machine) multipart(w http.ResponseWriter, r *http.Request, rest string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what, of, _ := strings.Cut(rest, "/")
	if what == "initiate" && r.Method == http.MethodPost {
		var in struct{ Permissions string }
		_ = json.NewDecoder(r.Body).Decode(&in) // it may be empty
		id := fmt.Sprint("upload-", len(m.uploads)+1)
		m.uploads[id] = &upload{path(of), orDefault(in.Permissions), map[int][]byte{}}
		reply(w, map[string]any{"uploadId": id, "path": path(of)})
		return
	}
	u := m.uploads[what]
	switch {
	case u == nil:
		wrong(w, http.StatusNotFound, "no upload "+what)
	case of == "part" && r.Method == http.MethodPut:
		n, err := strconv.Atoi(r.URL.Query().Get("partNumber"))
		_, data, bad := sent(r)
		if err != nil || bad != nil || n < 1 || len(data) == 0 || len(data) > maxPart {
			wrong(w, http.StatusBadRequest, fmt.Sprint("part: ", err, bad, len(data)))
			return
		}
		u.parts[n] = data
		reply(w, map[string]any{"partNumber": n, "etag": fmt.Sprint("tag-", n), "size": len(data)})
	case of == "complete" && r.Method == http.MethodPost:
		var in struct {
			Parts []struct {
				Number int    `json:"partNumber"`
				Tag    string `json:"etag"`
			} `json:"parts"`
		}
		err := json.NewDecoder(r.Body).Decode(&in)
		var data []byte
		for i, p := range in.Parts {
			if p.Number != i+1 || p.Tag != fmt.Sprint("tag-", p.Number) || u.parts[p.Number] == nil {
				err = fmt.Errorf("part %d is not there", p.Number)
			}
			data = append(data, u.parts[p.Number]...)
		}
		if err == nil && len(in.Parts) != len(u.parts) {
			err = fmt.Errorf("%d parts of %d", len(in.Parts), len(u.parts))
		}
		if err == nil {
			err = m.write(u.path, u.mode, data)
		}
		if err != nil {
			wrong(w, http.StatusBadRequest, err.Error())
			return
		}
		reply(w, map[string]any{"path": u.path, "message": "upload completed"})
	default:
		wrong(w, http.StatusMethodNotAllowed, r.Method+" "+rest)
	}
}

// port passes a request on to a port of the machine, WebSockets too.
func (d *Double) port(w http.ResponseWriter, r *http.Request, m *machine, rest string) {
	number, below, _ := strings.Cut(rest, "/")
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: "machine:" + number, Path: "/" + below, RawQuery: p.In.URL.RawQuery}
			for _, name := range []string{"X-Blaxel-Authorization", "X-Blaxel-Workspace"} {
				p.Out.Header.Del(name)
			}
		},
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := m.dial(number)
			if err == nil {
				d.with(func() { d.streams[conn] = true })
			}
			return conn, err
		}, ResponseHeaderTimeout: time.Minute},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { wrong(w, http.StatusBadGateway, err.Error()) },
	}
	proxy.ServeHTTP(w, r)
}
