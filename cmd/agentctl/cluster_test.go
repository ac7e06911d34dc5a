package main

import (
	"strings"
	"testing"

	"agentsh/controller"
)

// newClusterFixture is a fixture whose harness names a cluster, with a kubeconfig and a
// configuration of the host. Nothing answers at the address of the cluster.
func newClusterFixture(t *testing.T, more, config string) *fixture {
	t.Helper()
	p := newFixture(t, "true", "image: x:1\nbackend: kubernetes\n"+more)
	p.write("kube", `apiVersion: v1
kind: Config
current-context: here
clusters: [{name: here, cluster: {server: "https://127.0.0.1:9"}}]
contexts: [{name: here, context: {cluster: here, namespace: agents}}]
`, 0o600)
	p.write("config/agentsh/agentctl.yaml", config, 0o644)
	p.setenv = []string{"XDG_CONFIG_HOME=" + p.path("config"), "KUBECONFIG=" + p.path("kube")}
	return p
}

func TestAHostSaysWhereItsClusterIsAndWhatItsPodsHave(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ more, config, says string }{
		"a context that the kubeconfig lacks": {"", "kubernetes: {connect: 'context:none'}", `has no context "none"`},
		"connect of the harness wins":         {"connect: 'context:mine'", "kubernetes: {connect: 'context:none'}", `has no context "mine"`},
		"a key of pods is checked": {"", "kubernetes:\n  colour: blue\n", "config/agentsh/agentctl.yaml:2:3: " +
			`kubernetes has no key "colour"`},
		"what no cluster gives, by the host": {"kubernetes: {seccomp: Unconfined}", "kubernetes: {user_namespace: false}",
			"kubernetes.seccomp: Unconfined without a user namespace"},
		"what is said reaches the cluster": {"", "kubernetes: {connect: 'context:here', service_account: a}", "127.0.0.1:9"},
	} {
		p := newClusterFixture(t, tt.more, tt.config)
		out, errs, code := p.try("", p.runArgs()...)
		if code != controller.ExitConfiguration && code != controller.ExitSandbox || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d %s%s", name, code, out, errs)
		}
	}
}

func TestLintNamesWhatAClusterCannotGive(t *testing.T) {
	t.Parallel()
	p := newClusterFixture(t, "container: {pids: 100, network: mine, mounts: [{source: /usr, target: /usr}]}\n", "")
	out, _, code := p.try("", "lint", "harness.yaml")
	for _, want := range []string{"harness.yaml:10:19: error: container.pids: ", "harness.yaml:10:33: error: container.network: ",
		"harness.yaml:10:57: error: container.mounts: /usr"} {
		if !strings.Contains(out, want) || code != controller.ExitConfiguration {
			t.Errorf("%d: no %q in\n%s", code, want, out)
		}
	}
	if strings.Contains(out, "image has no meaning here") {
		t.Errorf("a pod has the image:\n%s", out)
	}
}
