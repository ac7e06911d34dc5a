package kubernetes

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fuseResource is the resource of the device plugin of the tests.
const fuseResource = "agentsh.test/fuse"

// fusePlugin is a device plugin that gives pods /dev/fuse.
type fusePlugin struct {
	plugin.UnimplementedDevicePluginServer
}

// startPlugin registers the plugin with the kubelet of this machine. A kubelet that starts again
// has removed its socket, and forgotten it.
func startPlugin(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+plugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(t.Context(), state) {
			t.Fatal(t.Context().Err())
		}
		conn.Connect()
	}
	socket := filepath.Join(plugin.DevicePluginPath, "agentsh.sock")
	_ = os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	plugin.RegisterDevicePluginServer(s, fusePlugin{})
	go func() { _ = s.Serve(l) }() // ends with Stop
	t.Cleanup(s.Stop)
	_, err = plugin.NewRegistrationClient(conn).Register(t.Context(), &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: filepath.Base(socket), ResourceName: fuseResource,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (fusePlugin) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (fusePlugin) ListAndWatch(_ *plugin.Empty, to plugin.DevicePlugin_ListAndWatchServer) error {
	var all plugin.ListAndWatchResponse
	for i := range 20 {
		all.Devices = append(all.Devices, &plugin.Device{ID: strconv.Itoa(i), Health: plugin.Healthy})
	}
	if err := to.Send(&all); err != nil {
		return err
	}
	<-to.Context().Done()
	return nil
}

func (fusePlugin) Allocate(_ context.Context, r *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	var out plugin.AllocateResponse
	for range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &plugin.ContainerAllocateResponse{
			Devices: []*plugin.DeviceSpec{{HostPath: "/dev/fuse", ContainerPath: "/dev/fuse", Permissions: "rw"}},
		})
	}
	return &out, nil
}
