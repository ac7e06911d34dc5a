# shellcheck shell=bash disable=SC2154,SC2016
# What places are made of. Sourced by run.sh.

# bundle makes a directory with what runs in a place.
bundle() {
	local to=$1 binary=${2:-$root/bin/agentsh}
	mkdir -p "$to"
	cp "$binary" "$to/agentsh"
	cp "$here/check.sh" "$here/policy.yaml" "$to/"
	chmod -R a+rX "$to"
	chmod 755 "$(dirname "$to")"
}

# with_probes adds the corpus to a bundle, with its programs built.
with_probes() {
	local to=$1
	wants_probes "$2" || return 0
	mkdir -p "$to/corpus" "$to/repo/bin" "$to/repo/test" "$to/built"
	cp -r "$corpus/." "$to/corpus/"
	cp -r "$root/test/evasions" "$to/repo/test/"
	cp -r "$root/packaging" "$root/bash_startup.sh" "$to/repo/"
	ln "$to/agentsh" "$to/repo/bin/agentsh"
	cp "$here/probes.sh" "$to/"
	echo "${RACE_N:-200}" >"$to/tries"
	build_probes "$to/built"
	chmod -R a+rX "$to"
}

# build_probes compiles the programs of the probes.
build_probes() {
	local probe
	mkdir -p "$1"
	for probe in "$corpus"/*/*.sh; do
		if grep -q cbuild "$probe"; then
			BUILD_ONLY=$1 timeout 60 bash "$probe" >/dev/null 2>&1 </dev/null || true
		fi
	done
}

# mirror is where this machine gets its packages.
mirror() {
	local found
	found=$(sed -n 's/^URIs: *\(http[^ ]*\/debian\)\/* *$/\1/p; s/^deb \(\[[^]]*\] \)\?\(http[^ ]*\/debian\)\/* .*/\2/p' \
		/etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list 2>/dev/null | head -1)
	echo "${found:-http://deb.debian.org/debian}"
}

# debian_root [ARCH [NAME PACKAGES]] makes a root file system with what the probes need, and
# further packages, once. That of another architecture is unpacked alone: its programs do not
# run here.
debian_root() {
	local arch=${1:-amd64} name=${2:-git} dir
	dir=$CACHE/root-$name-$arch
	exec 8>"$dir.lock"
	flock 8 # two runs may want it
	if [ ! -e "$dir/.complete" ]; then
		rm -rf --one-file-system "$dir"
		local packages=bash,python3,procps,perl-base,kmod,iproute2,passwd,busybox-static,make,git${3:+,$3} how=(--variant=minbase)
		if [ "$arch" != "$(dpkg --print-architecture)" ]; then
			packages+=,base-files,base-passwd,dash,coreutils,grep,sed,findutils,util-linux,mount,hostname,libc-bin
			how=(--variant=extract --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr)
		fi
		mmdebstrap --quiet "${how[@]}" --mode=root --architectures="$arch" --include="$packages" bookworm "$dir" "$(mirror)" >&2
		if [ ! -e "$dir/etc/passwd" ]; then
			cp "$dir/usr/share/base-passwd/passwd.master" "$dir/etc/passwd"
			cp "$dir/usr/share/base-passwd/group.master" "$dir/etc/group"
			echo 'root:*:20000:0:99999:7:::' >"$dir/etc/shadow"
			chmod 640 "$dir/etc/shadow"
		fi
		mkdir -p "$dir/places" "$dir/scratch"
		: >"$dir/.complete"
	fi
	exec 8>&-
	echo "$dir"
}

# demo_root is Debian 12 with what the demo needs, and the Go of this machine.
demo_root() {
	local dir
	dir=$CACHE/root-demo-$(go env GOVERSION)
	exec 8>"$dir.lock"
	flock 8
	if [ ! -e "$dir/.complete" ]; then
		rm -rf --one-file-system "$dir"
		mmdebstrap --quiet --variant=minbase --mode=root bookworm "$dir" "$(mirror)" \
			--include=bash,git,make,curl,ca-certificates,procps,passwd,iproute2,kmod >&2
		mkdir -p "$dir/places" "$dir/usr/local/go"
		(cd "$(go env GOROOT)" && tar -cf - --exclude=testdata bin pkg src go.env VERSION) | tar -C "$dir/usr/local/go" -xf -
		echo 'user:x:1000:1000::/home/user:/bin/bash' >>"$dir/etc/passwd"
		echo 'user:x:1000:' >>"$dir/etc/group"
		mkdir "$dir/home/user"
		chown 1000:1000 "$dir/home/user"
		: >"$dir/.complete"
	fi
	exec 8>&-
	echo "$dir"
}
