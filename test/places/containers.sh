# shellcheck shell=bash disable=SC2154,SC2016
# Container engines with their default profiles. Sourced by run.sh.

# docker_ready starts a daemon of our own, in network and mount namespaces of its
# own, and imports the root. docker is then the client of it.
docker_ready() {
	local dir
	dir=$(debian_root)
	setsid unshare -n -m bash -c 'ip link set lo up; exec dockerd --data-root "$1/docker" --exec-root "$1/docker-exec" \
		-H "unix://$1/docker.sock" --pidfile "$1/docker.pid"' dockerd "$work" >"$work/dockerd.log" 2>&1 &
	daemon=$!
	export DOCKER_HOST=unix://$work/docker.sock
	local i
	for i in $(seq 360); do
		docker version >/dev/null 2>&1 && break
		[ "$i" != 360 ] || { tail -5 "$work/dockerd.log" >&2; return 1; }
		sleep 0.5
	done
	tar -C "$dir" --exclude=./places --exclude=./scratch -cf - . | docker import - places:root >/dev/null
}

# stop_daemon ends the daemon and what it started.
stop_daemon() {
	[ -n "$daemon" ] || return 0
	kill -TERM -- "-$daemon" 2>/dev/null || true
	wait "$daemon" 2>/dev/null || true
	rm -rf --one-file-system "$work/docker" "$work/docker-exec"
}

docker_bundle() {
	bundle "$work/places"
	with_probes "$work/places" "$1"
	docker_ready
}

place_docker_root() {
	docker_bundle docker-root
	docker run --rm -v "$work/places:/places:ro" places:root sh -c '
		sh /places/check.sh /places
		[ ! -e /places/probes.sh ] || bash /places/probes.sh'
}

place_docker_user() {
	docker_bundle docker-user
	docker run --rm --user 1000:1000 -v "$work/places:/places:ro" places:root sh /places/check.sh /places
}

# podman_ready writes the settings that it needs on a machine whose root may not
# raise limits, and imports the root.
podman_ready() {
	export CONTAINERS_CONF=$work/containers.conf CONTAINERS_STORAGE_CONF=$work/storage.conf
	local dir
	dir=$(debian_root)
	cat >"$CONTAINERS_CONF" <<-CONF
		[containers]
		default_ulimits = ["nofile=20000:20000","nproc=32768:32768"]
		[engine]
		runtime = "runc"
		cgroup_manager = "cgroupfs"
		events_logger = "file"
	CONF
	cat >"$CONTAINERS_STORAGE_CONF" <<-CONF
		[storage]
		driver = "overlay"
		graphroot = "$work/podman-root"
		runroot = "$work/podman-run"
	CONF
	podman image exists places:root || tar -C "$dir" --exclude=./places --exclude=./scratch -cf - . | podman import -q - places:root >/dev/null
}

podman_run() {
	local place=$1
	shift
	bundle "$work/places"
	with_probes "$work/places" "$place"
	podman_ready
	local status=0
	podman run --rm --network=none "$@" -v "$work/places:/places:ro" places:root sh -c '
		sh /places/check.sh /places
		[ ! -e /places/probes.sh ] || bash /places/probes.sh' || status=$?
	umount "$work/podman-root/overlay" 2>/dev/null || true
	return $status
}

place_podman() { podman_run podman; }
place_podman_unmasked() { podman_run podman-unmasked --security-opt unmask=ALL; }

# runsc_version is of 2026-09-05, on the branch that `go install` can build.
runsc_version=v0.0.0-20260905035102-160fafc42237

place_gvisor() {
	local dir runsc=$CACHE/runsc-$runsc_version/runsc status=0
	if [ ! -x "$runsc" ]; then
		CGO_ENABLED=0 GOBIN=${runsc%/*} GOFLAGS=-mod=mod "${GO:-go}" install "gvisor.dev/gvisor/runsc@$runsc_version" >&2
	fi
	dir=$(debian_root)
	bundle "$work/places"
	mkdir -p "$work/bundle"
	cat >"$work/bundle/config.json" <<-JSON
		{"ociVersion": "1.0.0", "hostname": "places", "root": {"path": "$dir", "readonly": false},
		 "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["sh", "/places/check.sh", "/places"],
		  "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SCRATCH=/tmp"],
		  "capabilities": {"bounding": ["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_SETUID","CAP_SETGID","CAP_KILL"], "effective": ["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_SETUID","CAP_SETGID","CAP_KILL"], "permitted": ["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_SETUID","CAP_SETGID","CAP_KILL"]}},
		 "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/tmp", "type": "tmpfs"},
		  {"destination": "/places", "type": "bind", "source": "$work/places", "options": ["ro", "rbind"]}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}]}}
	JSON
	"$runsc" --root="$work/runsc" --platform=systrap --network=none --ignore-cgroups run --bundle "$work/bundle" "places$$" || status=$?
	umount "$work/runsc/null-netns" 2>/dev/null || true # runsc leaves it behind
	return $status
}
