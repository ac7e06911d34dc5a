package fileserver

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"agentsh/fuse"
	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/probe/trial"
)

// Capabilities are the capabilities that a file server needs from root. It
// needs the rights of any owner on the backing directories. The kernel requires
// SYS_ADMIN for FUSE passthrough, with which it reads and writes without the
// server, and LEASE to tell whether a file of another owner is mapped for writing.
const Capabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_LEASE | 1<<unix.CAP_SYS_ADMIN

// treeRights are all file rights except those for devices. The kernel needs the
// execute right: with passthrough it opens an executed file with the rights of
// the server. The server itself cannot execute programs.
const treeRights = launch.LandlockRead | launch.LandlockWrite | launch.LandlockExec

// confinement allows a file server its donated directories, and /proc, where it
// identifies the processes that make requests.
func confinement(donations []launch.Donation) (launch.Confinement, func(), error) {
	filter, err := seccomp.ServerProgram()
	if err != nil {
		return launch.Confinement{}, nil, err
	}
	proc, err := os.OpenFile("/proc", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return launch.Confinement{}, nil, err
	}
	c := launch.Confinement{Filter: filter, Capabilities: Capabilities, Trees: []launch.Tree{{File: proc, Access: launch.LandlockRead}}}
	for _, d := range donations {
		if d.Name != controlName && d.Name != fuse.DevicesName {
			c.Trees = append(c.Trees, launch.Tree{File: d.File, Access: treeRights})
		}
	}
	return c, func() { proc.Close() }, nil
}

// Serve is the main function of the file server's process. It serves the
// donated directories over the donated descriptors until the mounts are gone. reserved
// waits for what the process must have before a command runs.
func Serve(reserved func()) error {
	if err := proveConfinement(); err != nil {
		return err
	}
	files, err := launch.Donations()
	if err != nil {
		return err
	}
	control := files[controlName]
	if control == nil {
		return errors.New("no control socket")
	}
	delete(files, controlName)
	return fuse.Run(context.Background(), control, files, reserved)
}

// proveConfinement tries operations that a file server must not be able to do.
// It returns an error if one succeeds.
func proveConfinement() error {
	if !launch.Confined() {
		return errors.New("the file server is not confined")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	if err := trial.MustFail("a socket of the file server", err, unix.EPERM); err != nil {
		return err
	}
	if err := trial.MustFail("an execve of the file server", unix.Exec("", nil, nil), unix.EPERM); err != nil {
		return err
	}
	if launch.LandlockABI() == 0 {
		return nil
	}
	f, err := os.Open("/")
	if err == nil {
		f.Close()
	}
	return trial.MustFail("a look of the file server outside its trees", err, unix.EACCES)
}
