#!/bin/bash
# Build the programs of a small Kubernetes cluster from the Go module proxy into DIRECTORY, where
# they stay: kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl, etcd,
# containerd with its shim and ctr, runc, plugins of CNI, and the controller of agent-sandbox.
# The first time takes a quarter of an hour. Nothing is done for what is there.
#
#   build.sh DIRECTORY [NAME...]: all, or those of kubernetes etcd containerd runc cni agent-sandbox
set -euo pipefail

dir=$(mkdir -p "$1" && cd "$1" && pwd)
shift
wanted=" ${*:-kubernetes etcd containerd runc cni agent-sandbox} "
go=${GO:-go}

kubernetes=v1.37.2
etcd=v3.7.3
containerd=v2.4.2
runc=v1.5.2
cni=v1.10.0
agentsandbox=v0.5.6

# build NAME VERSION MODULE [-FLAG...] PACKAGE...: programs of a module, each beside a note of its version.
build() {
	local name=$1 version=$2 module=$3 work
	shift 3
	case $wanted in *" $name "*) ;; *) return ;; esac
	if [ "$(cat "$dir/$name.version" 2>/dev/null)" = "$version" ]; then return; fi
	echo "building $name $version" >&2
	work=$(mktemp -d)
	printf 'module build\n\ngo 1.26.0\n\nrequire %s %s\n' "$module" "$version" >"$work/go.mod"
	replaces "$module" "$version" >>"$work/go.mod"
	mkdir -p "$dir/bin"
	(cd "$work" && GOWORK=off GOFLAGS=-mod=mod nice "$go" build -trimpath -o "$dir/bin/" "$@")
	echo "$version" >"$dir/$name.version"
	rm -rf "$work"
}

# Modules that are published from one tree replace each other there.
replaces() {
	[ "$1" = k8s.io/kubernetes ] || return 0
	local mod
	mod=$("$go" mod download -json "$1@$2" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
	sed -n "s|^\t\(k8s.io/[^ ]*\) v0.0.0\$|replace \1 => \1 v0${2#v1}|p" "$mod"
}

k=k8s.io/kubernetes/cmd
version=k8s.io/component-base/version
strip="-s -w"
build kubernetes $kubernetes k8s.io/kubernetes -ldflags "$strip -X $version.gitVersion=$kubernetes" \
	$k/kube-apiserver $k/kube-controller-manager $k/kube-scheduler $k/kubelet $k/kubectl
CGO_ENABLED=0 build etcd $etcd go.etcd.io/etcd/server/v3 -ldflags "$strip" go.etcd.io/etcd/server/v3
if [ -e "$dir/bin/server" ]; then mv "$dir/bin/server" "$dir/bin/etcd"; fi # the module's main package has this name
c=github.com/containerd/containerd/v2
build containerd $containerd $c -ldflags "$strip" $c/cmd/containerd $c/cmd/containerd-shim-runc-v2 $c/cmd/ctr
build runc $runc github.com/opencontainers/runc -tags seccomp -ldflags "$strip -X main.version=${runc#v}" github.com/opencontainers/runc
p=github.com/containernetworking/plugins/plugins
CGO_ENABLED=0 build cni $cni github.com/containernetworking/plugins -ldflags "$strip" $p/main/bridge $p/main/loopback $p/ipam/host-local
build agent-sandbox $agentsandbox sigs.k8s.io/agent-sandbox -ldflags "$strip" sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller
if [ -e "$dir/agent-sandbox.version" ]; then # its objects are in the module
	mod=$("$go" mod download -json sigs.k8s.io/agent-sandbox@$agentsandbox | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	mkdir -p "$dir/crds"
	for file in "$mod"/k8s/crds/*.yaml; do # without the webhook that converts to older versions: no service has it here
		awk '/^  conversion:/ { print; print "    strategy: None"; inside = 1; next } /^ ? ?[^ ]/ { inside = 0 } !inside' \
			"$file" >"$dir/crds/${file##*/}"
	done
fi
