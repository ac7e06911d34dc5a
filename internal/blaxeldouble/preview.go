package blaxeldouble

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"
)

// preview is an address of a port of a machine, for others.
type preview struct {
	record map[string]any
	public bool
	port   int
	server *httptest.Server
	tokens []*token
}

type token struct {
	name, value string
	ends        time.Time
}

// previews answers for the previews of a machine: rest is what follows /previews in the address.
func (d *Double) previews(w http.ResponseWriter, r *http.Request, m *machine, rest string) {
	name, of, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	p := m.previews[name]
	switch {
	case name == "" && r.Method == http.MethodPost:
		d.addPreview(w, r, m)
	case name == "" && r.Method == http.MethodGet:
		list := []any{}
		for _, p := range m.previews {
			list = append(list, p.record)
		}
		reply(w, list)
	case p == nil:
		refuse(w, http.StatusNotFound, name)
	case of == "" && r.Method == http.MethodGet:
		reply(w, p.record)
	case of == "" && r.Method == http.MethodDelete:
		p.server.CloseClientConnections()
		delete(m.previews, name)
		reply(w, p.record)
	case of == "tokens" && r.Method == http.MethodPost:
		p.addToken(w, r)
	case of == "tokens" && r.Method == http.MethodGet:
		list := []any{}
		for _, one := range p.tokens {
			list = append(list, one.shown())
		}
		reply(w, list)
	case strings.HasPrefix(of, "tokens/") && r.Method == http.MethodDelete:
		for i, one := range p.tokens {
			if one.name == strings.TrimPrefix(of, "tokens/") {
				p.tokens = append(p.tokens[:i:i], p.tokens[i+1:]...)
				reply(w, one.shown())
				return
			}
		}
		refuse(w, http.StatusNotFound, of)
	default:
		refuse(w, http.StatusMethodNotAllowed, r.Method)
	}
}

func (d *Double) addPreview(w http.ResponseWriter, r *http.Request, m *machine) {
	var want struct {
		Metadata struct{ Name string } `json:"metadata"`
		Spec     struct {
			Port    int    `json:"port"`
			Public  bool   `json:"public"`
			Expires string `json:"expires"`
			TTL     string `json:"ttl"`
		} `json:"spec"`
	}
	in := json.NewDecoder(r.Body)
	in.DisallowUnknownFields()
	if err := in.Decode(&want); err != nil || wrongName(want.Metadata.Name) || want.Spec.Port == 0 || m.previews[want.Metadata.Name] != nil {
		refuse(w, http.StatusBadRequest, fmt.Sprint("a preview has a name and a port: ", err))
		return
	}
	p := &preview{public: want.Spec.Public, port: want.Spec.Port}
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		allowed := false
		d.with(func() { allowed = m.previews[want.Metadata.Name] == p && p.allows(r) })
		if !allowed {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		done, err := m.use()
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		defer done()
		d.port(w, r, m, fmt.Sprint(p.port, r.URL.Path))
	}))
	d.t.Cleanup(p.server.Close)
	p.record = map[string]any{
		"metadata": map[string]any{"name": want.Metadata.Name, "resourceName": m.record["metadata"].(map[string]any)["name"]},
		"spec":     map[string]any{"port": p.port, "public": p.public, "url": p.server.URL},
	}
	m.previews[want.Metadata.Name] = p
	reply(w, p.record)
}

// allows reports whether a request has a token of a preview that is not public.
func (p *preview) allows(r *http.Request) bool {
	said := r.Header.Get("X-Blaxel-Preview-Token")
	if said == "" {
		said = r.URL.Query().Get("bl_preview_token")
	}
	for _, one := range p.tokens {
		if one.value == said && time.Now().Before(one.ends) {
			return true
		}
	}
	return p.public
}

func (p *preview) addToken(w http.ResponseWriter, r *http.Request) {
	var want struct {
		Metadata struct{ Name string } `json:"metadata"`
		Spec     struct {
			Ends time.Time `json:"expiresAt"`
		} `json:"spec"`
	}
	in := json.NewDecoder(r.Body)
	in.DisallowUnknownFields()
	if err := in.Decode(&want); err != nil || want.Metadata.Name == "" || want.Spec.Ends.IsZero() {
		refuse(w, http.StatusBadRequest, fmt.Sprint("a token has a name and an end: ", err))
		return
	}
	one := &token{want.Metadata.Name, fmt.Sprintf("preview-token-%d-of-the-double", len(p.tokens)+1), want.Spec.Ends}
	p.tokens = append(p.tokens, one)
	reply(w, one.shown())
}

func (t *token) shown() map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": t.name},
		"spec":     map[string]any{"token": t.value, "expiresAt": t.ends, "expired": time.Now().After(t.ends)},
	}
}

// refuse is an answer of the control plane about something else than sandboxes: its code is a number.
func refuse(w http.ResponseWriter, status int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": status, "error": why})
}

// Place starts agentsh serve in a new machine called place, and returns the address of a preview that is not public, with its token.
func (d *Double) Place(program string, key []byte) (address, secret string, err error) {
	m, err := d.newMachine()
	if err != nil {
		return "", "", err
	}
	m.record["metadata"], m.record["status"] = map[string]any{"name": "place"}, "DEPLOYED"
	d.with(func() { d.machines["place"] = m })
	if err := m.write("/root/place.key", "0600", key); err != nil {
		return "", "", err
	}
	command := "exec " + program + " serve --listen ws:0.0.0.0:7000 --key /root/place.key"
	p, err := m.start(wantedProcess{Name: "agentsh", Dir: "/", Command: command})
	if err != nil {
		return "", "", err
	}
	if err := d.until(p, func() bool { return strings.Contains(p.shown()["logs"].(string), "serving controllers") }); err != nil {
		return "", "", err
	}
	var view preview
	d.with(func() {
		answers := httptest.NewRecorder()
		const want = `{"metadata": {"name": "p"}, "spec": {"port": 7000}}`
		d.addPreview(answers, httptest.NewRequestWithContext(d.t.Context(), http.MethodPost, "/", strings.NewReader(want)), m)
		view = *m.previews["p"]
		m.previews["p"].tokens = []*token{{"t", PreviewToken, time.Now().Add(time.Hour)}}
	})
	return strings.Replace(view.server.URL, "http://", "ws://", 1) + "/", PreviewToken, nil
}

// PreviewToken is the token of [Double.Place].
const PreviewToken = "preview-token-of-a-place"
