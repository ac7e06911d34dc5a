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

func TestWhatOpenShellDoesNotTakeOfProvidersIsNamed(t *testing.T) {
	files := tests{
		"harness/h.yaml": "agent: agents/a.md\nrole: r\npolicy: policies/p.yaml\nproviders: [one, two]\n",
		"agents/a.md":    "x", "policies/p.yaml": "version: 1\nname: p\n",
		"providers/one.yaml": "name: one\ntype: rest\ncredentials: [ONE]\nendpoints: [api.example.com]\nheader: Authorization\n" +
			"config: {region: eu}\n",
		"providers/two.yaml": "name: two\ntype: rest\ncredentials: {TWO: command}\ncommand: [vault]\nlifetime_seconds: 60\n" +
			"endpoints: [other.example.com, 'API.example.com:443']\nheader: Authorization\n",
	}
	h, ps := Load(lay(t, files)+"/harness/h.yaml", Options{})
	if h == nil || ps.HasErrors() {
		t.Fatal(ps)
	}
	var got []string
	for _, p := range h.NotOf("openshell", Error) {
		message, _, _ := strings.Cut(p.Message, ":")
		got = append(got, p.At.File[strings.LastIndex(p.At.File, "/")+1:]+":"+strconv.Itoa(p.At.Line)+" "+message)
		if p.Severity != Warning || p.Hint == "" {
			t.Errorf("%+v", p)
		}
	}
	want := []string{
		"two.yaml:5 lifetime_seconds of the provider two", "one.yaml:6 config.region of the provider one",
		"two.yaml:6 endpoints of the provider two",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if ps := h.NotOf("local", Error); len(ps) > 0 {
		t.Errorf("the local backend: %v", ps)
	}
	// A list of bare names has the variables of the same names.
	if c := h.Definitions["one"].Credentials["ONE"]; c.V != "${ONE}" || c.At.Line != 3 {
		t.Errorf("%+v", c)
	}
	for list, want := range map[string]string{"[ONE, ONE]": "credentials[1]: ONE is written twice", "[one two]": "credentials[0]"} {
		files["providers/one.yaml"] = "name: one\ntype: rest\nendpoints: [api.example.com]\nheader: Authorization\ncredentials: " + list + "\n"
		if _, ps := Load(lay(t, files)+"/harness/h.yaml", Options{}); !slices.ContainsFunc(ps, func(p Problem) bool {
			return p.Severity == Error && p.At.Line == 5 && strings.Contains(p.Message, want)
		}) {
			t.Errorf("%s: %v", list, ps)
		}
	}
}

func TestAnImageHasAMeaningForEachBackendThatMakesPlacesOfImages(t *testing.T) {
	for _, backend := range slices.Concat(engines, clusters, machines, services, gateways) {
		if _, ps := one(t, "image: x:1\nbackend: "+backend+"\n"); len(ps) > 0 {
			t.Errorf("%s: %v", backend, ps)
		}
	}
}
