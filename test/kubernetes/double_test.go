// Package kubernetes tests the backend kubernetes without a cluster. The API server is a double: it
// knows the few objects that the backend uses, and refuses the rest. The streams are upstream's own
// code, and the processes are real.
package kubernetes

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	auth "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	strict "sigs.k8s.io/json"
)

// namespace is the only one that the double has.
const namespace = "agents"

// stored is an object of the double.
type stored interface {
	GetName() string
	GetLabels() map[string]string
	SetUID(uid types.UID)
	GetResourceVersion() string
	SetResourceVersion(version string)
	SetCreationTimestamp(t meta.Time)
}

// change is one event of a watch.
type change struct {
	version  int
	resource string
	labels   labels.Set
	event    meta.WatchEvent
}

// double is an API server of a test.
type double struct {
	t      *testing.T
	server *httptest.Server
	node   *node

	mu      sync.Mutex
	objects map[string]map[string]stored // by resource and name
	version int
	history []change
	more    chan struct{} // closed at the next change
	denied  map[string]bool
	refuse  func(verb, resource string) *meta.Status // nil: nothing is refused
	spdy    bool                                     // WebSockets are not known
	calls   map[string]int
}

// newDouble starts a double with one node.
func newDouble(t *testing.T, n *node) *double {
	t.Helper()
	d := &double{
		t: t, node: n, objects: map[string]map[string]stored{"pods": {}, "networkpolicies": {}}, more: make(chan struct{}),
		denied: map[string]bool{}, calls: map[string]int{},
	}
	n.api = d
	d.server = httptest.NewServer(d)
	t.Cleanup(d.server.Close)
	return d
}

// fail answers with a status, as an API server does.
func fail(w http.ResponseWriter, code int, reason meta.StatusReason, format string, args ...any) {
	answer(w, code, meta.Status{
		TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure, Code: int32(code), Reason: reason,
		Message: fmt.Sprintf(format, args...),
	})
}

func answer(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // the client may be gone
}

// roots are the paths of the resources.
var roots = map[string]string{
	"/api/v1/namespaces/" + namespace + "/pods":                                           "pods",
	"/api/v1/namespaces/" + namespace + "/events":                                         "events",
	"/apis/networking.k8s.io/v1/namespaces/" + namespace + "/networkpolicies":             "networkpolicies",
	"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":                              "selfsubjectaccessreviews",
	"/apis/agents.x-k8s.io/v1beta1/namespaces/" + namespace + "/sandboxes":                "", // not installed
	"/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/" + namespace + "/sandboxclaims": "",
}

// verbs are those of methods, for one object and for many.
var verbs = map[string][2]string{
	http.MethodGet: {"get", "list"}, http.MethodPost: {"", "create"}, http.MethodDelete: {"delete", ""}, http.MethodPatch: {"patch", ""},
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for root, resource := range roots {
		rest, under := strings.CutPrefix(r.URL.Path, root)
		if !under || rest != "" && rest[0] != '/' {
			continue
		}
		name, part, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
		verb := verbs[r.Method][1]
		switch {
		case part != "": // as Kubernetes names a WebSocket
			verb = map[string]string{http.MethodGet: "get", http.MethodPost: "create"}[r.Method]
		case name != "":
			verb = verbs[r.Method][0]
		case r.URL.Query().Get("watch") != "":
			verb = "watch"
		}
		d.serve(w, r, call{verb, resource, name, part})
		return
	}
	d.t.Errorf("the double has no %s %s", r.Method, r.URL)
	fail(w, http.StatusNotFound, meta.StatusReasonNotFound, "no such path")
}

// call is a request about objects.
type call struct{ verb, resource, name, part string }

func (c call) String() string {
	if c.part != "" {
		return c.verb + " " + c.resource + "/" + c.part
	}
	return c.verb + " " + c.resource
}

