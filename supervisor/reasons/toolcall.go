package reasons

import (
	"sync"
	"time"

	"agentsh/seccomp/target"
)

// toolCalls finds and remembers which tool calls processes belong to. The zero value is
// ready. It is safe for concurrent use.
//
// What is remembered decides only which process's output a refusal goes to. If a process
// changes its standard error, its next refusals may go to the former tool call for at
// most a window.
type toolCalls struct {
	mu    sync.Mutex
	known map[target.Process]membership
}

// membership is what is known about one process.
type membership struct {
	tool  target.Process
	apart bool // the tool call's standard error is another file than the command's own
	since time.Time
}

// of returns the process whose standard error is that of the tool call that p belongs
// to. ok is false for the first process of the command: it is the agent program itself.
func (k *toolCalls) of(a agent, p target.Process) (tool target.Process, ok bool) {
	if p.PID == a.PID {
		return target.Process{}, false
	}
	now := time.Now()
	chain, at := k.ancestors(a, p, now)
	if at.apart {
		k.add(chain, at)
		return at.tool, true
	}
	own, _ := stderrFile(a.PID)
	for i := len(chain) - 1; i >= 0; i-- {
		f, writable := stderrFile(chain[i].PID)
		if writable && f != own {
			at = membership{chain[i], true, now}
			k.add(chain[:i+1], at)
			return at.tool, true
		}
		if writable && at.tool.PID == 0 {
			at = membership{chain[i], false, now}
		}
	}
	if at.tool.PID == 0 {
		at = membership{p, false, now}
	}
	k.add(chain, at)
	return at.tool, true
}

// ancestors returns a process and those of its ancestors that belong to the command and
// are not known, the process first. at is what is known about the next one.
func (k *toolCalls) ancestors(a agent, p target.Process, now time.Time) (chain []target.Process, at membership) {
	for range maxChain {
		id, err := target.Identify(p.PID)
		if err != nil || len(chain) == 0 && id.Start != p.Start {
			break
		}
		if id.Process == a.Process || id.PID == a.parent {
			break
		}
		if m := k.get(id.Process); m.tool.PID != 0 && now.Sub(m.since) <= window {
			return chain, m
		}
		chain = append(chain, id.Process)
		if id.Parent <= 1 || id.Parent == a.parent || id.Parent == a.PID {
			break
		}
		p = target.Process{PID: id.Parent}
	}
	return chain, membership{}
}

// get returns what is known about a process.
func (k *toolCalls) get(p target.Process) membership {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[p]
}

// add remembers what is known about processes.
func (k *toolCalls) add(processes []target.Process, m membership) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range processes {
		if k.known == nil || len(k.known) >= maxCalls {
			k.known = map[target.Process]membership{}
		}
		k.known[p] = m
	}
}

// forget forgets the processes of a tool call that has ended.
func (k *toolCalls) forget(tool target.Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p, m := range k.known {
		if m.tool == tool {
			delete(k.known, p)
		}
	}
}

// clear forgets all.
func (k *toolCalls) clear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = nil
}
