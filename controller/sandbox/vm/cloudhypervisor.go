package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"agentsh/controller/vmimage"
	"agentsh/internal/socket"
	"agentsh/internal/wire"
)

// cloudHypervisor is a machine of Cloud Hypervisor, which is configured over its socket.
type cloudHypervisor struct {
	program string
	network *Network
}

// The configuration of a machine: VmConfig of Cloud Hypervisor's API.
type (
	cloudConfig struct {
		CPUs    cloudCPUs    `json:"cpus"`
		Memory  cloudMemory  `json:"memory"`
		Payload cloudPayload `json:"payload"`
		Disks   []cloudDisk  `json:"disks,omitempty"`
		Net     []cloudNet   `json:"net,omitempty"`
		Serial  cloudConsole `json:"serial"`
		Console cloudConsole `json:"console"`
		Vsock   cloudVsock   `json:"vsock"`
	}
	cloudCPUs struct {
		Boot int `json:"boot_vcpus"`
		Max  int `json:"max_vcpus"`
	}
	cloudMemory struct {
		Size int64 `json:"size"` // bytes
	}
	cloudPayload struct {
		Kernel  string `json:"kernel"`
		Initrd  string `json:"initramfs"`
		Command string `json:"cmdline"`
	}
	cloudDisk struct {
		ID       string `json:"id"`
		Path     string `json:"path"`
		ReadOnly bool   `json:"readonly"`
	}
	cloudNet struct {
		TAP string `json:"tap"`
	}
	cloudConsole struct {
		Mode string `json:"mode"`
		File string `json:"file,omitempty"`
	}
	cloudVsock struct {
		CID    int    `json:"cid"`
		Socket string `json:"socket"`
	}
)

const apiFile = "api.sock"

func (c cloudHypervisor) check(k vmimage.Kernel) error {
	if err := checkOwnArch(k, "Cloud Hypervisor"); err != nil {
		return err
	}
	if err := needKVM("Cloud Hypervisor"); err != nil {
		return err
	}
	_, err := findProgram(c.program, "cloud-hypervisor")
	return err
}

func (cloudHypervisor) modules() []string {
	return []string{"virtio_pci", "vmw_vsock_virtio_transport"}
}
func (cloudHypervisor) listen() string { return fmt.Sprintf("vsock:%d", vsockPort) }
func (cloudHypervisor) off() string    { return wire.OffPower }

func (c cloudHypervisor) prepare(hardware) ([]string, map[string][]byte, error) {
	program, err := findProgram(c.program, "cloud-hypervisor")
	return []string{program, "--api-socket", "path=" + apiFile}, nil, err
}

// config is the configuration of a machine.
func (cloudHypervisor) config(h hardware) cloudConfig {
	c := cloudConfig{
		CPUs: cloudCPUs{h.CPUs, h.CPUs}, Memory: cloudMemory{h.MemoryMB << 20},
		Payload: cloudPayload{h.Kernel, h.Initrd, "console=" + cloudSerial(h.Arch) + " " + h.Command},
		Serial:  cloudConsole{"File", consoleFile}, Console: cloudConsole{Mode: "Off"}, Vsock: cloudVsock{guestCID, vsockFile},
	}
	for _, d := range h.Disks {
		c.Disks = append(c.Disks, cloudDisk{d.Name, d.File, d.ReadOnly})
	}
	if h.Card {
		c.Net = []cloudNet{{h.Network.TAP}}
	}
	return c
}

func cloudSerial(arch string) string {
	if arch == "arm64" {
		return "ttyAMA0"
	}
	return "ttyS0"
}

// apiTime bounds the requests to the API, with the time until it answers.
const apiTime = 30 * time.Second

// boot makes the machine and boots it.
func (c cloudHypervisor) boot(ctx context.Context, dir string, h hardware) error {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	data, err := json.Marshal(c.config(h))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, apiFile))
	}}}
	defer client.CloseIdleConnections()
	if err := waitFile(ctx, filepath.Join(dir, apiFile)); err != nil {
		return err
	}
	if err := cloudCall(ctx, client, "vm.create", data); err != nil {
		return err
	}
	return cloudCall(ctx, client, "vm.boot", nil)
}

// cloudCall sends a request to the API.
func cloudCall(ctx context.Context, client *http.Client, what string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://localhost/api/v1/"+what, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("cloud-hypervisor: %s: %w", what, err)
	}
	said, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // what could be read is a part of the error
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("cloud-hypervisor: %s: status %d: %s", what, res.StatusCode, bytes.TrimSpace(said))
	}
	return nil
}

func (cloudHypervisor) dial(ctx context.Context, dir string, key *socket.Key, messages io.Writer) (*socket.Conn, error) {
	return dialHybrid(ctx, dir, key, messages)
}
