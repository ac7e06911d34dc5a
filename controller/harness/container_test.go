package harness

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestWhatABackendCannotGiveIsNamed(t *testing.T) {
	text := `agent: agents/a.md
role: r
policy: policies/p.yaml
image: x:1
container:
  user: node
  pids: 100
  network: mine
  mounts: [{source: /usr, target: /usr}]
kubernetes:
  node_selector: {a: b}
  tolerations: [{key: k}]
`
	files := tests{"harness/h.yaml": text, "agents/a.md": "x", "policies/p.yaml": "version: 1\nname: p\n"}
	h, ps := Load(lay(t, files)+"/harness/h.yaml", Options{})
	if h == nil {
		t.Fatal(ps)
	}
	for backend, want := range map[string]string{
		"local": "6 container.user, 7 container.pids, 8 container.network, 9 container.mounts.source, 9 container.mounts.target, " +
			"11 kubernetes.node_selector, 12 kubernetes.tolerations.key",
		"podman":     "11 kubernetes.node_selector, 12 kubernetes.tolerations.key",
		"kubernetes": "6 container.user, 7 container.pids, 8 container.network, 9 container.mounts",
	} {
		var got []string
		for _, p := range h.NotOf(backend, Error) {
			key, _, _ := strings.Cut(p.Message, ":")
			got = append(got, strings.TrimSpace(strings.Join([]string{strconv.Itoa(p.At.Line), key}, " ")))
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("%s: %s, want %s", backend, all, want)
		}
	}
	files["harness/h.yaml"] = "agent: agents/a.md\nrole: r\npolicy: policies/p.yaml\nkubernetes:\n  color: blue\n"
	if _, ps := Load(lay(t, files)+"/harness/h.yaml", Options{}); !ps.HasErrors() ||
		!strings.Contains(ps[0].At.String()+ps[0].Message, ":5:3") {
		t.Errorf("an unknown key: %v", ps)
	}
}

func TestAnImageHasAMeaningForEachBackendThatMakesPlacesOfImages(t *testing.T) {
	for _, backend := range slices.Concat(engines, clusters, machines, services, gateways) {
		if _, ps := one(t, "image: x:1\nbackend: "+backend+"\n"); len(ps) > 0 {
			t.Errorf("%s: %v", backend, ps)
		}
	}
}
