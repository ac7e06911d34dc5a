package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox/host"
)

// scriptTimeout bounds one script of the operator.
const scriptTimeout = 30 * time.Minute

// script runs one of the operator's scripts in the target repository, with the
// host's environment, env.runner and what tells it about the run. Its output
// is shown line by line; the last of it is in the result too.
func (r *run) script(ctx context.Context, script harness.Text, more []string) (host.Result, error) {
	env := mergeEnv(r.o.Environ, r.runnerVars(), r.runVars(), more)
	stdout, stderr := r.scriptLines("stdout"), r.scriptLines("stderr")
	res, err := host.Run(ctx, host.Command{
		Argv: []string{r.harness.Path(script)}, Dir: r.target.Dir, Env: env, Timeout: scriptTimeout,
		Stdout: stdout, Stderr: stderr,
	})
	stdout.Flush()
	stderr.Flush()
	return res, err
}

func (r *run) scriptLines(stream string) *runtime.Lines {
	return runtime.NewLines(func(line string) { r.tell(Update{Kind: UpdateOutput, Stream: stream, Text: line}) })
}

// runnerVars is env.runner.
func (r *run) runnerVars() []string {
	var out []string
	for name, v := range r.x.Runner {
		out = append(out, name+"="+v.V)
	}
	sort.Strings(out)
	return out
}

// runVars tell a script about the run, also under the names that scripts of
// older runners read.
func (r *run) runVars() []string {
	var out []string
	for _, v := range [][2]string{
		{"RUN_ID", r.result.RunID}, {"OUTPUT_DIR", filepath.Join(r.results.dir(), outputName)},
	} {
		out = append(out, "AGENTSH_"+v[0]+"="+v[1], "FULLSEND_"+v[0]+"="+v[1])
	}
	out = append(out, "TARGET_REPO_DIR="+r.target.Dir)
	if r.invoke.Trace != "" {
		out = append(out, "TRACEPARENT="+r.invoke.Trace)
	}
	return out
}

// mergeEnv joins environments; a later one wins. The result is sorted.
func mergeEnv(envs ...[]string) []string {
	vars := map[string]string{}
	for _, env := range envs {
		for _, v := range env {
			if name, value, ok := strings.Cut(v, "="); ok && name != "" {
				vars[name] = value
			}
		}
	}
	out := make([]string, 0, len(vars))
	for name, value := range vars {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}

// lookupIn looks names up in an environment.
func lookupIn(env []string) harness.Lookup {
	vars := map[string]string{}
	for _, v := range env {
		if name, value, ok := strings.Cut(v, "="); ok {
			vars[name] = value
		}
	}
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// See the Trace Context recommendation of the W3C, section 3.2.
var traceRE = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceparent continues the trace of the caller, or begins one.
func traceparent(lookup harness.Lookup) string {
	if v, ok := lookup("TRACEPARENT"); ok && traceRE.MatchString(v) {
		return v
	}
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	id := hex.EncodeToString(b[:])
	return "00-" + id[:32] + "-" + id[32:] + "-01"
}
