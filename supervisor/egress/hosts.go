package egress

import (
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/policy"
)

// hostsFile is the machine's hosts(5). It is read again when it changes. It is safe for
// concurrent use.
type hostsFile struct {
	path string

	mu      sync.Mutex
	checked time.Time
	size    int64
	changed time.Time
	byName  map[string][]netip.Addr
	byAddr  map[netip.Addr][]string
}

// Bounds of the hosts file. Lists of hosts to block have many names for one address.
const (
	maxHosts     = 4 << 20 // bytes that are read
	hostsMost    = 64      // names of one address, and addresses of one name
	hostsRecheck = time.Second
)

// names returns the names of an address.
func (h *hostsFile) names(a netip.Addr) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refresh()
	return slices.Clone(h.byAddr[a])
}

// addrs returns the addresses of a name; none: the file has none.
func (h *hostsFile) addrs(name string) []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refresh()
	return slices.Clone(h.byName[name])
}

// refresh reads a file that has changed. A file that cannot be read is empty. mu is held.
func (h *hostsFile) refresh() {
	now := time.Now()
	if now.Sub(h.checked) < hostsRecheck {
		return
	}
	h.checked = now
	info, err := os.Stat(h.path)
	if err == nil && h.byName != nil && info.Size() == h.size && info.ModTime().Equal(h.changed) {
		return
	}
	h.byName, h.byAddr = map[string][]netip.Addr{}, map[netip.Addr][]string{}
	if err != nil {
		return
	}
	h.size, h.changed = info.Size(), info.ModTime()
	f, err := os.Open(h.path)
	if err != nil {
		return
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxHosts))
	if err == nil {
		h.parse(string(data))
	}
}

func (h *hostsFile) parse(text string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		at, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		a := policy.HostOf(at).Addr()
		for _, field := range fields[1:] {
			host, err := policy.ParseHost(field)
			if name := host.Name(); err == nil && name != "" {
				h.add(a, name)
			}
		}
	}
}

func (h *hostsFile) add(a netip.Addr, name string) {
	if list := h.byAddr[a]; len(list) < hostsMost && !slices.Contains(list, name) {
		h.byAddr[a] = append(list, name)
	}
	if list := h.byName[name]; len(list) < hostsMost && !slices.Contains(list, a) {
		h.byName[name] = append(list, a)
	}
}
