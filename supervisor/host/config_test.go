package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/probe"
)

func TestConfigIsReadStrictly(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{
			"every key",
			"version: 1\npolicy: /p.yaml\naudit: {path: /a}\nvars: {A: b}\nsandbox:\n  user: me\n  workspace: /w\n  env_inject: {BASH_ENV: /x}\n",
			nil,
		},
		{"an empty file", "", nil},
		{"any mechanism", "degraded: any\nrequire: [landlock]\n", nil},
		{"any in a list", "degraded: [any]\n", nil},
		{"a word that is no list", "degraded: landlock\n", []string{"c.yaml:1:11: degraded must be a list of names"}},
		{"how old what is seen may be", "sandbox: {cache_seconds: 2}\n", nil},
		{"no identity for git", "sandbox: {git_identity: false}\n", nil},
		{"an identity that is no truth value", "sandbox: {git_identity: day}\n", []string{`c.yaml:1:25: `}},
		{"a time that is too long", "sandbox: {cache_seconds: 601}\n", []string{`c.yaml:1:26: "601" is no number from 1 to 600`}},
		{"limits of the trash", "trash: {max_size_mb: 100, max_files: 1000}\n", nil},
		{"a trash without room", "trash: {max_size_mb: 0, max_files: many, age: 1}\n",
			[]string{`c.yaml:1:22: "0" is no number from 1 to`, `c.yaml:1:36: "many" is no number`, `c.yaml:1:42: trash has no key "age"`}},
		{"all problems are told at once", "nope: 1\nsandbox: {env_inject: [a], users: x}\n",
			[]string{
				`c.yaml:1:1: the configuration has no key "nope"`,
				"c.yaml:2:23: a map of texts must be a mapping",
				`c.yaml:2:28: sandbox has no key "users"`,
			}},
		{"a duplicate key", "policy: a\npolicy: b\n", []string{"twice"}},
		{"another version", "version: 2\n", []string{"c.yaml:1:10: version \"2\""}},
		{"a workspace that depends on where it is read", "sandbox: {workspace: here}\n", []string{`c.yaml:1:22: "here" is no absolute path`}},
		{"what must be proven", "require: [exec_verify, cgroup]\n", nil},
		{
			"an unknown requirement",
			"require: [exec_verfy]\n",
			[]string{`c.yaml:1:11: require has no requirement "exec_verfy" (did you mean "exec_verify"?)`},
		},
		{"a requirement that is no name", "require: [{a: b}, ~]\n", []string{"c.yaml:1:11: must be a text", "c.yaml:1:19: must be a text"}},
		{"requirements that are no list", "require: landlock\n", []string{"require must be a list of names"}},
		{"a container", "container: {policy: /p.yaml, degraded: [namespaces]}\n", nil},
		{"a policy of containers that is never used", "container: {policy: /p.yaml}\n", []string{`c.yaml:1:21: container.policy is for containers without namespaces: write degraded: [namespaces] beside it`}},
		{"an unknown mechanism of a container", "container: {degraded: [namespace]}\n", []string{`c.yaml:1:24: degraded has no mechanism "namespace"`}},
		{"a null is not a text", "policy: ~\n", []string{"must be a text"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseConfig("c.yaml", []byte(tt.text))
			if (err == nil) != (tt.want == nil) {
				t.Fatalf("error %v", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q does not say %q", err, w)
				}
			}
		})
	}
}

func TestMissingConfigIsOnlyFineWhenItWasNotAskedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	if c, err := ReadConfig(path, true); err != nil || c.User != "sandbox" {
		t.Errorf("optional: %+v, %v", c, err)
	}
	if _, err := ReadConfig(path, false); err == nil {
		t.Error("a configuration that was asked for and is missing was accepted")
	}
	if err := os.WriteFile(path, make([]byte, maxConfig+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(path, true); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a huge file gave %v", err)
	}
}

// TestAConfigurationThatNobodyNamedIsARegularFile has a pipe that nobody writes into, as an image can have it, and a device that
// never ends.
func TestAConfigurationThatNobodyNamedIsARegularFile(t *testing.T) {
	dir := t.TempDir()
	pipe, device := filepath.Join(dir, "pipe.yaml"), filepath.Join(dir, "device.yaml")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", device)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, device, dir} {
		if _, err := ReadConfig(name, true); err == nil || !strings.Contains(err.Error(), name+" is no regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadConfig(device, false); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a device that somebody named: %v", err)
	}
}

func TestMechanismsOfDegraded(t *testing.T) {
	c, err := parseConfig("c.yaml", []byte("version: 1\ndegraded: [cgroup, exec_verify]\n"))
	if err != nil || len(c.Degraded) != 2 || c.Degraded[1] != (probe.Setting{Name: "exec_verify", At: "c.yaml:2:20"}) {
		t.Errorf("%v %v", c.Degraded, err)
	}
	if _, err := parseConfig("c.yaml", []byte("degraded: [exec_verfy]\n")); err == nil ||
		!strings.Contains(err.Error(), `c.yaml:1:12: degraded has no mechanism "exec_verfy" (`) {
		t.Errorf("%v", err)
	}
}
