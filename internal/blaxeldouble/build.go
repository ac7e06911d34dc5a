package blaxeldouble

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// build is an image that is being built for a sandbox.
type build struct {
	name    string
	archive []byte
	states  []string // that looks at the sandbox see, one after the other
}

// Build is an archive that the double got.
type Build struct {
	Name    string
	Archive []byte
}

// Builds has the next builds go through these states. Each look at the sandbox is one state; the last one stays.
func (d *Double) Builds(states ...string) { d.with(func() { d.buildStates = states }) }

// BreakUploads has the store for archives answer so the next times.
func (d *Double) BreakUploads(times, status int, body string) {
	d.with(func() { d.refusals = append(d.refusals, refusal{http.MethodPut, "/store/", status, body, times}) })
}

// Built are the archives that the double got.
func (d *Double) Built() (out []Build) {
	d.with(func() { out = slices.Clone(d.built) })
	return out
}

// upload answers to a request for an archive's address.
func (d *Double) upload(w http.ResponseWriter, r *http.Request, name string) {
	data, err := io.ReadAll(r.Body)
	var want wanted
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields()
	if err == nil {
		err = in.Decode(&want)
	}
	s := want.Spec
	switch {
	case err != nil:
		failure(w, http.StatusBadRequest, "BAD_REQUEST", err.Error())
		return
	case wrongName(want.Metadata.Name) || name != "" && name != want.Metadata.Name:
		failure(w, http.StatusBadRequest, "INVALID_NAME", "the name "+want.Metadata.Name)
		return
	case s.Region != "" && s.Region != Region:
		failure(w, http.StatusBadRequest, "INVALID_REGION", "no region "+s.Region)
		return
	case s.Runtime.Image != "" || s.Runtime.Memory == 0:
		failure(w, http.StatusBadRequest, "BAD_REQUEST", "a build has memory and no image")
		return
	case name == "" && len(d.machines) >= d.quota:
		failure(w, http.StatusForbidden, "QUOTA_EXCEEDED", fmt.Sprintf("the workspace may have %d sandboxes", d.quota))
		return
	}
	name = want.Metadata.Name
	m := d.machines[name]
	if m == nil {
		if m, err = d.newMachine(); err != nil {
			failure(w, http.StatusInternalServerError, "INTERNAL", err.Error())
			return
		}
		d.machines[name] = m
	}
	before := m.record["status"]
	m.record = map[string]any{}
	_ = json.Unmarshal(data, &m.record) // was read above
	m.record["metadata"].(map[string]any)["url"] = d.server.URL + "/run/" + Workspace + "/sandboxes/" + name
	m.record["status"] = "UPLOADING"
	if before != nil {
		m.record["status"] = before // until the archive is there
	}
	id := fmt.Sprint("archive-", len(d.uploads)+1)
	d.uploads[id] = &build{name: name, states: d.buildStates}
	w.Header().Set("X-Blaxel-Upload-Url", d.server.URL+"/store/"+id+"?signature="+Signature)
	reply(w, m.record)
}

// Signature is in the addresses for archives.
const Signature = "signed-by-the-store"

// store answers as the store for archives, which knows nothing of Blaxel's keys.
func (d *Double) store(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.uploads[strings.TrimPrefix(r.URL.Path, "/store/")]
	refuse := func(status int, why string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>Refused</Code><Message>%s</Message></Error>", why)
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Blaxel") || name == "Authorization" {
			refuse(http.StatusBadRequest, "a field that was not signed: "+name)
			return
		}
	}
	switch {
	case r.Method != http.MethodPut || b == nil || r.URL.Query().Get("signature") != Signature:
		refuse(http.StatusForbidden, "no such address")
		return
	case r.Header.Get("Content-Type") != "application/zip" || r.ContentLength < 0:
		refuse(http.StatusForbidden, "an archive has a length, and the type application/zip")
		return
	case err != nil || int64(len(data)) != r.ContentLength:
		refuse(http.StatusBadRequest, "the archive has no end")
		return
	}
	b.archive = data
	m := d.machines[b.name]
	if m == nil {
		return // it was deleted
	}
	d.built = append(d.built, Build{b.name, data})
	m.states = b.states
	if m.states == nil {
		m.states = []string{"BUILDING", "DEPLOYING", "DEPLOYED"}
	}
	if err := checkArchive(data); err != nil {
		m.states = []string{"BUILDING", "FAILED"}
		m.record["events"] = []map[string]any{{"status": "FAILED", "message": err.Error(), "type": "build"}}
	}
	image := fmt.Sprintf("sandbox/%s:%d", b.name, len(d.built))
	d.images[image] = true
	m.record["spec"].(map[string]any)["runtime"].(map[string]any)["image"] = image
}

// checkArchive builds nothing: a Dockerfile with 'RUN false' fails.
func checkArchive(data []byte) error {
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return err
	}
	f, err := r.Open("Dockerfile")
	if err != nil {
		return fmt.Errorf("no Dockerfile: %w", err)
	}
	text, err := io.ReadAll(f)
	err = errors.Join(err, f.Close())
	switch {
	case err != nil:
		return err
	case !strings.Contains(string(text), "/sandbox-api"):
		return fmt.Errorf("the image has no sandbox-api")
	case strings.Contains(string(text), "RUN false"):
		return fmt.Errorf("process \"/bin/sh -c false\" did not complete successfully: exit code: 1")
	}
	return nil
}
