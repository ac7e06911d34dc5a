#!/bin/bash
# Run a command in a cluster of one node on this machine: with.sh PROGRAMS DIRECTORY COMMAND...
# PROGRAMS is what build.sh made. The cluster has namespaces of its own, keeps its files in
# DIRECTORY, and ends with the command. Needs root. The command has KUBECONFIG (the administrator,
# context admin; a user with the Role of packaging/kubernetes, context runner), CLUSTER (DIRECTORY),
# and the programs in its PATH. It restarts a part of the cluster with
#   echo "PART stop|start" >"$CLUSTER/control"; read -r done <"$CLUSTER/answer"
set -euo pipefail

if [ "${IN_CLUSTER:-}" = "" ]; then
	export IN_CLUSTER=1
	exec unshare --net --mount --pid --fork --kill-child --mount-proc --propagation shared bash "$0" "$@"
fi

bin=$(cd "$1" && pwd)
dir=$(mkdir -p "$2" && cd "$2" && pwd)
shift 2
export PATH=$bin/bin:$PATH CLUSTER=$dir CLUSTER_CRDS=$bin/crds KUBECONFIG=$dir/kubeconfig
mount --make-rprivate /
mkdir -p /var/lib/kubelet "$dir"/{kubelet,log,etcd,certs,cni}
mount --bind "$dir/kubelet" /var/lib/kubelet
mount --make-shared /var/lib/kubelet
mount -t tmpfs tmpfs /run
mount --make-shared /run
mount -t tmpfs tmpfs /var/log
mknod -m 666 "$dir/fuse" c 10 229 2>/dev/null || true
mount --bind "$dir/fuse" /dev/fuse # distributions let everybody open it

ip link set lo up
ip link add node type veth peer name out
ip addr add 10.99.0.1/24 dev node
ip link set node up
ip link set out up
ip route add default via 10.99.0.254 dev node

# There is no kube-proxy: pods reach the API server at the address of its service.
nft -f - <<'RULES'
table ip cluster {
	chain services {
		type nat hook prerouting priority dstnat
		ip daddr 10.97.0.1 tcp dport 443 dnat to 10.99.0.1:6443
	}
}
RULES

server=https://10.99.0.1:6443
openssl genrsa -out "$dir/certs/sa.key" 2048 2>/dev/null
printf 'admin-token,admin,admin,system:masters\nrunner-token,runner,runner,runners\n' >"$dir/tokens"

cat >"$dir/cni/10-pods.conflist" <<'CONF'
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
CONF
cat >"$dir/containerd.toml" <<CONF
version = 3
root = "$dir/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["$bin/bin"]
  conf_dir = "$dir/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "$bin/bin/runc"
    SystemdCgroup = false
CONF
cat >"$dir/kubelet.yaml" <<'CONF'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
nodeStatusUpdateFrequency: 2s
CONF

declare -A pids
start() {
	case $1 in
	etcd) set -- etcd etcd --data-dir "$dir/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync ;;
	apiserver) set -- apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --cert-dir "$dir/certs" --advertise-address 10.99.0.1 \
		--service-account-key-file "$dir/certs/sa.key" --service-account-signing-key-file "$dir/certs/sa.key" \
		--service-account-issuer https://cluster.invalid --token-auth-file "$dir/tokens" --authorization-mode Node,RBAC \
		--kubelet-preferred-address-types InternalIP --service-cluster-ip-range 10.97.0.0/24 --allow-privileged ;;
	controllers) set -- controllers kube-controller-manager --kubeconfig "$KUBECONFIG" --service-account-private-key-file "$dir/certs/sa.key" \
		--root-ca-file "$dir/certs/apiserver.crt" \
		--use-service-account-credentials=false --node-monitor-grace-period 16s --node-monitor-period 2s --leader-elect=false --bind-address 127.0.0.1 ;;
	scheduler) set -- scheduler kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false --bind-address 127.0.0.1 ;;
	containerd) set -- containerd containerd --config "$dir/containerd.toml" ;;
	kubelet) set -- kubelet kubelet --config "$dir/kubelet.yaml" --kubeconfig "$KUBECONFIG" --hostname-override node --node-ip 10.99.0.1 \
		--root-dir /var/lib/kubelet ;;
	esac
	local part=$1
	shift
	"$@" >>"$dir/log/$part" 2>&1 </dev/null &
	pids[$part]=$!
}

# shellcheck disable=SC2317 # by its name, below
stop() {
	kill -KILL "${pids[$1]}"
	wait "${pids[$1]}" 2>/dev/null || true
}

# until_ok COMMAND...: 2 minutes.
until_ok() {
	for _ in $(seq 600); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		sleep 0.2
	done
	echo "with.sh: not in time: $*" >&2
	tail -n 5 "$dir"/log/* >&2
	return 1
}

write_kubeconfig() {
	cat >"$KUBECONFIG" <<-CONF
		apiVersion: v1
		kind: Config
		current-context: admin
		clusters: [{name: here, cluster: {server: "$server", certificate-authority: $dir/certs/apiserver.crt}}]
		users: [{name: admin, user: {token: admin-token}}, {name: runner, user: {token: runner-token}}]
		contexts:
		  - {name: admin, context: {cluster: here, user: admin}}
		  - {name: runner, context: {cluster: here, user: runner, namespace: agentsh}}
	CONF
}

start etcd
until_ok bash -c 'exec 3<>/dev/tcp/127.0.0.1/2379'
write_kubeconfig
start apiserver
until_ok kubectl get --raw /readyz
start controllers
start scheduler
start containerd
until_ok ctr --address /run/containerd/containerd.sock version
"$(dirname "$0")/images.sh" "$dir"
start kubelet
until_ok bash -c 'kubectl get node node -o jsonpath="{.status.conditions[?(@.type==\"Ready\")].status}" | grep True'
until_ok kubectl get serviceaccount default

mkfifo "$dir/control" "$dir/answer"
exec 3<>"$dir/control"
"$@" &
command=$!
while kill -0 "$command" 2>/dev/null; do
	if read -r -t 1 -u 3 part what; then
		"$what" "$part"
		echo "$part $what" >"$dir/answer"
	fi
done
status=0
wait "$command" || status=$?
exit $status
