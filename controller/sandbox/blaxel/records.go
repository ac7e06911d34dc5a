package blaxel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/text"
)

// Labels of sandboxes.
const (
	labelOwner = "agentsh-owner" // the state directory of the controller
	labelRun   = "agentsh-run"
)

// record is a sandbox as the control plane describes it. Fields without omitempty are always sent.
type record struct {
	Metadata metadata  `json:"metadata"`
	Spec     spec      `json:"spec"`
	Status   string    `json:"status,omitempty"`
	Errors   []trouble `json:"errors,omitempty"`
	Events   []event   `json:"events,omitempty"`
}

type metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	URL    string            `json:"url,omitempty"`
}

type spec struct {
	Region    string    `json:"region,omitempty"`
	Runtime   runtime   `json:"runtime"`
	Lifecycle lifecycle `json:"lifecycle"`
}

type runtime struct {
	Image      string            `json:"image"`
	Memory     int64             `json:"memory"`
	Generation string            `json:"generation,omitempty"`
	Ports      []port            `json:"ports,omitempty"`
	ExtraArgs  map[string]string `json:"extraArgs,omitempty"`
}

type port struct {
	Name     string `json:"name"`
	Target   int    `json:"target"`
	Protocol string `json:"protocol"`
}

type lifecycle struct {
	Policies []expiration `json:"expirationPolicies,omitempty"`
}

type expiration struct {
	Type   string `json:"type"`
	Value  string `json:"value"`
	Action string `json:"action"`
}

// trouble is what Blaxel says about a virtual machine that failed.
type trouble struct {
	Message string `json:"message"`
	Fatal   bool   `json:"fatal"`
}

// event is what happened to a sandbox, as in a build.
type event struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// gone reports whether a sandbox is no more, or is being deleted.
func (r record) gone() bool { return r.Status == "TERMINATED" || r.Status == "DELETING" }

// ended is the end that a record shows, or nil.
func (r record) ended() error {
	end := &sandbox.End{Kind: sandbox.EndDied, Hint: "start the run again"}
	switch {
	case r.gone():
		end.Kind, end.Text = sandbox.EndRemoved, "somebody deleted the sandbox at Blaxel, or it was there longer than it may"
	case r.Status == "FAILED":
		end.Text = "the virtual machine at Blaxel failed"
	case r.Status == "DEACTIVATED" || r.Status == "DEACTIVATING" || strings.HasPrefix(r.Status, "ARCHIV"):
		end.Kind, end.Text = sandbox.EndKilled, "somebody switched the sandbox at Blaxel off"
	default:
		return nil
	}
	for _, t := range r.Errors {
		if t.Fatal && t.Message != "" {
			end.Text += ": " + text.Short(t.Message, maxSaid)
		}
	}
	return end
}

// Bounds of a list: pages, bytes of all of them, and sandboxes of a page. The last is more than is asked for.
const (
	maxPages = 500
	maxList  = 64 << 20
	maxPage  = 1000
	pageSize = 200
)

// records are the sandboxes of a page.
type records []record

// UnmarshalJSON implements [json.Unmarshaler]. It reads no more of them than a page may have: small ones would take far more memory than
// their text.
func (r *records) UnmarshalJSON(data []byte) error {
	in := json.NewDecoder(bytes.NewReader(data))
	if t, err := in.Token(); err != nil || t != json.Delim('[') {
		return err // null has none
	}
	for in.More() {
		if len(*r) == maxPage {
			return fmt.Errorf("more than %d sandboxes in a page", maxPage)
		}
		var one record
		if err := in.Decode(&one); err != nil {
			return err
		}
		*r = append(*r, one)
	}
	return nil
}

// list lists all sandboxes of the workspace.
func (a *api) list(ctx context.Context) ([]record, error) {
	var out []record
	cursor, size, seen := "", 0, map[string]bool{}
	for range maxPages {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		var data json.RawMessage
		if err := a.call(ctx, http.MethodGet, a.address("")+"?"+query.Encode(), nil, &data); err != nil {
			return nil, a.explain("list sandboxes", err)
		}
		if size += len(data); size > maxList {
			break
		}
		var page struct {
			Data records `json:"data"`
			Meta struct {
				Next string `json:"nextCursor"`
			} `json:"meta"`
		}
		if err := json.Unmarshal(data, &page); err != nil {
			return nil, a.explain("list sandboxes", &junk{err})
		}
		out = append(out, page.Data...)
		if cursor = page.Meta.Next; cursor == "" || seen[cursor] {
			return out, nil
		}
		seen[cursor] = true
	}
	return nil, &sandbox.End{
		Kind: sandbox.EndRefused,
		Text: fmt.Sprintf("list sandboxes: the list of Blaxel does not end after %d pages or %d MiB", maxPages, maxList>>20),
		Hint: "'bl get sandboxes' shows what is there; is BL_API_URL right, or a proxy in between?",
	}
}
