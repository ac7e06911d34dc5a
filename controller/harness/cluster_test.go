package harness

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"agentsh/internal/strictyaml"
)

// readCluster reads the cluster of a configuration.
func readCluster(t *testing.T, text string) (Cluster, Problems) {
	t.Helper()
	d := &strictyaml.Dialect{MaxBytes: 1 << 10, MaxDepth: 6, CoreTags: true}
	root := strictyaml.Parse("agentctl.yaml", []byte(text), d, func(p strictyaml.Problem) { t.Error(p) })
	return ReadCluster("agentctl.yaml", strictyaml.Value(root, "kubernetes"))
}

const hostCluster = `kubernetes:
  connect: context:prod/agents
  agentsh_image: a:1
  service_account: sandbox
  user_namespace: false
  node_selector: {pool: agents, zone: a}
  tolerations: [{key: agents, operator: Exists}]
  labels: {team: host}
  requests: {memory_mb: 64}
  start_seconds: 60
  apparmor: ~
`

func TestAHarnessWinsOverTheClusterOfItsHost(t *testing.T) {
	c, ps := readCluster(t, hostCluster)
	if len(ps) > 0 || c.Address("") != "context:prod/agents" || c.Address("namespace:x") != "namespace:x" {
		t.Fatalf("%v: %+v", ps, c)
	}
	for _, tt := range []struct{ name, backend, kubernetes, want string }{
		{"all of a harness that says nothing", "kubernetes", "",
			"a:1 sandbox false pool=agents zone=a agents team=host 64 60"},
		{"the harness has precedence", "kubernetes", "{agentsh_image: b:2, user_namespace: true, node_selector: {zone: b}, tolerations: [{key: x}], requests: {memory_mb: 32}}",
			"b:2 sandbox true pool=agents zone=b x team=host 32 60"},
		{"the template of a warm pool decides the pod", "kubernetes", "{warm_pool: p}", "  - - -  team=host 0 60"},
		{"a backend without pods", "docker", "", "  - - -  - 0 0"},
	} {
		files := tests{"harness/h.yaml": "agent: agents/a.md\nrole: r\npolicy: policies/p.yaml\nkubernetes: " + tt.kubernetes + "\n",
			"agents/a.md": "x", "policies/p.yaml": "version: 1\nname: p\n"}
		h, ps := Load(lay(t, files)+"/harness/h.yaml", Options{})
		if h == nil {
			t.Fatal(ps)
		}
		h.Fill(tt.backend, c)
		k := h.Kubernetes
		words := []string{k.AgentshImage.V, k.ServiceAccount.V, "-", "-", "-", "", k.Labels["team"].V}
		if k.UserNamespace.IsSet() {
			words[2] = map[bool]string{true: "true", false: "false"}[k.UserNamespace.V]
		}
		if n := k.NodeSelector; n != nil {
			words[3], words[4] = "pool="+n["pool"].V, "zone="+n["zone"].V
		}
		if len(k.Tolerations) == 1 {
			words[5] = k.Tolerations[0].Key.V
		}
		if words[6] = "team=" + words[6]; words[6] == "team=" {
			words[6] = "-"
		}
		got := strings.Join(words, " ") + " " + strconv.Itoa(k.RequestMemory.V) + " " + strconv.Itoa(k.StartSeconds.V)
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if again, _ := readCluster(t, hostCluster); !reflect.DeepEqual(again, c) {
		t.Error("a harness has changed what the host says")
	}
}

func TestAClusterIsReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		"{colour: blue}":                  `agentctl.yaml:1:14: error: kubernetes has no key "colour"`,
		"{warm_pool: p}":                  `agentctl.yaml:1:14: error: kubernetes has no key "warm_pool"`,
		"{model: m}":                      `agentctl.yaml:1:14: error: kubernetes has no key "model"`,
		"{service_account: 'no account'}": "agentctl.yaml:1:31: error: ",
		"{start_seconds: soon}":           "agentctl.yaml:1:29: error: ",
		"[a]":                             "agentctl.yaml:1:13: error: kubernetes is a mapping",
	} {
		_, ps := readCluster(t, "kubernetes: "+text+"\n")
		if len(ps) != 1 || !strings.HasPrefix(ps[0].String(), want) || strings.Contains(ps[0].Message, "top level") {
			t.Errorf("%s: %v, want %s", text, ps, want)
		}
	}
}

func TestAnUnknownKeyNamesThoseThatThereAre(t *testing.T) {
	for text, want := range map[string]string{
		"{colour: blue}":              "one of: connect, agentsh_image, ",
		"{service_acount: a}":         `did you mean "service_account"?`,
		"{requests: {gpus: 1}}":       `did you mean "cpus"?`,
		"{requests: {disk: 1}}":       "one of: memory_mb, cpus",
		"{tolerations: [{taint: a}]}": "one of: key, operator, value, effect, seconds",
	} {
		_, ps := readCluster(t, "kubernetes: "+text+"\n")
		if len(ps) != 1 || !strings.HasPrefix(ps[0].Hint, want) {
			t.Errorf("%s: %v, want the hint %s", text, ps, want)
		}
	}
	files := tests{"harness/h.yaml": "agent: agents/a.md\nrole: r\npolicy: p.yaml\nsteer: {pace: 3}\n", "agents/a.md": "x", "p.yaml": "version: 1\nname: p\n"}
	_, ps := Load(lay(t, files)+"/harness/h.yaml", Options{})
	if want := "one of: enabled, max_steers, poll_interval_seconds"; len(ps) != 1 || ps[0].Hint != want {
		t.Errorf("%v, want the hint %s", ps, want)
	}
}
