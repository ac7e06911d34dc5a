package wire

import "time"

// MaxMachine is the largest [Machine], in bytes.
const MaxMachine = 1 << 20

// Machine is what process 1 of a virtual machine gets from its controller: a file in the
// machine's initramfs, which the process removes. No command has started then.
type Machine struct {
	Version      Version   `json:"version"`
	Key          []byte    `json:"key"`              // secret of both ends of each stream
	Listen       string    `json:"listen"`           // "vsock:PORT", or "serial:NAME" for the ports of virtio-serial NAME.0, NAME.1 and so on
	LeaseSeconds int       `json:"lease_seconds"`    // without a sandbox the machine ends after that
	Off          string    `json:"off"`              // how the machine ends: one of the constants below
	Time         time.Time `json:"time"`             // of the controller; a clock that is earlier is set to it
	Seed         []byte    `json:"seed"`             // for the random numbers of the kernel
	Root         string    `json:"root,omitempty"`   // disk that commands see as the root, read-only; empty: the initramfs
	Disk         string    `json:"disk,omitempty"`   // disk for changed files, ext4; empty: they are in memory
	Config       []byte    `json:"config,omitempty"` // configuration of the supervisor; empty: that of the root
	Network      *Network  `json:"network,omitempty"`
}

// Values of Machine.Off.
const (
	OffPower = "power" // switch the power off
	OffReset = "reset" // reset the processor: what ends Firecracker
)

// Network is the network card of a virtual machine; the first one that there is.
type Network struct {
	Address string   `json:"address"`           // with the length of the prefix
	Gateway string   `json:"gateway,omitempty"` // of all other addresses
	DNS     []string `json:"dns,omitempty"`     // addresses of name servers
}
