package harness

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Backends that make containers.
var (
	engines  = []string{"docker", "podman"}
	clusters = []string{"kubernetes"}
	machines = []string{"vm"}
	services = []string{"blaxel"}
	gateways = []string{"openshell"}
)

// makesImages reports whether the harness names a backend that makes sandboxes from images.
func (h *Harness) makesImages() bool {
	return h.Backend.IsSet() && slices.Contains(slices.Concat(engines, clusters, machines, services, gateways), h.Backend.V)
}

// NotOf are the settings of a container and a pod that a backend would ignore, or cannot
// give.
func (h *Harness) NotOf(backend string, s Severity) Problems {
	var ps Problems
	add := func(at Origin, message, hint string) {
		if !at.IsZero() {
			ps = append(ps, Problem{At: at, Severity: s, Rule: RuleUnsupport, Message: message, Hint: hint})
		}
	}
	isCluster := slices.Contains(clusters, backend)
	if !isCluster {
		for key, at := range given(reflect.ValueOf(h.Kubernetes), "kubernetes") {
			add(at, key+": the backend "+backend+" makes no pod", "write backend: kubernetes, or run with --backend")
		}
	}
	switch own := h.Container.own(); {
	case slices.Contains(machines, backend):
		own.MemoryMB, own.CPUs, own.DiskMB, own.Network = Value[int]{}, Value[float64]{}, Value[int]{}, Text{}
		for key, at := range given(reflect.ValueOf(own), "container") {
			add(at, key+": a virtual machine has none", "leave it out; resource_limits of the policy limit processes")
		}
	case slices.Contains(gateways, backend):
		for key, at := range given(reflect.ValueOf(own), "container") {
			add(at, key+": OpenShell decides about the containers of its sandboxes", "leave it out")
		}
		ps = append(ps, h.notCarried()...)
	case slices.Contains(services, backend):
		own.MemoryMB = Value[int]{}
		for key, at := range given(reflect.ValueOf(own), "container") {
			add(at, key+": the backend "+backend+" takes memory_mb alone", "leave it out")
		}
	case !isCluster && !slices.Contains(engines, backend):
		for key, at := range given(reflect.ValueOf(own), "container") {
			add(
				at,
				key+": the backend "+backend+" makes no container",
				"write backend: docker, podman, kubernetes, vm or blaxel, or run with --backend",
			)
		}
	}
	if isCluster {
		h.notOfClusters(add)
	}
	slices.SortFunc(ps, func(a, b Problem) int {
		if a.At.Line != b.At.Line {
			return a.At.Line - b.At.Line
		}
		return a.At.Column - b.At.Column
	})
	return ps
}

// At is where the harness has a key of container, as container.memory_mb; zero: nowhere.
func (c Container) At(key string) Origin { return given(reflect.ValueOf(c), "container")[key] }

// own has the settings of the container alone, without where the agent's program runs.
func (c Container) own() Container {
	return Container{
		User: c.User, MemoryMB: c.MemoryMB, CPUs: c.CPUs, PIDs: c.PIDs, DiskMB: c.DiskMB, Network: c.Network, Mounts: c.Mounts,
	}
}

// notOfClusters adds what a harness has that no cluster gives.
func (h *Harness) notOfClusters(add func(at Origin, message, hint string)) {
	c, k := h.Container, h.Kubernetes
	add(c.PIDs.At, "container.pids: a cluster limits the processes of a pod for whole nodes",
		"leave it out, and set podPidsLimit of the kubelet")
	if c.User.IsSet() {
		for id := range strings.SplitSeq(c.User.V, ":") {
			if _, err := strconv.ParseUint(id, 10, 31); err != nil {
				add(c.User.At, "container.user: a pod has no user by name", "write UID or UID:GID")
				break
			}
		}
	}
	if c.Network.IsSet() && c.Network.V != "none" {
		add(c.Network.At, "container.network: a pod has the network of its cluster", "leave it out, or write none")
	}
	for _, m := range c.Mounts {
		if strings.HasPrefix(m.Source.V, "/") {
			add(m.Source.At, "container.mounts: "+m.Source.V+": a directory of a node is not of this sandbox alone",
				"name a PersistentVolumeClaim of the namespace")
		}
	}
	if k.Seccomp.V == "Unconfined" && !k.UserNamespace.Or(true) {
		add(k.Seccomp.At, "kubernetes.seccomp: Unconfined without a user namespace leaves the pod no boundary but its user",
			"leave out user_namespace: false, or name a profile")
	}
	if !k.WarmPool.IsSet() {
		return
	}
	const why = ": the template of the warm pool decides it"
	own := c.own()
	own.PIDs = Value[int]{} // added above
	for key, at := range given(reflect.ValueOf(own), "container") {
		add(at, key+why, "leave it out")
	}
	pod := k
	pod.WarmPool, pod.StartSeconds, pod.MaxSeconds = Text{}, Value[int]{}, Value[int]{}
	pod.NetworkPolicy, pod.DNSNamespace, pod.Labels, pod.Annotations = Value[bool]{}, Text{}, nil, nil
	for key, at := range given(reflect.ValueOf(pod), "kubernetes") {
		add(at, key+why, "leave it out")
	}
	if h.Image.IsSet() {
		add(h.Image.At, "image"+why, "leave it out")
	}
}

// given returns the dotted keys of a section that are set, each with its first place.
func given(section reflect.Value, where string) map[string]Origin {
	out := map[string]Origin{}
	collectGiven(section, where, out)
	return out
}

func collectGiven(v reflect.Value, key string, to map[string]Origin) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			collectGiven(v.Index(i), key, to)
		}
	case reflect.Map:
		for entry := v.MapRange(); entry.Next(); {
			collectGiven(entry.Value(), key, to)
		}
	case reflect.Struct:
		if at := v.FieldByName("At"); at.IsValid() {
			first, known := to[key]
			if o := at.Interface().(Origin); !o.IsZero() && (!known || o.Line < first.Line) {
				to[key] = o
			}
			return
		}
		for i := range v.NumField() {
			collectGiven(v.Field(i), join(key, v.Type().Field(i).Tag.Get("harness")), to)
		}
	}
}

// notCarried are what OpenShell does not take of providers. Some providers stay at its gateway, so that these are no errors.
func (h *Harness) notCarried() Problems {
	var ps Problems
	warn := func(at Origin, message, hint string) {
		ps = append(ps, Problem{At: at, Severity: Warning, Rule: RuleUnsupport, Message: message, Hint: hint})
	}
	by := map[string]string{} // provider, by the endpoint
	for _, name := range sortedKeys(h.Definitions) {
		d := h.Definitions[name]
		for _, key := range sortedKeys(d.Config) {
			warn(d.Config[key].At, "config."+key+" of the provider "+name+": the gateway of OpenShell gets credentials alone",
				"write it into env.sandbox if commands need it")
		}
		if d.Lifetime.IsSet() {
			warn(d.Lifetime.At, "lifetime_seconds of the provider "+name+": values are not renewed in OpenShell",
				"have the program print values that live as long as the run")
		}
		if len(d.Credentials) == 0 {
			continue
		}
		for _, e := range d.Endpoints {
			at := strings.ToLower(strings.TrimSuffix(e.V, ":443"))
			if other := by[at]; other != "" && other != name {
				warn(e.At, "endpoints of the provider "+name+": "+e.V+" is one of the provider "+other+" too, and OpenShell takes one provider "+
					"for an endpoint of the policy", "put their credentials into one provider")
			}
			by[at] = name
		}
	}
	return ps
}
