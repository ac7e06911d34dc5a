package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostConfig is the configuration of agentctl on a host of the cluster, after where that is.
const hostConfig = `
  agentsh_image: localhost/agentsh:1
  service_account: agentsh-sandbox
  start_seconds: 60
  fuse_device: ` + fuseResource + "\n"

// batchFiles are a batch of n runs, each of which commits a file with its number after some seconds.
func batchFiles(n, caps, seconds int, repo string) map[string]string {
	var numbers []string
	for i := range n {
		numbers = append(numbers, fmt.Sprint(i))
	}
	return map[string]string{
		"agent.md":    "# numbering\n",
		"policy.yaml": "version: 1\nname: numbering\nextends: [" + os.Getenv("CLUSTER_ROOT") + "/examples/policies/demo.yaml]\n",
		"harness.yaml": fmt.Sprintf(`agent: agent.md
role: numbering
runtime: command
command: [sh, -c, 'sleep %d; echo "$N" > n.txt; git add n.txt; git -c user.name=n -c user.email=n@example.com commit -q -m "$N"']
policy: policy.yaml
timeout_minutes: 20
image: localhost/bare:1
backend: kubernetes
container: {mounts: [{source: usr, target: /usr}, {source: alternatives, target: /etc/alternatives}]}
env: {sandbox: {N: "${N}"}}
security: {enabled: false}
`, seconds),
		"batch.yaml": fmt.Sprintf("name: numbers\ncaps: {runs: %d}\nretries: {attempts: 20, delay: 2s, max_delay: 10s}\n"+
			"matrix: {harness: harness.yaml, repo: %s, vars: {N: [%s]}}\n", caps, repo, strings.Join(numbers, ", ")),
	}
}

