package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// Podman starts the service of podman as root.
func Podman(t *testing.T) *Engine {
	t.Helper()
	return startPodman(t, podmanScript+`exec "$@"`)
}

// RootlessPodman starts the service of podman as a user, who has further users of the
// namespace below.
func RootlessPodman(t *testing.T) *Engine {
	t.Helper()
	Need(t, Program("newuidmap"), Program("slirp4netns"))
	return startPodman(t, podmanScript+rootlessScript)
}

// podmanScript gives podman settings that it needs on a machine whose root may not raise limits,
// and whose control groups are of version 1.
const podmanScript = `
set -e
dir=$1
shift
cat >"$dir/containers.conf" <<-CONF
	[containers]
	default_ulimits = ["nofile=20000:20000","nproc=32768:32768"]
	[engine]
	runtime = "runc"
	cgroup_manager = "cgroupfs"
	events_logger = "file"
	[network]
	default_rootless_network_cmd = "slirp4netns"
CONF
cat >"$dir/storage.conf" <<-CONF
	[storage]
	driver = "overlay"
	graphroot = "$dir/root"
	runroot = "$dir/run"
CONF
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$dir/policy.json"
export CONTAINERS_CONF=$dir/containers.conf CONTAINERS_STORAGE_CONF=$dir/storage.conf
`

// rootlessScript becomes user 4711 of the service's mount namespace.
const rootlessScript = `
if [ ! -e "$dir/tun" ]; then # the first start
mkdir -p "$dir/home" "$dir/runtime"
chown -R 4711:4711 "$dir"
chmod 700 "$dir/runtime"
for file in passwd group subuid subgid; do cp "/etc/$file" "$dir/$file"; done
echo "rootless:x:4711:4711::$dir/home:/bin/sh" >>"$dir/passwd"
echo "rootless:x:4711:" >>"$dir/group"
for file in subuid subgid; do echo "rootless:500000:65536" >>"$dir/$file"; done
for file in passwd group subuid subgid; do chmod 644 "$dir/$file"; mount --bind "$dir/$file" "/etc/$file"; done
mount -t tmpfs tmpfs /run
mknod "$dir/tun" c 10 200
chmod 666 "$dir/tun"
mount --bind "$dir/tun" /dev/net/tun
fi
cd "$dir"
exec setpriv --reuid 4711 --regid 4711 --clear-groups env HOME="$dir/home" XDG_RUNTIME_DIR="$dir/runtime" USER=rootless "$@"
`

func startPodman(t *testing.T, script string) *Engine {
	t.Helper()
	// Podman refuses a runroot of more than 50 characters, also in what it runs at the end of a
	// container: it then never removes one, and says nothing.
	dir, err := os.MkdirTemp("", "podman")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // a user reaches it
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "podman.sock")
	return startEngine(t, dir, socket, "bash", "-c", script, "podman", dir,
		"podman", "--log-level", "info", "system", "service", "--time", "0", "unix://"+socket)
}
