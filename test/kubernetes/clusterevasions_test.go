package kubernetes

import (
	"agentsh/internal/testenv"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// prober is a pod that has what a sandbox of root has: doc/platforms/kubernetes.md. It runs the corpus.
const prober = `
apiVersion: v1
kind: Pod
metadata: {name: evasions, namespace: agentsh-system}
spec:
  restartPolicy: Never
  hostUsers: false
  automountServiceAccountToken: false
  containers:
    - name: evasions
      image: localhost/bare:1
      command: [/bin/bash, /places/pod.sh]
      securityContext:
        runAsUser: 0
        procMount: Unmasked
        capabilities:
          drop: [ALL]
          add: [SYS_ADMIN, NET_ADMIN, SYS_PTRACE, NET_BIND_SERVICE, CHOWN, DAC_OVERRIDE, FOWNER, SETUID, SETGID, KILL, SYS_CHROOT, FSETID, SETPCAP]
        seccompProfile: {type: Localhost, localhostProfile: agentsh/seccomp-root.json}
      resources: {limits: {` + fuseResource + `: "1"}}
      volumeMounts:
        - {name: usr, mountPath: /usr, readOnly: true}
        - {name: alternatives, mountPath: /etc/alternatives, readOnly: true}
        - {name: places, mountPath: /places, readOnly: true}
  volumes:
    - {name: usr, hostPath: {path: /usr}}
    - {name: alternatives, hostPath: {path: /etc/alternatives}}
    - {name: places, hostPath: {path: PLACES}}
`

var totalOfProbes = regexp.MustCompile(`(?m)^(\d+) probes, (\d+) failed, (\d+) not held$`)

// evasions runs the corpus of bypasses in a pod.
func (c real) evasions(t *testing.T) {
	if _, err := os.Stat(testenv.Asked(t, "EVASIONS", "cluster EVASIONS=DIR") + "/MANIFEST.tsv"); err != nil {
		t.Fatalf("EVASIONS: the directory of the corpus of bypasses: %v", err)
	}
	places := os.Getenv("CLUSTER") + "/places"
	if out, err := exec.Command(os.Getenv("CLUSTER_ROOT")+"/test/cluster/evasions.sh", places).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.kubectl(strings.Replace(prober, "PLACES", places, 1), "apply", "-f", "-")
	defer c.kubectl("", "-n", "agentsh-system", "delete", "pod", "evasions")
	c.kubectl("", "-n", "agentsh-system", "wait", "--for=condition=Ready", "pod/evasions", "--timeout=120s")
	out := c.kubectl("", "-n", "agentsh-system", "logs", "-f", "evasions")
	t.Logf("%s", out)
	n := 0
	for _, total := range totalOfProbes.FindAllStringSubmatch(out, -1) {
		some, _ := strconv.Atoi(total[1])
		if n += some; total[2] != "0" {
			t.Errorf("%s", total[0])
		}
	}
	if n < 150 {
		t.Errorf("%d probes", n)
	}
}
