// Package guest is process 1 of a virtual machine that a controller made for one sandbox.
//
// The kernel starts it from the initramfs, which has this program, modules of the kernel and
// a description of the machine with its keys. [Run] makes what a machine has, enters the root
// disk if there is one, serves the controller, and switches the machine off.
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/supervisor/place"
)

// machine is the machine of this process.
type machine struct {
	wire.Machine
	build   string
	console io.Writer
	begun   time.Duration // since the kernel started
}

// Run makes the machine and serves its controller until the sandbox has ended, or the lease
// has. It does not return: the machine ends with it.
func Run(ctx context.Context, build string) {
	m := &machine{build: build, console: os.Stderr, begun: uptime()}
	err := m.run(ctx)
	if err != nil {
		m.say("%s", err)
	}
	off(m.Off)
}

// say writes a line to the console, which the controller reads.
func (m *machine) say(format string, args ...any) {
	fmt.Fprintf(m.console, "agentsh: machine: "+format+"\n", args...)
}

// uptime is the time since the start of the kernel. See clock_gettime(2), CLOCK_BOOTTIME.
func uptime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

func milli(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// Directories of process 1, on its own file system below /run.
const (
	ownDir     = "/run/agentsh"
	configFile = ownDir + "/config.yaml"
	program    = ownDir + "/agentsh" // this program, of the initramfs
)

func (m *machine) run(ctx context.Context) error {
	if os.Getpid() != 1 {
		return errors.New("this is not process 1 of a machine")
	}
	unix.Umask(0o022)
	os.Clearenv() // the kernel's command line puts variables in
	if err := early(); err != nil {
		return err
	}
	if err := m.describe(); err != nil {
		return fmt.Errorf("description of the machine: %w", err)
	}
	loaded, err := loadModules(layout.MachineModules)
	if err != nil {
		return err
	}
	self, err := os.Open(layout.MachineProgram)
	if err != nil {
		return err
	}
	defer self.Close()
	if err := m.enterRoot(); err != nil {
		return err
	}
	if err := showProgram(self); err != nil {
		return err
	}
	if err := late(); err != nil {
		return err
	}
	if err := m.settings(); err != nil {
		return err
	}
	made := uptime()
	l, err := m.listen(ctx)
	if err != nil {
		return err
	}
	// The controller waits for this line.
	m.say("listening at %s: kernel %s, %d modules %s, root %s", milli(uptime()), milli(m.begun), loaded.number, milli(loaded.took),
		milli(made-m.begun-loaded.took))
	return m.serve(ctx, l)
}

// describe reads the description of the machine, and removes it.
func (m *machine) describe() error {
	f, err := os.Open(layout.MachineFile)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(f, wire.MaxMachine))
	err = errors.Join(err, f.Close(), os.Remove(layout.MachineFile))
	if err == nil {
		err = json.Unmarshal(data, &m.Machine)
	}
	clear(data)
	switch {
	case err != nil:
		return err
	case m.Version.Major != wire.Current.Major:
		return fmt.Errorf("version %d: this build speaks %d", m.Version.Major, wire.Current.Major)
	case m.LeaseSeconds <= 0:
		return errors.New("no lease")
	}
	return nil
}

// listen listens for streams of the controller.
func (m *machine) listen(ctx context.Context) (*socket.Listener, error) {
	key, err := socket.NewKey(m.Key)
	clear(m.Key)
	if err != nil {
		return nil, err
	}
	return socket.Listen(ctx, m.Listen, key)
}

// serve serves the controller until the sandbox has ended.
func (m *machine) serve(ctx context.Context, l *socket.Listener) error {
	path, err := layout.FindState(os.Getenv, os.Geteuid())
	if err != nil {
		return err
	}
	o := place.Options{Build: m.build, Messages: m.console, Program: program}
	if o.State, err = statedir.Open(path); err != nil {
		return err
	}
	if len(m.Config) > 0 {
		if err := os.WriteFile(configFile, m.Config, 0o644); err != nil {
			return err
		}
		o.Config = configFile
	}
	return place.ServeMachine(ctx, l, o, time.Duration(m.LeaseSeconds)*time.Second)
}

// off ends the machine. All processes end with it.
func off(how string) {
	unix.Sync()
	command := unix.LINUX_REBOOT_CMD_POWER_OFF
	if how == wire.OffReset {
		command = unix.LINUX_REBOOT_CMD_RESTART
	}
	_ = unix.Reboot(command) // without an error it does not return
	os.Exit(1)               // the kernel panics, which ends the machine, too
}
