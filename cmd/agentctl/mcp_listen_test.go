package main

import (
	"net"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestAnAddressOfIPv4IsNotOneOfIPv6 listens at all addresses of IPv4.
func TestAnAddressOfIPv4IsNotOneOfIPv6(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	f := httpFlags{address: "0.0.0.0:0", remote: true}
	c, err := f.listen(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	at := c.listener.Addr().String()
	if !strings.HasPrefix(at, "0.0.0.0:") {
		t.Errorf("it listens at %s", at)
	}
	_, port, _ := net.SplitHostPort(at)
	if conn, err := net.Dial("tcp6", net.JoinHostPort("::1", port)); err == nil {
		_ = conn.Close()
		t.Error("IPv6 reaches it")
	}
}
