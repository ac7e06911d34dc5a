package notify

import (
	"bufio"
	"os/exec"
	"testing"

	"agentsh/seccomp/target"
)

// sleeper is a process that lives until end is called, which waits for it.
func sleeper(t *testing.T) (p target.Process, end func()) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "echo up; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	id, err := target.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id.Process, func() {
		_ = in.Close()
		_ = cmd.Wait() // read fails at the end of its input
	}
}

func TestACachedParentIsKnownWhileItLives(t *testing.T) {
	k := parents{known: map[int]parent{}}
	defer k.drop()
	p, end := sleeper(t)
	if _, alive := k.alive(p.PID); alive {
		t.Error("a process that nobody saw is known")
	}
	k.add(p)
	if _, alive := k.alive(p.PID); alive {
		t.Error("a process that was seen once is held")
	}
	k.add(p)
	if got, alive := k.alive(p.PID); !alive || got != p {
		t.Errorf("alive tells %v %v, not %v", got, alive, p)
	}
	end()
	if _, alive := k.alive(p.PID); alive {
		t.Error("a process that ended is alive")
	}
}

func TestTheIDOfAnotherProcessIsNotCached(t *testing.T) {
	k := parents{known: map[int]parent{}}
	defer k.drop()
	p, end := sleeper(t)
	defer end()
	before := target.Process{PID: p.PID, Start: p.Start - 1} // had the number before
	k.add(before)
	k.add(before)
	if got, alive := k.alive(p.PID); alive {
		t.Errorf("%v is alive", got)
	}
	k.add(p)
	k.add(p)
	if got, alive := k.alive(p.PID); !alive || got != p {
		t.Errorf("alive tells %v %v, not %v", got, alive, p)
	}
}

func TestCachedParentsAreBounded(t *testing.T) {
	k := parents{known: map[int]parent{}}
	defer k.drop()
	p, end := sleeper(t)
	defer end()
	for i := range 10 * maxParentsKnown {
		k.add(p)
		k.add(p)
		k.add(target.Process{PID: 1<<22 + i, Start: 1})
	}
	if len(k.known) > maxParentsKnown {
		t.Errorf("%d parents are held", len(k.known))
	}
}
