package project

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/internal/paths"
)

// Choice is the policy of a command line that names none.
type Choice struct {
	File string // empty: there is none
	// Read reads File and what it extends. It refuses a file that has changed since the
	// user trusted it.
	Read func(name string) ([]byte, error)
	Note string // a policy that was passed over, and what to do about it; may be empty
}

// Policy finds the policy for a workspace: of the project if the user trusts it, then
// of the user, then of the machine. operator is the policy that the configuration names.
// A policy that the user trusted and that has changed since, or is gone, is an error:
// commands may have done that.
func Policy(trust Trust, workspace, operator string) (Choice, error) {
	file := PolicyFile(workspace)
	record, trusted, err := trust.find(file)
	if err != nil {
		return Choice{}, err
	}
	if trusted {
		_, err := record.read(file)
		return Choice{File: file, Read: record.read}, err
	}
	c := Choice{Read: Read}
	if _, err := os.Lstat(file); err == nil {
		c.Note = fmt.Sprintf("%s is not trusted, so it is not used: read it, then run 'agentsh trust'", file)
	}
	name := userPolicy()
	if there, _ := usable(name); there && trust.HomeOpened() {
		return Choice{}, fmt.Errorf("%s: commands of an earlier session could write it, because this home was in their workspace: read it, "+
			"then name it with --policy, or remove it", name)
	}
	there, note := usable(name)
	if note != "" {
		c.Note = strings.TrimPrefix(c.Note+"\n"+note, "\n")
	}
	if there {
		c.File = name
		return c, nil
	}
	c.File = operator
	if _, err := os.Lstat(layout.MachinePolicy); err == nil && operator == "" {
		c.File = layout.MachinePolicy
	}
	return c, nil
}

// PolicyFile is the file of a project's policy.
func PolicyFile(workspace string) string { return filepath.Join(workspace, layout.ProjectPolicy) }

// UserConfig is the directory of the user's own policy; empty: there is none.
func UserConfig() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "agentsh")
	}
	if home := Home(); home != "" {
		return filepath.Join(home, userDir)
	}
	return ""
}

// userDir is the directory of a user's policy in the home.
const userDir = ".config/agentsh"

// Own returns what belongs to agentsh and could lie in a workspace: the state directory,
// the user's policy and its directory, and both directories of the user database's home and
// of a workspace that is somebody's home. Each is named as it is found and without links.
func Own(state, workspace string) []string {
	names := []string{state, UserConfig(), userPolicy()}
	for _, home := range Homes() {
		names = append(names, filepath.Join(home, userDir), filepath.Join(home, layout.HomeState))
	}
	for _, dir := range []string{filepath.Join(workspace, userDir), filepath.Join(workspace, layout.HomeState)} {
		if _, err := os.Lstat(dir); err == nil {
			names = append(names, dir)
		}
	}
	var out []string
	for _, name := range names {
		if name == "" {
			continue
		}
		for _, n := range []string{filepath.Clean(name), paths.Resolve(name)} {
			if !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

func userPolicy() string {
	if dir := UserConfig(); dir != "" {
		return filepath.Join(dir, "policy.yaml")
	}
	return ""
}

// usable reports whether a policy is there, and only this user or root can change it.
func usable(name string) (there bool, note string) {
	if name == "" {
		return false, ""
	}
	info, err := os.Stat(name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist), "" // reading it gives the error
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	if st == nil || st.Uid != 0 && int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return false, fmt.Sprintf("%s is not used: it must belong to this user, and others may not write it (chmod go-w)", name)
	}
	return true, ""
}

// maxPolicy is the largest policy file that is read, in bytes.
const maxPolicy = 1 << 20

// Read reads a file of a policy. It must be a regular file: nothing waits for the writer
// of a pipe.
func Read(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPolicy {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", name, maxPolicy)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPolicy+1))
	if err == nil && len(data) > maxPolicy {
		err = fmt.Errorf("%s: more than %d bytes", name, maxPolicy)
	}
	return data, err
}
