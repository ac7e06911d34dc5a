package harness

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"agentsh/internal/strictyaml"
)

// Cluster is what a host says of its cluster: where sandboxes are made, and what their pods have
// unless the harness says something else.
type Cluster struct {
	Connect Text `harness:"connect"`
	Kubernetes
}

// clusterFields are the keys of a [Cluster]. Those that are of one harness alone are not among them.
func clusterFields() []field {
	out := slices.DeleteFunc(slices.Clone(kubernetesFields), func(f field) bool { return f.name == "warm_pool" })
	connect := *find(fields, "connect")
	connect.doc = "Address of the cluster, as with --connect."
	return append([]field{connect}, out...)
}

// ReadCluster reads the cluster of a host from a node of its configuration.
func ReadCluster(file string, n *strictyaml.Node) (Cluster, Problems) {
	var ps Problems
	var out Cluster
	b := &builder{file: file, ps: &ps, whole: "the configuration"}
	if t := b.mapping(n, clusterFields(), "kubernetes"); t != nil {
		t = normalized(t)
		decode(t, &out)
		decode(t, &out.Kubernetes)
	}
	return out, ps
}

// Fill sets what the harness does not say of its pod. A backend that makes no pods leaves the
// harness as it is. The template of a warm pool decides what it has, so nothing of that is set.
func (h *Harness) Fill(backend string, of Cluster) {
	if !slices.Contains(clusters, backend) {
		return
	}
	k := &h.Kubernetes
	if k.WarmPool.IsSet() {
		d := of.Kubernetes
		of.Kubernetes = Kubernetes{
			NetworkPolicy: d.NetworkPolicy, DNSNamespace: d.DNSNamespace, Labels: d.Labels, Annotations: d.Annotations,
			StartSeconds: d.StartSeconds, MaxSeconds: d.MaxSeconds,
		}
	}
	fill(reflect.ValueOf(k).Elem(), reflect.ValueOf(of.Kubernetes))
}

// fill sets the fields of a section that are not set. Maps get the keys that they lack.
func fill(to, from reflect.Value) {
	for i := range to.NumField() {
		into, of := to.Field(i), from.Field(i)
		switch {
		case into.Kind() == reflect.Map && !of.IsNil():
			both := maps.Clone(of.Interface().(Map))
			maps.Copy(both, into.Interface().(Map))
			into.Set(reflect.ValueOf(both))
		case into.IsZero():
			into.Set(of)
		}
	}
}

// Address is the address of a backend: the one that was given, or that of the cluster of this host.
func (c Cluster) Address(given string) string { return cmp.Or(given, c.Connect.V) }
