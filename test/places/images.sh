# shellcheck shell=bash disable=SC2154,SC2016
# Images like the usual ones, with the image of agentsh copied into them, in Docker and podman
# without a flag. Sourced by run.sh.

# image_context is what packaging/docker/Dockerfile has as its context: an unpacked archive.
image_context() {
	local to=$1
	mkdir -p "$to/policies"
	cp "$root/bin/agentsh" "$root/bin/agentctl" "$root/bash_startup.sh" "$root/LICENSE" "$root/packaging/config.yaml" "$to/"
	cp "$root"/packaging/policies/*.yaml "$to/policies/"
	rm "$to"/policies/*_test.yaml
	cp -r "$root/packaging/containers" "$to/"
	cp "$root/packaging/licences/LGPL-2.1.txt" "$to/THIRD_PARTY_NOTICES" # a build has more
	chmod -R a+rX "$to"
}

# base_context KIND is what an image has beyond the Debian root, and the environment of the
# official image of that name. alpine and ubuntu are roots of their own.
base_context() {
	local kind=$1 to=$2 name
	mkdir -p "$to"
	case $kind in
	node)
		npm install --silent --no-audit --no-fund --global --prefix "$to/usr/local" node@22 npm@10 >&2
		cp -L "$to/usr/local/lib/node_modules/node/bin/node" "$to/usr/local/bin/node.new"
		mv "$to/usr/local/bin/node.new" "$to/usr/local/bin/node"
		;;
	python)
		mkdir -p "$to/usr/local/bin" "$to/usr/local/lib"
		local debian
		debian=$(debian_root)
		cp -L "$debian/usr/bin/python3" "$to/usr/local/bin/python3"
		cp -r "$debian/usr/lib/python3.11" "$to/usr/local/lib/"
		;;
	golang)
		mkdir -p "$to/usr/local/go" "$to/go/bin" "$to/go/src"
		name=$($GO env GOROOT)
		cp -r "$name/bin" "$name/pkg" "$name/src" "$name/lib" "$name/go.env" "$name/VERSION" "$to/usr/local/go/"
		chmod -R 1777 "$to/go"
		;;
	debian) mkdir -p "$to/opt" ;;
	esac
}

# image_lines KIND are the lines of its Dockerfile after FROM.
image_lines() {
	case $1 in
	golang) printf 'ENV GOPATH=/go PATH=/go/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' ;;
	esac
}

# alpine_root is a root with busybox and musl alone: no mirror of Alpine is needed.
alpine_root() {
	local to=$1 name
	mkdir -p "$to"/{bin,lib,etc/ssh,tmp,var/tmp,root,proc,dev,sys,run,usr/bin,sbin,lib64,home}
	chmod 1777 "$to/tmp" "$to/var/tmp"
	cp "$(command -v busybox)" "$to/bin/busybox"
	cp /lib/ld-musl-*.so.1 "$to/lib/"
	for name in $("$to/bin/busybox" --list); do
		[ "$name" = busybox ] || ln -s busybox "$to/bin/$name"
	done
	echo root:x:0:0::/root:/bin/sh >"$to/etc/passwd"
	echo root:x:0: >"$to/etc/group"
	(umask 077 && echo 'root:*:20000:0:99999:7:::' >"$to/etc/shadow")
}

# ubuntu_root is Debian 13 with the user of Ubuntu's images. No mirror of Ubuntu is needed.
ubuntu_root() {
	local to=$1
	if [ ! -e "$CACHE/root-ubuntu.tar" ]; then
		mmdebstrap --quiet --variant=minbase --mode=root --include=bash,python3-minimal,ca-certificates trixie "$CACHE/root-ubuntu.new.tar" "$(mirror)" >&2
		mv "$CACHE/root-ubuntu.new.tar" "$CACHE/root-ubuntu.tar"
	fi
	mkdir -p "$to"
	tar -C "$to" --exclude='./dev/*' -xf "$CACHE/root-ubuntu.tar"
	echo ubuntu:x:1000:1000:Ubuntu:/home/ubuntu:/bin/bash >>"$to/etc/passwd"
	echo ubuntu:x:1000: >>"$to/etc/group"
	install -d -o 1000 -g 1000 -m 750 "$to/home/ubuntu"
}

# ssh_files: the policy leaves out keys of the machine and shows the rest.
ssh_files() {
	mkdir -p "$1/etc/ssh"
	echo '# of the client' >"$1/etc/ssh/ssh_config"
	(umask 077 && echo key >"$1/etc/ssh/ssh_host_ed25519_key")
}

# image_build ENGINE KIND makes the images of a kind: without a working directory, with one of
# root, and with one of a user.
image_build() {
	local engine=$1 kind=$2 dir=$work/image-$2 base=places:root
	export DOCKER_BUILDKIT=0
	image_context "$work/agentsh"
	$engine build -q -t agentsh -f "$root/packaging/docker/Dockerfile" "$work/agentsh" >/dev/null
	case $kind in
	alpine | ubuntu)
		"${kind}_root" "$dir"
		ssh_files "$dir"
		tar -C "$dir" -cf - . | $engine import - "places:$kind" >/dev/null
		rm -rf --one-file-system "$dir"
		base=places:$kind
		;;
	esac
	base_context "$kind" "$dir"
	ssh_files "$dir"
	mkdir -p "$dir/usr/local/share"
	cp "$here/image-job.sh" "$dir/usr/local/share/job.sh"
	chmod -R go+rX "$dir/usr"
	mkdir -p "$work/empty"
	{ printf 'FROM %s\nCOPY . /\nCOPY --from=agentsh / /\n' "$base"; image_lines "$kind"; } | $engine build -q -t "$kind" -f - "$dir" >/dev/null
	printf 'FROM %s\nWORKDIR /work\nENTRYPOINT ["agentsh", "exec", "--"]\n' "$kind" | $engine build -q -t "$kind-root" -f - "$work/empty" >/dev/null
	printf 'FROM %s\nCOPY --chown=1000:1000 . /project\nWORKDIR /project\nUSER 1000:1000\nENTRYPOINT ["agentsh", "exec", "--"]\n' "$kind" |
		$engine build -q -t "$kind-user" -f - "$work/empty" >/dev/null
	rm -rf --one-file-system "$dir"
}

# image_rows runs the job as root and as a user, with a working directory and without, by
# ENTRYPOINT and by name.
image_rows() {
	local engine=$1 kind=$2 row
	for row in "root, WORKDIR, ENTRYPOINT:$kind-root" "root, no WORKDIR:$kind agentsh exec --" \
		"user, WORKDIR, ENTRYPOINT:$kind-user" "user, no WORKDIR:--user 1000:1000 $kind agentsh exec --"; do
		# shellcheck disable=SC2086 # flags and words
		$engine run --rm ${row#*:} sh /usr/local/share/job.sh "$kind" 2>"$work/image.log" | sed "s/^/${row%%:*}: /"
		printf '%s: told\t%s\n' "${row%%:*}" "$(grep -c '^agentsh: note: ' "$work/image.log")"
		cat "$work/image.log" >&2
	done
}

# place_docker_examples runs what examples/containers says, with Compose and the program of
# development containers.
place_docker_examples() {
	local to=$work/examples cli=$CACHE/devcontainers-0.89.0
	export DOCKER_BUILDKIT=0 COMPOSE_DOCKER_CLI_BUILD=0
	docker_ready
	image_context "$work/agentsh"
	docker build -q -t agentsh -f "$root/packaging/docker/Dockerfile" "$work/agentsh" >/dev/null
	docker tag places:root debian:12 # its FROM
	cp -r "$root/examples/containers" "$to"
	chown -R 1000:1000 "$to"
	cd "$to" || return
	printf 'compose\t%s\n' "$(docker-compose run --rm work sh -c ': >made && echo "in $PWD as $(id -u)"' | tail -1)"
	[ -x "$cli/node_modules/.bin/devcontainer" ] || npm install --silent --no-audit --no-fund --prefix "$cli" @devcontainers/cli@0.89.0 >&2
	set -- --workspace-folder . --docker-path "$(command -v docker)"
	printf 'devcontainer, started\t%s\n' "$("$cli/node_modules/.bin/devcontainer" up "$@" --buildkit never | grep -o '"outcome":"[a-z]*"')"
	printf 'devcontainer\t%s\n' "$("$cli/node_modules/.bin/devcontainer" exec "$@" agentsh exec -- sh -c ': >made && echo "in $PWD as $(id -u)"')"
	printf 'devcontainer, written\t%s\n' "$(stat -c %u "$to/made")"
	docker ps -q | xargs -r docker rm -f >/dev/null
}

docker_image() {
	docker_ready
	image_build docker "$1"
	image_rows docker "$1"
}

podman_image() {
	podman_ready
	local status=0
	image_build podman "$1" && image_rows 'podman --log-level=error' "$1" || status=$?
	umount "$work/podman-root/overlay" 2>/dev/null || true
	return $status
}

for kind in debian ubuntu node python golang alpine; do
	eval "place_docker_$kind() { docker_image $kind; }; place_podman_$kind() { podman_image $kind; }"
done
unset kind
