# shellcheck shell=bash disable=SC2154,SC2016
# Container engines with their default profiles. Sourced by run.sh.

# docker_ready starts a daemon of our own, in network and mount namespaces of its
# own, and imports the root, which is in base, if that is set. docker is then the client of it.
# Arguments are the daemon's.
docker_ready() {
	local dir=${base:-}
	[ -n "$dir" ] || dir=$(debian_root)
	setsid unshare -n -m bash -c 'ip link set lo up; exec dockerd --data-root "$1/docker" --exec-root "$1/docker-exec" \
		-H "unix://$1/docker.sock" --pidfile "$1/docker.pid" "${@:2}"' dockerd "$work" "$@" >"$work/dockerd.log" 2>&1 &
	daemon=$!
	export DOCKER_HOST=unix://$work/docker.sock
	local i
	for i in $(seq 360); do
		docker version >/dev/null 2>&1 && break
		[ "$i" != 360 ] || { tail -5 "$work/dockerd.log" >&2; return 1; }
		sleep 0.5
	done
	tar -C "$dir" --exclude=./places --exclude=./scratch --exclude="./.gvisor.filestore.*" -cf - . | docker import - places:root >/dev/null
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

# with_profile are the flags of doc/platforms/docker.md that give a whole session, without root
# or with it. The file server's device is open to everybody, as distributions have it.
with_profile() {
	local device=$work/fuse
	[ -e "$device" ] || { mknod "$device" c 10 229 && chmod 666 "$device"; }
	flags=(--device "$device:/dev/fuse")
	case $1 in
	docker-profile | podman-profile)
		flags+=(--user 1000:1000 --cap-drop ALL --security-opt no-new-privileges --security-opt "seccomp=$root/packaging/containers/seccomp-user.json")
		case $1 in docker-*) flags+=(--security-opt systempaths=unconfined) ;; *) flags+=(--security-opt unmask=ALL) ;; esac
		;;
	*) flags+=(--cap-add SYS_ADMIN --cap-add NET_ADMIN --cap-add SYS_PTRACE --security-opt "seccomp=$root/packaging/containers/seccomp-root.json") ;;
	esac
}

place_docker_profile() {
	local flags
	with_profile "$1"
	docker_bundle "$1"
	docker run --rm "${flags[@]}" -v "$work/places:/places:ro" places:root sh /places/check.sh /places
}

place_docker_root_profile() { place_docker_profile "$1"; }

place_podman_profile() {
	local flags
	with_profile "$1"
	podman_run "$1" "${flags[@]}"
}

place_podman_root_profile() { place_podman_profile "$1"; }

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
	podman image exists places:root || tar -C "$dir" --exclude=./places --exclude=./scratch --exclude="./.gvisor.filestore.*" -cf - . | podman import -q - places:root >/dev/null
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

# gvisor_bundle is what runs in gVisor; RUNSC is the program, which make builds once.
gvisor_bundle() {
	[ -x "${RUNSC:-}" ] || { echo "RUNSC=${RUNSC:-} is no program: run 'make places PLACES=$1'" >&2; return 1; }
	bundle "$work/places"
	RACE_N=${RACE_N:-20} with_probes "$work/places" "$1"
}

# What runs in gVisor.
gvisor_checks='SCRATCH=/tmp sh /places/check.sh /places'
gvisor_probes='[ ! -e /places/probes.sh ] || bash /places/probes.sh'

# gvisor_run runs a script by runsc alone, as a user with the capabilities that Docker gives,
# and further ones. Its network has no way out. Its root is in base, if that is set.
gvisor_run() {
	local user=$1 script=$2 dir=${base:-} status=0 held capabilities='["CAP_CHOWN","CAP_DAC_OVERRIDE","CAP_FOWNER","CAP_FSETID","CAP_KILL","CAP_SETGID","CAP_SETUID",
		"CAP_SETPCAP","CAP_NET_BIND_SERVICE","CAP_NET_RAW","CAP_SYS_CHROOT","CAP_MKNOD","CAP_AUDIT_WRITE","CAP_SETFCAP"'"${3:+,}${3:-}]"
	held=$capabilities
	[ "$user" = 0 ] || held='[]'
	[ -n "$dir" ] || dir=$(debian_root)
	mkdir -p "$work/bundle"
	cat >"$work/bundle/config.json" <<-JSON
		{"ociVersion": "1.0.0", "hostname": "places", "root": {"path": "$dir", "readonly": false},
		 "process": {"user": {"uid": $user, "gid": $user}, "cwd": "/", "args": ["sh", "-c", "$script"],
		  "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
		  "capabilities": {"bounding": $capabilities, "effective": $held, "permitted": $held}},
		 "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/tmp", "type": "tmpfs"},
		  {"destination": "/dev", "type": "tmpfs"}, {"destination": "/sys", "type": "sysfs"},
		  {"destination": "/places", "type": "bind", "source": "$work/places", "options": ["ro", "rbind"]}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "network"}]}}
	JSON
	"$RUNSC" --root="$work/runsc" --platform=systrap --network=none --ignore-cgroups --overlay2=root:memory run --bundle "$work/bundle" "places$$" </dev/null | cat || status=$?
	umount "$work/runsc/null-netns" 2>/dev/null || true # runsc leaves it behind
	return $status
}

