package vmimage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// Initramfs is what a machine starts from.
type Initramfs struct {
	Program string // path of agentsh on this host
	Modules Modules
	Load    []Module
	Machine wire.Machine
}

// name is the name of a file in the archive.
func name(file string) string { return strings.TrimPrefix(file, "/") }

// Write writes the initramfs to a new file that only its owner can read: it has the keys of
// the machine, in an archive of their own behind the others.
func (i Initramfs) Write(file string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(file)
		}
	}()
	a := &archive{to: f}
	a.directory("dev", 0o755)
	a.device("dev/console", 0o600, 5, 1)
	a.device("dev/null", 0o666, 1, 3)
	a.directory("root", 0o700)
	a.directory(name(layout.MachineModules), 0o700)
	for n, m := range i.Load {
		data, err := i.Modules.read(m)
		if err != nil {
			return err
		}
		a.data(path.Join(name(layout.MachineModules), fmt.Sprintf("%03d-%s.ko", n, m.Name)), 0o600, data)
	}
	if err := a.file(name(layout.MachineProgram), 0o755, i.Program); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return err
	}
	data, err := json.Marshal(i.Machine)
	if err != nil {
		return err
	}
	keys := &archive{to: f, n: a.n}
	keys.data(name(layout.MachineFile), 0o600, data)
	return keys.close()
}
