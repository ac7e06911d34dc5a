package vmimage

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Module is a module of a kernel.
type Module struct {
	Name  string   `json:"name"` // with _ instead of -
	File  string   `json:"file"` // relative to the directory of the modules
	Needs []string `json:"needs,omitempty"`
}

// Modules are the modules that a kernel has, of those that machines need.
type Modules struct {
	Dir     string   `json:"-"`
	Loaded  []Module `json:"loadable,omitempty"` // each after those that it needs
	Builtin []string `json:"builtin,omitempty"`
	all     bool     // there is no list: the kernel has all of them itself
}

// known are the modules that some machine needs.
var known = []string{
	"virtio_pci", "virtio_mmio", "virtio_blk", "virtio_net", "virtio_console", "vmw_vsock_virtio_transport",
	"ext4", "squashfs", "erofs", "overlay", "fuse",
	"nf_tables", "nft_chain_nat", "nft_redir", "nft_nat", "inet_diag", "tcp_diag", "udp_diag", "unix_diag",
}

// OpenModules finds the modules in a directory such as /lib/modules/RELEASE. An empty name is a
// kernel that has everything itself.
func OpenModules(dir string) (Modules, error) {
	m := Modules{Dir: dir, all: dir == ""}
	if m.all {
		return m, nil
	}
	builtin, err := readBuiltin(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return m, fmt.Errorf("modules: %w: name the directory /lib/modules/VERSION of the kernel", err)
	}
	files, err := findModules(dir)
	if err != nil {
		return m, fmt.Errorf("modules: %w", err)
	}
	for _, name := range known {
		if slices.Contains(builtin, name) {
			m.Builtin = append(m.Builtin, name)
		} else if err := m.add(files, name); err != nil {
			return m, fmt.Errorf("modules: %w", err)
		}
	}
	return m, nil
}

// findModules returns the files of all modules by their names. The last of two has precedence:
// that of updates.
func findModules(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(d.Name(), ".ko") {
			return err
		}
		files[moduleName(file)], err = filepath.Rel(dir, file)
		return err
	})
	return files, err
}

// add adds a module after those that it needs.
func (m *Modules) add(files map[string]string, name string) error {
	file, has := files[name]
	if !has || slices.ContainsFunc(m.Loaded, func(x Module) bool { return x.Name == name }) {
		return nil
	}
	x := Module{Name: name, File: file}
	data, err := m.read(x)
	if err != nil {
		return err
	}
	if x.Needs, err = needs(data); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, need := range x.Needs {
		if err := m.add(files, need); err != nil {
			return err
		}
	}
	m.Loaded = append(m.Loaded, x)
	return nil
}

// needs are the modules that a module needs, which its section .modinfo lists.
func needs(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	info := f.Section(".modinfo")
	if info == nil {
		return nil, errors.New("it is no module")
	}
	text, err := info.Data()
	if err != nil {
		return nil, err
	}
	var found []string
	for word := range strings.SplitSeq(string(text), "\x00") {
		if list, ok := strings.CutPrefix(word, "depends="); ok && list != "" {
			for name := range strings.SplitSeq(list, ",") {
				found = append(found, moduleName(name))
			}
		}
	}
	return found, nil
}

// moduleName is the name of a module in a file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func readBuiltin(name string) ([]string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		found = append(found, moduleName(strings.TrimSpace(line)))
	}
	return found, nil
}

// Select returns the modules that must be loaded for the named ones, in their order, and the names
// that the kernel does not have.
func (m Modules) Select(names ...string) (load []Module, missing []string) {
	want := map[string]bool{}
	var need func(name string)
	need = func(name string) {
		i := slices.IndexFunc(m.Loaded, func(x Module) bool { return x.Name == name })
		if i < 0 || want[name] {
			return
		}
		want[name] = true
		for _, n := range m.Loaded[i].Needs {
			need(n)
		}
	}
	for _, name := range names {
		need(name)
		if !want[name] && !m.all && !slices.Contains(m.Builtin, name) {
			missing = append(missing, name)
		}
	}
	for _, x := range m.Loaded {
		if want[x.Name] {
			load = append(load, x)
		}
	}
	return load, missing
}

// maxModule bounds a module, in bytes.
const maxModule = 64 << 20

// read returns a module without its compression.
func (m Modules) read(x Module) ([]byte, error) {
	name := filepath.Join(m.Dir, filepath.FromSlash(x.File))
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", x.Name, err)
	}
	defer f.Close()
	var in io.Reader = f
	switch filepath.Ext(name) {
	case ".gz":
		in, err = gzip.NewReader(f)
	case ".xz":
		in, err = xz.NewReader(f)
	case ".zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(f, zstd.WithDecoderConcurrency(1)); err == nil {
			defer d.Close()
			in = d
		}
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(in, maxModule))
	}
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", x.Name, err)
	}
	return data, nil
}
