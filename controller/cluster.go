package controller

import (
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/sandbox"
)

// cluster is what the harness says of the pod of a sandbox.
func cluster(k harness.Kubernetes) sandbox.Cluster {
	seconds := func(v harness.Value[int]) time.Duration { return time.Duration(v.V) * time.Second }
	out := sandbox.Cluster{
		Program:     sandbox.ProgramImage{Image: k.AgentshImage.V, PullPolicy: k.PullPolicy.V},
		PullSecrets: words(k.PullSecrets),
		Account:     k.ServiceAccount.V,
		Place: sandbox.Scheduling{
			RuntimeClass: k.RuntimeClass.V, PriorityClass: k.PriorityClass.V, NodeSelector: values(k.NodeSelector),
		},
		Requests:   sandbox.Resources{MemoryMB: int64(k.RequestMemory.V), CPUs: k.RequestCPUs.V},
		FUSEDevice: k.FUSEDevice.V, Seccomp: k.Seccomp.V, AppArmor: k.AppArmor.V,
		Shared: !k.UserNamespace.Or(true), Open: !k.NetworkPolicy.Or(true), DNS: k.DNSNamespace.V,
		Labels: values(k.Labels), Annotations: values(k.Annotations),
		Managed: sandbox.Managed{Sandbox: k.AgentSandbox.V, WarmPool: k.WarmPool.V},
		Times:   sandbox.ClusterTimes{Start: seconds(k.StartSeconds), Most: seconds(k.MaxSeconds)},
	}
	for _, t := range k.Tolerations {
		out.Place.Tolerations = append(out.Place.Tolerations, sandbox.Toleration{
			Key: t.Key.V, Operator: t.Operator.V, Value: t.Value.V, Effect: t.Effect.V, Seconds: int64(t.Seconds.V),
		})
	}
	return out
}

func words(list harness.Texts) []string {
	var out []string
	for _, w := range list {
		out = append(out, w.V)
	}
	return out
}

func values(m harness.Map) map[string]string {
	out := make(map[string]string, len(m))
	for name, v := range m {
		out[name] = v.V
	}
	return out
}
