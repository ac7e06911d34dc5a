package harness

import (
	"strconv"

	"agentsh/policy/env"
)

// room counts the bytes of the variables of one process against the limits of
// the kernel. See execve(2), MAX_ARG_STRLEN and ARG_MAX.
type room struct {
	ps    *Problems
	where string // what the variables belong to
	total int
	vars  int
	most  Text // name of the largest
	size  int  // of the largest
}

// add counts a variable. A variable that no process can get is an error at its
// position.
func (r *room) add(name string, v Text) {
	size := len(name) + 1 + len(v.V)
	if size > env.MaxVar {
		r.ps.errorf(v.At, RuleSize, "%s: %s is %d bytes with its name, the kernel passes at most %d to a process",
			r.where, oneLine(name), size, env.MaxVar)
		r.ps.hint("deliver it as a file: host_files")
	}
	r.total += size
	r.vars++
	if size > r.size {
		r.size, r.most = size, Text{name, v.At}
	}
}

// end reports variables that do not fit into one process together.
func (r *room) end() {
	if r.total > env.MaxTotal {
		r.ps.errorf(r.most.At, RuleSize, "%s: %d variables are %d bytes, a process gets at most %d; the largest is %s with %d",
			r.where, r.vars, r.total, env.MaxTotal, oneLine(r.most.V), r.size)
		r.ps.hint("deliver the largest as files: host_files")
	}
}

// checkSizes reports variables and arguments that are too large for a process.
// The text of a reference is not known before the run: it counts as empty.
func (h *Harness) checkSizes(ps *Problems) {
	sizes(ps, known(h.Env.Runner), known(h.Env.Sandbox), h.envFiles)
	args := room{ps: ps, where: "command"}
	for i, arg := range h.Command {
		args.add("argument "+strconv.Itoa(i), arg)
	}
	args.end()
}

// sizes reports variables that are too large, of the scripts and of the agent.
func sizes(ps *Problems, runner, sandbox, files Map) {
	scripts := room{ps: ps, where: "env.runner"}
	for _, name := range sortedKeys(runner) {
		scripts.add(name, runner[name])
	}
	scripts.end()
	agent := room{ps: ps, where: "env.sandbox"}
	for _, name := range sortedKeys(sandbox) {
		agent.add(name, sandbox[name])
	}
	agent.where = "host_files"
	for _, name := range sortedKeys(files) {
		if _, replaced := sandbox[name]; !replaced {
			agent.add(name, files[name])
		}
	}
	agent.where = "the agent"
	agent.end()
}

// known are the texts without their references.
func known(m Map) Map {
	return newExpander(func(string) (string, bool) { return "", true }).texts(m)
}
