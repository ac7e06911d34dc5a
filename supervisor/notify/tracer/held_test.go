package tracer

import (
	"testing"

	"agentsh/supervisor/notify/engine"
)

// inProcess is an execve of a process.
type inProcess struct {
	engine.Execution
	pid int
}

func (i inProcess) Process() int { return i.pid }
func (i inProcess) Done()        {}

// While another thread executes, the first one's number may become that one's: a request would
// reach it at its exec stop, where gVisor carries it out. The numbers are of no process.
func TestNothingIsRequestedOfAFirstThreadWhileAnotherExecutes(t *testing.T) {
	const leader, other = 1<<22 + 1, 1<<22 + 2
	for _, succeeds := range []bool{false, true} {
		e := New(Config{})
		th := &thread{engine: e, tasks: map[int]*task{}, execs: execs{tasks: map[int]*task{}}}
		first, second := &task{tid: leader, call: 7}, &task{tid: other}
		th.tasks[leader], th.tasks[other] = first, second
		th.execs.set(second, inProcess{pid: leader})
		th.post(reply{tid: leader, id: 7, answer: engine.Answer{Kind: engine.Continue}})
		th.carryOut()
		if first.call != 7 || first.held == nil {
			t.Fatal("an answer is carried out during an exec")
		}
		if succeeds {
			first.discardHeld() // as executed does
			first.call = 0
		}
		th.failedExec(second)
		th.carryOut()
		if first.call != 0 || first.held != nil || len(th.execs.holding) != 0 {
			t.Errorf("after the exec: %+v", first)
		}
	}
}
