package kubernetes

import (
	"cmp"
	"net/netip"

	core "k8s.io/api/core/v1"
	net "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"agentsh/controller/sandbox"
	"agentsh/policy"
)

// defaultDNS is the namespace of the name servers of most clusters.
const defaultDNS = "kube-system"

// nodeDNS is the address of the name server that NodeLocal DNSCache has on each node.
const nodeDNS = "169.254.20.10/32"

// nameMetadata is the label that the API server gives to each namespace.
const nameMetadata = "kubernetes.io/metadata.name"

// networkPolicy closes the network of a pod, but for the ways out of the sandbox's policy.
// Rules about names, paths and programs are the supervisor's.
func networkPolicy(name string, labels map[string]string, selects map[string]string, c sandbox.Container) *net.NetworkPolicy {
	out := &net.NetworkPolicy{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}
	out.Spec.PodSelector.MatchLabels = selects
	out.Spec.PolicyTypes = []net.PolicyType{net.PolicyTypeIngress, net.PolicyTypeEgress}
	if c.Network == "none" {
		return out
	}
	if c.Ways.Names {
		out.Spec.Egress = append(out.Spec.Egress, nameServers(c.Cluster.DNS))
	}
	for _, w := range c.Ways.To {
		out.Spec.Egress = append(out.Spec.Egress, net.NetworkPolicyEgressRule{Ports: ports(w.Ports), To: peers(w)})
	}
	return out
}

// nameServers lets the pod ask the name servers of the cluster.
func nameServers(namespace string) net.NetworkPolicyEgressRule {
	var on []net.NetworkPolicyPort
	for _, port := range []int32{53, 5353} { // OpenShift's pods listen at the second
		for _, protocol := range []core.Protocol{core.ProtocolUDP, core.ProtocolTCP} {
			at := intstr.FromInt32(port)
			on = append(on, net.NetworkPolicyPort{Protocol: &protocol, Port: &at})
		}
	}
	return net.NetworkPolicyEgressRule{Ports: on, To: []net.NetworkPolicyPeer{
		{NamespaceSelector: &meta.LabelSelector{MatchLabels: map[string]string{nameMetadata: cmp.Or(namespace, defaultDNS)}}},
		{IPBlock: &net.IPBlock{CIDR: nodeDNS}},
	}}
}

// ports are the TCP ports of a way. A session has no other protocol.
func ports(ranges []policy.PortRange) []net.NetworkPolicyPort {
	tcp := core.ProtocolTCP
	if len(ranges) == 0 {
		return []net.NetworkPolicyPort{{Protocol: &tcp}}
	}
	var out []net.NetworkPolicyPort
	for _, r := range ranges {
		low, high := intstr.FromInt32(int32(r.Low)), int32(r.High)
		p := net.NetworkPolicyPort{Protocol: &tcp, Port: &low}
		if r.High > r.Low {
			p.EndPort = &high
		}
		out = append(out, p)
	}
	return out
}

// peers are the addresses of a way.
func peers(w policy.Way) []net.NetworkPolicyPeer {
	if w.Network.IsValid() {
		return []net.NetworkPolicyPeer{{IPBlock: &net.IPBlock{CIDR: w.Network.Masked().String()}}}
	}
	out := []net.NetworkPolicyPeer{{IPBlock: &net.IPBlock{CIDR: "0.0.0.0/0"}}, {IPBlock: &net.IPBlock{CIDR: "::/0"}}}
	if w.Guarded {
		return out
	}
	for _, n := range policy.GuardedNetworks() {
		at := out[0].IPBlock
		if n.Addr().Is6() {
			at = out[1].IPBlock
		}
		if !covered(at.Except, n) {
			at.Except = append(at.Except, n.String())
		}
	}
	return out
}

// covered reports whether one of networks contains n.
func covered(networks []string, n netip.Prefix) bool {
	for _, text := range networks {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() <= n.Bits() && p.Contains(n.Addr()) {
			return true
		}
	}
	return false
}