func (d *double) serve(w http.ResponseWriter, r *http.Request, c call) {
	d.mu.Lock()
	d.calls[c.String()]++
	denied, refuse := d.denied[c.String()], d.refuse
	d.mu.Unlock()
	if c.resource == "" {
		fail(w, http.StatusNotFound, meta.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	if denied {
		fail(w, http.StatusForbidden, meta.StatusReasonForbidden, `User "test" cannot %s resource %q`, c.verb, c.resource)
		return
	}
	if refuse != nil {
		if s := refuse(c.verb, c.resource); s != nil {
			answer(w, int(s.Code), s)
			return
		}
	}
	switch {
	case c.part == "exec" && c.resource == "pods":
		d.exec(w, r, c.name)
	case c.part != "":
		d.t.Errorf("the double has no %s", c)
		fail(w, http.StatusNotFound, meta.StatusReasonNotFound, "no such part")
	case c.resource == "selfsubjectaccessreviews":
		d.review(w, r)
	case c.resource == "events":
		answer(w, http.StatusOK, core.EventList{TypeMeta: meta.TypeMeta{Kind: "EventList", APIVersion: "v1"}})
	case c.verb == "create":
		d.create(w, r, c.resource)
	case c.verb == "watch":
		d.watch(w, r, c.resource)
	case c.verb == "list":
		d.list(w, r, c.resource)
	default:
		d.one(w, r, c)
	}
}

// read reads an object strictly: a field that Kubernetes does not have is an error.
func read(r *http.Request, into any) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	unknown, err := strict.UnmarshalStrict(data, into)
	if err == nil && len(unknown) > 0 {
		err = fmt.Errorf("strict decoding error: %v", unknown)
	}
	return err
}

func (d *double) review(w http.ResponseWriter, r *http.Request) {
	var v auth.SelfSubjectAccessReview
	if err := read(r, &v); err != nil || v.Spec.ResourceAttributes == nil || v.Spec.ResourceAttributes.Namespace != namespace {
		d.t.Errorf("review: %+v, %v", v, err)
	}
	a := v.Spec.ResourceAttributes
	d.mu.Lock()
	defer d.mu.Unlock()
	v.Status.Allowed = !d.denied[call{a.Verb, a.Resource, "", a.Subresource}.String()]
	answer(w, http.StatusCreated, v)
}

func (d *double) create(w http.ResponseWriter, r *http.Request, resource string) {
	var o stored = new(core.Pod)
	if resource == "networkpolicies" {
		o = new(networking.NetworkPolicy)
	}
	if err := read(r, o); err != nil {
		d.t.Error(err)
		fail(w, http.StatusBadRequest, meta.StatusReasonBadRequest, "%v", err)
		return
	}
	d.mu.Lock()
	if d.objects[resource][o.GetName()] != nil {
		d.mu.Unlock()
		fail(w, http.StatusConflict, meta.StatusReasonAlreadyExists, "%s %q already exists", resource, o.GetName())
		return
	}
	o.SetUID(types.UID(fmt.Sprintf("uid-%d", d.version)))
	o.SetCreationTimestamp(meta.Now())
	p, isPod := o.(*core.Pod)
	if isPod {
		p.Status.Phase = core.PodPending
	}
	d.record("ADDED", resource, o)
	answer(w, http.StatusCreated, o)
	d.mu.Unlock()
	if isPod {
		d.node.admit(p.DeepCopy())
	}
}

// record stores an object as it is now. The lock is held.
func (d *double) record(kind, resource string, o stored) {
	d.version++
	o.SetResourceVersion(strconv.Itoa(d.version))
	d.objects[resource][o.GetName()] = o
	if kind == "DELETED" {
		delete(d.objects[resource], o.GetName())
	}
	data, err := json.Marshal(o)
	if err != nil {
		d.t.Error(err)
	}
	e := change{version: d.version, resource: resource, labels: o.GetLabels()}
	e.event.Type = kind
	e.event.Object.Raw = data
	d.history = append(d.history, e)
	close(d.more)
	d.more = make(chan struct{})
}

// update changes a pod, unless it is gone.
func (d *double) update(name string, fn func(p *core.Pod)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, ok := d.objects["pods"][name].(*core.Pod); ok {
		p = p.DeepCopy()
		fn(p)
		d.record("MODIFIED", "pods", p)
	}
}

func (d *double) list(w http.ResponseWriter, r *http.Request, resource string) {
	selects, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		d.t.Error(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	items := []any{}
	for _, name := range slices.Sorted(maps.Keys(d.objects[resource])) {
		if o := d.objects[resource][name]; selects.Matches(labels.Set(o.GetLabels())) {
			items = append(items, o)
		}
	}
	version, kind := "v1", "PodList"
	if resource == "networkpolicies" {
		version, kind = "networking.k8s.io/v1", "NetworkPolicyList"
	}
	answer(w, http.StatusOK, map[string]any{
		"apiVersion": version, "kind": kind, "metadata": map[string]any{"resourceVersion": strconv.Itoa(d.version)}, "items": items,
	})
}

func (d *double) watch(w http.ResponseWriter, r *http.Request, resource string) {
	since, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	selects, failed := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || failed != nil {
		d.t.Errorf("watch: %v, %v", err, failed)
	}
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	for {
		d.mu.Lock()
		more, all := d.more, d.history
		d.mu.Unlock()
		for _, e := range all {
			if e.version > since && e.resource == resource && selects.Matches(e.labels) {
				_ = json.NewEncoder(w).Encode(e.event)
			}
		}
		since = max(since, len(all))
		_ = flush.Flush()
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// one answers requests about one object.
func (d *double) one(w http.ResponseWriter, r *http.Request, c call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.objects[c.resource][c.name]
	if o == nil {
		fail(w, http.StatusNotFound, meta.StatusReasonNotFound, "%s %q not found", c.resource, c.name)
		return
	}
	switch c.verb {
	case "delete":
		if p, ok := o.(*core.Pod); ok {
			p = p.DeepCopy()
			now := meta.Now()
			p.DeletionTimestamp = &now
			d.record("MODIFIED", "pods", p)
			go d.node.delete(p.Name)
		} else {
			d.record("DELETED", c.resource, o)
		}
	case "patch":
		if r.Header.Get("Content-Type") != "application/merge-patch+json" || c.resource != "networkpolicies" {
			d.t.Errorf("patch %s: %s", c.resource, r.Header.Get("Content-Type"))
		}
		old, _ := json.Marshal(o)
		patch, _ := io.ReadAll(r.Body)
		data, err := jsonpatch.MergePatch(old, patch)
		changed := new(networking.NetworkPolicy)
		if err == nil {
			err = json.Unmarshal(data, changed)
		}
		if err != nil {
			d.t.Error(err)
		}
		o = changed
		d.record("MODIFIED", c.resource, o)
	}
	answer(w, http.StatusOK, o)
}

// removed records that a pod is no more.
func (d *double) removed(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.objects["pods"][name]; p != nil {
		d.record("DELETED", "pods", p)
	}
}

// left returns the names of all objects.
func (d *double) left() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for resource, objects := range d.objects {
		for name := range objects {
			out = append(out, resource+"/"+name)
		}
	}
	return out
}

// waitLeft waits until no object is left. The deadline of the test bounds it.
func (d *double) waitLeft() {
	for look := time.Tick(20 * time.Millisecond); len(d.left()) > 0; {
		<-look
	}
}
