package blaxeldouble

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// freezer stops all processes of a machine, as standby does, and lets them go on.
type freezer struct {
	dir      string
	old      bool          // control groups of version 1
	idle     time.Duration // after which a machine without connections stands by
	users    int           // connections to it
	asleep   bool
	standbys int
	uses     int // how often a connection began: a timer knows whether one did since
}

// StandsBy has machines that are made from now on stand by when they have no connection for so long, and no process with keepAlive.
func (d *Double) StandsBy(idle time.Duration) { d.with(func() { d.idle = idle }) }

// State is the state of a sandbox as the control plane shows it, and how often it stood by.
func (d *Double) State(name string) (state string, standbys int) {
	var m *machine
	d.with(func() { m = d.machines[name] })
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.freezer.state(), m.freezer.standbys
}

// Suspend has a machine stand by although it has connections, as one that is moved: they end.
func (d *Double) Suspend(name string) error {
	var m *machine
	d.with(func() { m = d.machines[name] })
	m.mu.Lock()
	err := m.freezer.stop()
	m.mu.Unlock()
	d.Cut()
	return err
}

// newFreezer makes a control group for the processes of a machine.
func newFreezer(idle time.Duration) (*freezer, error) {
	f := &freezer{idle: idle}
	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(parent + "/freezer"); err == nil {
		parent, f.old = parent+"/freezer", true
	}
	var err error
	f.dir, err = os.MkdirTemp(parent, "blaxel-double-")
	return f, err
}

func (f *freezer) state() string {
	if f != nil && f.asleep {
		return "STANDBY"
	}
	return "RUNNING"
}

func (f *freezer) write(old, now, file string) error {
	value := now
	if f.old {
		file, value = "freezer.state", old
	}
	return os.WriteFile(filepath.Join(f.dir, file), []byte(value), 0)
}

func (f *freezer) stop() error {
	if f.asleep {
		return nil
	}
	f.asleep = true
	f.standbys++
	return f.write("FROZEN", "1", "cgroup.freeze")
}

func (f *freezer) goOn() error {
	if !f.asleep {
		return nil
	}
	f.asleep = false
	return f.write("THAWED", "0", "cgroup.freeze")
}

// remove removes the control group when all its processes have ended.
func (f *freezer) remove() error {
	for range 1000 {
		if err := os.Remove(f.dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		<-time.After(5 * time.Millisecond)
	}
	return fmt.Errorf("%s is still in use", f.dir)
}

// wrap is a command that enters the control group first.
func (f *freezer) wrap(argv []string) []string {
	if f == nil {
		return argv
	}
	return append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(f.dir, "cgroup.procs")}, argv...)
}

// use wakes a machine for a connection; the result is called when the connection ends.
func (m *machine) use() (done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.freezer
	if f == nil {
		return func() {}, nil
	}
	f.users++
	f.uses++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		f.users--
		m.rest()
	}, f.goOn()
}

// rest has the machine stand by after a time, unless something keeps it awake. m.mu is held.
func (m *machine) rest() {
	f := m.freezer
	if f == nil || f.users > 0 {
		return
	}
	uses := f.uses
	time.AfterFunc(f.idle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.ended || f.users > 0 || f.uses != uses {
			return
		}
		for _, p := range m.processes {
			if p.awake && !p.ended() {
				return // its end calls rest
			}
		}
		_ = f.stop() // the test sees the state
	})
}