# The probes of the network need addresses of their own.
place_gvisor() {
	gvisor_bundle gvisor
	gvisor_run 0 "$gvisor_checks"
	gvisor_run 0 "export FURTHER=1; $gvisor_probes" '"CAP_NET_ADMIN"'
}

place_gvisor_user() {
	gvisor_bundle gvisor-user
	gvisor_run 1000 "$gvisor_checks"
}

# With a file server on files that cannot be mapped, as root and as a user.
place_gvisor_files() {
	gvisor_bundle gvisor-files
	gvisor_run 0 "export MAPPED=1; $gvisor_checks"
}

place_gvisor_files_user() {
	gvisor_bundle gvisor-files-user
	gvisor_run 1000 "export MAPPED=1; $gvisor_checks"
}

# runsc as a runtime of Docker, without a flag of Docker's.
place_gvisor_docker() {
	gvisor_bundle gvisor-docker
	printf '#!/bin/sh\nexec "%s" --platform=systrap --network=none --ignore-cgroups "$@"\n' "$RUNSC" >"$work/runsc.sh"
	chmod 755 "$work/runsc.sh"
	docker_ready "--add-runtime=gvisor=$work/runsc.sh"
	docker run --rm --runtime=gvisor -v "$work/places:/places:ro" places:root sh -c "$gvisor_checks; $gvisor_probes"
}

# demo_bundle is this tree as it is committed, and its programs.
demo_bundle() {
	gvisor_bundle "$1"
	cp "$here/gvisor-demo.sh" "$root/bin/agentctl" "$work/places/"
	git -C "$root" archive --format=tar HEAD | gzip -1 >"$work/places/tree.tar.gz"
	cc -O2 -Wall -Wextra -Werror -fPIC -shared -o "$work/places/unmapped.so" "$root/examples/fix-bug/unmapped.c"
	sed -n '/^```yaml/,/^```$/{/^```/d;p}' "$root/doc/platforms/gvisor.md" | sed '/^degraded:/s/file_server/mapped_files/' >"$work/places/config.yaml"
	sed -n 's/^    docker run --runtime=runsc IMAGE \(agentctl\)/\1/p' "$root/doc/platforms/gvisor.md" >"$work/places/command"
	chmod -R a+rX "$work/places"
}

# The run of an agent, as the page says.
place_gvisor_demo() {
	demo_bundle gvisor-demo
	local base
	base=$(demo_root)
	gvisor_run 0 'bash /places/gvisor-demo.sh'
}

place_gvisor_docker_demo() {
	demo_bundle gvisor-docker-demo
	local base
	base=$(demo_root)
	printf '#!/bin/sh\nexec "%s" --platform=systrap --network=none --ignore-cgroups "$@"\n' "$RUNSC" >"$work/runsc.sh"
	chmod 755 "$work/runsc.sh"
	docker_ready "--add-runtime=gvisor=$work/runsc.sh"
	docker run --rm --runtime=gvisor -v "$work/places:/places:ro" places:root bash /places/gvisor-demo.sh
}

# What the page says of gVisor, with the configuration in it.
place_gvisor_page() {
	gvisor_bundle gvisor-page
	mkdir -p "$work/places/policies"
	cp "$here/gvisor.sh" "$work/places/"
	cp "$root"/packaging/policies/*.yaml "$work/places/policies/"
	sed -n '/^```yaml/,/^```$/{/^```/d;p}' "$root/doc/platforms/gvisor.md" >"$work/places/config.yaml"
	sed -n 's/^    docker run --runtime=runsc IMAGE \(agentsh\)/\1/p' "$root/doc/platforms/gvisor.md" >"$work/places/command"
	chmod -R a+rX "$work/places"
	gvisor_run 0 'sh /places/gvisor.sh /places'
}

# What the page says of Docker without flags, with the configuration of the packages.
place_docker_page() {
	bundle "$work/places"
	cp -r "$here/docker.sh" "$root/packaging/config.yaml" "$root/packaging/policies" "$root/bash_startup.sh" "$work/places/"
	mkdir -p "$work/volume"
	chmod -R a+rX "$work/places"
	docker_ready
	mkdir -p "$work/places/etc"
	cp -r "$work/places/config.yaml" "$work/places/policies" "$work/places/etc/"
	docker run --rm -v "$work/places:/places:ro" -v "$work/volume:/volume" places:root sh /places/docker.sh /places
	docker run --rm --user 1000:1000 -v "$work/places:/places:ro" -v "$work/places/etc:/etc/agentsh:ro" -v "$work/volume:/volume" \
		-v "$work/places/bash_startup.sh:/usr/lib/agentsh/bash_startup.sh:ro" places:root sh /places/docker.sh /places
}