// layOut writes files below a directory, which everybody may read.
func layOut(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// command runs a program and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a repository with one commit.
func repository(t *testing.T, dir string) {
	t.Helper()
	command(t, "git", "init", "-q", "-b", "main", dir)
	command(t, "git", "-C", dir, "-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "-q", "--allow-empty", "-m", "first")
}

// inRepository runs git in a repository, which another user may own.
func inRepository(t *testing.T, repo string, args ...string) string {
	t.Helper()
	return command(t, "git", append([]string{"-c", "safe.directory=*", "-C", repo}, args...)...)
}

// branches are the branches that runs made in a repository.
func branches(t *testing.T, repo string) []string {
	t.Helper()
	return strings.Fields(inRepository(t, repo, "for-each-ref", "--format=%(refname)", "refs/heads/agentctl/"))
}

// number is what a run has committed to a branch.
func number(t *testing.T, repo, branch string) string {
	t.Helper()
	return inRepository(t, repo, "show", branch+":n.txt")
}

// batchWithoutNode runs a batch of 20 from this host. The kubelet is killed in its middle, until
// runs have lost their node.
func (c real) batchWithoutNode(t *testing.T) {
	const n = 20
	dir := t.TempDir()
	layOut(t, dir, batchFiles(n, 4, 3, "repo"))
	layOut(t, dir, map[string]string{"config/agentsh/agentctl.yaml": "kubernetes:\n  connect: context:runner" + hostConfig})
	repository(t, dir+"/repo")
	agentctl := func(args ...string) *exec.Cmd {
		cmd := exec.Command(os.Getenv("CLUSTER_AGENTCTL"), args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME="+dir+"/state", "XDG_CONFIG_HOME="+dir+"/config")
		return cmd
	}
	var said bytes.Buffer
	run := agentctl("batch", "--lease", "20s", "batch.yaml")
	run.Stdout, run.Stderr = &said, &said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	working := func() bool { // a run has a sandbox that it can lose
		return c.kubectl("", "-n", "agentsh", "get", "pods", "--field-selector=status.phase=Running", "-o", "name") != ""
	}
	for look := time.Tick(200 * time.Millisecond); len(branches(t, dir+"/repo")) < n/4 || !working(); {
		<-look
	}
	c.part("kubelet", "stop")
	type view struct {
		Runs []struct {
			Name               string
			Attempts, Troubles int
			End                struct{ Status, Message, Branch string }
		}
	}
	looked := func() (v view, troubles int) {
		out, err := agentctl("batch", "show", "latest", "--json").Output()
		if err == nil {
			err = json.Unmarshal(out, &v)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, one := range v.Runs {
			troubles += one.Troubles
		}
		return v, troubles
	}
	lost := 0
	for look := time.Tick(time.Second); lost == 0; _, lost = looked() {
		<-look
	}
	c.startKubelet()
	if err := run.Wait(); err != nil {
		t.Errorf("%v\n%s", err, said.String())
	}
	v, troubles := looked()
	all := branches(t, dir+"/repo")
	for i, one := range v.Runs {
		t.Logf("%s: %d attempts: %s %s", one.Name, one.Attempts, one.End.Status, one.End.Message)
		if one.End.Status != "done" || !slices.Contains(all, "refs/heads/"+one.End.Branch) ||
			number(t, dir+"/repo", one.End.Branch) != fmt.Sprint(i) {
			t.Errorf("%s: %+v", one.Name, one.End)
		}
	}
	// An attempt that lost its node late may have left what it had on a branch of its own.
	if troubles == 0 || len(v.Runs) != n || len(all) < n || len(all) > n+troubles {
		t.Errorf("%d runs, %d troubles, %d branches", len(v.Runs), troubles, len(all))
	}
	c.empty()
}

// batchJob runs a batch as a Job. Its agentctl is killed, and the next pod goes on.
func (c real) batchJob(t *testing.T) {
	const n = 4
	work := os.Getenv("CLUSTER") + "/work"
	repository(t, work+"/seed")
	command(t, "chown", "-R", "1000:1000", work)
	overlay := os.Getenv("CLUSTER") + "/batch"
	files := batchFiles(n, 2, 5, "/work/repo")
	files["agentctl.yaml"] = "kubernetes:\n  connect: 'in-cluster:'" + hostConfig
	demo, err := os.ReadFile(os.Getenv("CLUSTER_ROOT") + "/examples/policies/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files["policy.yaml"] = string(demo)
	base, err := filepath.Rel(overlay, os.Getenv("CLUSTER_ROOT")+"/packaging/kubernetes/batch")
	if err != nil {
		t.Fatal(err)
	}
	files["kustomization.yaml"] = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: agentsh
resources: [` + base + `, place.yaml]
images: [{name: registry.example.com/agentctl, newName: localhost/agentctl}]
configMapGenerator:
  - name: agents
    files: [batch.yaml, harness.yaml, policy.yaml, agent.md, agentctl.yaml]
    literals: [repository=/work/seed]
    options: {disableNameSuffixHash: true}
`
	files["place.yaml"] = `apiVersion: v1
kind: PersistentVolume
metadata: {name: agents}
spec:
  {capacity: {storage: 20Gi}, accessModes: [ReadWriteOnce], hostPath: {path: ` + work + `}, claimRef: {namespace: agentsh, name: agents}}
`
	layOut(t, overlay, files)
	c.kubectl("", "apply", "-k", overlay)
	defer func() {
		t.Logf("%s", c.kubectl("", "-n", "agentsh", "get", "job,pods", "-o", "wide"))
		c.kubectl("", "delete", "-k", overlay, "--wait=false")
		c.empty()
	}()
	began := time.Now()
	for look := time.Tick(200 * time.Millisecond); ; {
		<-look
		if _, err := os.Stat(work + "/repo"); err == nil && len(branches(t, work+"/repo")) > 0 {
			break
		}
		if time.Since(began) > 3*time.Minute {
			t.Fatal(c.kubectl("", "-n", "agentsh", "describe", "job,pods", "-l", "job-name=agents"))
		}
	}
	command(t, "pkill", "-KILL", "-x", "-f", "/usr/bin/agentctl batch --once .*") // in the namespace of the cluster alone
	c.kubectl("", "-n", "agentsh", "wait", "--for=condition=Complete", "job/agents", "--timeout=300s")
	var got []string
	for _, name := range branches(t, work+"/repo") {
		got = append(got, number(t, work+"/repo", name))
	}
	if slices.Sort(got); strings.Join(got, " ") != "0 1 2 3" {
		t.Errorf("numbers %s", got)
	}
	results, err := filepath.Glob(work + "/out/*/result.json")
	if err != nil || len(results) != n {
		t.Errorf("results %v, %v", results, err)
	}
	if pods := c.kubectl("", "-n", "agentsh", "get", "pods", "-l", "job-name=agents", "-o", "name"); strings.Count(pods, "\n") < 2 {
		t.Errorf("the Job had one pod:\n%s", pods)
	}
}
