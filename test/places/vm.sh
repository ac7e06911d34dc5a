# shellcheck shell=bash disable=SC2154,SC2016
# Kernels of Debian in virtual machines, without hardware support. Sourced by run.sh.

# suite NAME is what apt needs to read one suite without touching this machine's lists.
apt_suite() {
	local suite=$1 arch=$2 dir=$CACHE/apt/$1-$2 uri
	uri=$(mirror)
	case $suite in *-security) uri=${uri%/debian}/debian-security ;; esac
	mkdir -p "$dir"/etc/apt/{sources.list.d,preferences.d,apt.conf.d} "$dir"/var/lib/apt/lists/partial "$dir"/var/cache/apt/archives/partial "$dir"/var/lib/dpkg
	: >"$dir/var/lib/dpkg/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" >"$dir/etc/apt/sources.list"
	apt_options=(-o "Dir=$dir" -o "Dir::State::status=$dir/var/lib/dpkg/status" -o APT::Sandbox::User=root
		-o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o Acquire::Languages=none)
	apt-get -qq "${apt_options[@]}" update >&2
}

# fetch_kernel unpacks the cloud kernel that a suite has now, once a day.
fetch_kernel() {
	local suite=$1 arch=$2 meta=$3 to=$CACHE/kernel-$1-$2-$3 packages
	if [ -z "$(find "$to/.complete" -mtime -1 2>/dev/null)" ]; then
		apt_suite "$suite" "$arch"
		# the image the meta package depends on, and its parts where it is split
		packages=$(apt-cache "${apt_options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$meta" |
			grep -oE '^linux-(image|base|binary|modules)-[0-9][^ :]*' | sort -u)
		[ -n "$packages" ] || { echo "no kernel behind $meta in $suite" >&2; return 1; }
		rm -rf "$to"
		mkdir -p "$to/debs"
		# shellcheck disable=SC2086 # a list
		(cd "$to/debs" && apt-get -qq "${apt_options[@]}" download $packages >&2)
		for packages in "$to"/debs/*.deb; do dpkg-deb -x "$packages" "$to"; done
		rm -rf "$to/debs"
		[ -d "$to/lib/modules" ] || ln -s ../usr/lib/modules "$to/lib/modules" 2>/dev/null || { mkdir -p "$to/lib" && ln -s ../usr/lib/modules "$to/lib/modules"; }
		if [ ! -d "$to/boot" ]; then # newer ones have it among their modules
			mkdir "$to/boot"
			ln "$to"/lib/modules/*/vmlinuz "$to/boot/vmlinuz-$(basename "$to"/lib/modules/*)"
		fi
		: >"$to/.complete"
	fi
	echo "$to"
}

# initramfs holds busybox and the modules that the disk and the file server need, and those of
# the array modules.
make_initramfs() {
	local kernel=$1 busybox=$2 dir=$work/initramfs version name
	version=$(basename "$(echo "$kernel"/lib/modules/*)")
	rm -rf "$dir"
	mkdir -p "$dir"/{bin,mods,proc,sys,dev,root}
	cp "$busybox" "$dir/bin/busybox"
	depmod -b "$kernel" "$version"
	: >"$dir/order"
	for name in virtio_pci virtio_blk ext4 fuse overlay "${modules[@]}"; do
		# one that is built in needs nothing
		modprobe -d "$kernel" -S "$version" --show-depends "$name" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' | while read -r file; do
			local plain=${file##*/}
			plain=${plain%.xz}
			plain=${plain%.zst}
			[ ! -e "$dir/mods/$plain" ] || continue
			case $file in
			*.xz) xz -dc "$file" >"$dir/mods/$plain" ;;
			*.zst) zstd -qdc "$file" >"$dir/mods/$plain" ;;
			*) cp "$file" "$dir/mods/$plain" ;;
			esac
			echo "$plain" >>"$dir/order"
		done
	done
	cat >"$dir/init" <<-'INIT'
		#!/bin/busybox sh
		/bin/busybox mount -t proc proc /proc
		/bin/busybox mount -t sysfs sysfs /sys
		/bin/busybox mount -t devtmpfs dev /dev
		while read -r m; do /bin/busybox insmod "/mods/$m"; done </order
		for i in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vda ] && break; /bin/busybox sleep 1; done
		/bin/busybox mount -t ext4 /dev/vda /root || /bin/busybox poweroff -f
		/bin/busybox mount --move /dev /root/dev
		/bin/busybox umount /proc /sys
		exec /bin/busybox switch_root /root /places/guest.sh
	INIT
	chmod 755 "$dir/init"
	(cd "$dir" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initramfs.gz"
}

# make_disk is a root with the bundle, as an image of so many megabytes. Its first process
# makes what a machine has, runs job.sh of the bundle and switches the machine off.
make_disk() {
	local dir=$1 size=${2:-1500} tree=$work/disk
	rm -rf "$tree" "$work/disk.img"
	cp -a --reflink=auto "$dir" "$tree"
	mkdir -p "$tree/places"
	cp -a "$work/places/." "$tree/places/"
	cat >"$tree/places/guest.sh" <<-'GUEST'
		#!/bin/bash
		# Process 1 of the machine: what a session and the checks expect to be there.
		export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		exec >/dev/console 2>&1 </dev/null
		mount -t proc proc /proc
		mount -t sysfs sysfs /sys
		mount -t cgroup2 cgroup2 /sys/fs/cgroup
		echo "+memory +pids +cpu" >/sys/fs/cgroup/cgroup.subtree_control
		mkdir -p /dev/shm /dev/pts
		mount -t tmpfs -o mode=1777 tmpfs /dev/shm
		mount -t devpts devpts /dev/pts
		mount -t tmpfs -o mode=1777 tmpfs /tmp
		mount -t tmpfs -o mode=755 tmpfs /run
		ln -sfn /proc/self/fd /dev/fd
		ip link set lo up
		hostname places
		echo "=== begin $(uname -r)"
		bash /places/job.sh 2>/tmp/errors
		echo "=== end"
		cat /tmp/errors
		echo o >/proc/sysrq-trigger
		sleep 60
	GUEST
	chmod 755 "$tree/places/guest.sh"
	truncate -s "${size}M" "$work/disk.img"
	mkfs.ext4 -q -F -O ^has_journal -d "$tree" "$work/disk.img"
	rm -rf "$tree"
}

# boot runs the machine until it switches itself off, at most so many seconds. The emulator is
# that of an architecture with arguments.
boot() {
	local kernel=$1 seconds=$2 program
	program=$(qemu "$3")
	shift 3
	timeout "$seconds" "$program" "$@" -m "${memory:-1024}" -smp 2 -nographic -no-reboot -nic none \
		-kernel "$(echo "$kernel"/boot/vmlinuz-*)" -initrd "$work/initramfs.gz" \
		-drive "file=$work/disk.img,if=virtio,format=raw" </dev/null >"$work/console" 2>&1 || true
	if ! grep -aq '^=== end' "$work/console"; then
		tail -30 "$work/console" >&2
		echo "the machine did not finish" >&2
		return 1
	fi
	sed -n '/^=== end/,$p' "$work/console" >&2
	sed -n '/=== begin/,/^=== end/p' "$work/console"
}

# qemu ARCHITECTURE is an emulator of version 8 or newer: under that of Debian 12 kernels from
# Linux 6.12 panic. Where the machine has an older one, the backport is unpacked, once. It ends when it
# loads a module of the older one, so it has a mount namespace without these.
qemu() {
	local program=qemu-system-$1 package=qemu-system-x86 dir=$CACHE/qemu-$1 file
	[ "$1" = x86_64 ] || package=qemu-system-arm
	if ! "$program" --version 2>/dev/null | grep -qE 'version ([89]|[1-9][0-9])\.'; then
		if [ ! -e "$dir/.complete" ]; then
			apt_suite bookworm-backports "$(dpkg --print-architecture)"
			rm -rf "$dir"
			mkdir -p "$dir/debs"
			(cd "$dir/debs" && apt-get -qq "${apt_options[@]}" download "$package" qemu-system-common qemu-system-data seabios >&2)
			for file in "$dir"/debs/*.deb; do dpkg-deb -x "$file" "$dir"; done
			rm -rf "$dir/debs"
			: >"$dir/.complete"
		fi
		mkdir -p "$dir/alone"
		cat >"$dir/alone/$program" <<-ALONE
			#!/bin/sh
			exec unshare -m sh -c 'for d in /usr/lib/*/qemu; do [ ! -d "\$d" ] || mount -t tmpfs none "\$d" || exit; done; exec "\$0" "\$@"' $dir/usr/bin/$program "\$@"
		ALONE
		chmod 755 "$dir/alone/$program"
		program=$dir/alone/$program # the emulator finds its firmware beside itself
	fi
	"$program" --version >/dev/null || return
	echo "$program"
}

# vhost_device_vsock is the program of that name, which is in Debian's sid alone. It runs on Debian 12.
vhost_device_vsock() {
	local dir=$CACHE/vhost-device-vsock
	if [ ! -e "$dir/.complete" ]; then
		apt_suite sid "$(dpkg --print-architecture)"
		rm -rf "$dir"
		mkdir -p "$dir/debs"
		(cd "$dir/debs" && apt-get -qq "${apt_options[@]}" download vhost-device-vsock >&2)
		dpkg-deb -x "$dir"/debs/*.deb "$dir"
		rm -rf "$dir/debs"
		: >"$dir/.complete"
	fi
	"$dir/usr/bin/vhost-device-vsock" --version >/dev/null || return
	echo "$dir/usr/bin/vhost-device-vsock"
}

# emulator is what runs an amd64 kernel.
# shellcheck disable=SC2054 # commas of the emulator
emulator=(x86_64 -accel tcg,thread=multi -cpu max -append "console=ttyS0 quiet panic=-1 mitigations=off")

# checks_job is the job of a machine that runs the checks and the probes.
checks_job() {
	cat >"$work/places/job.sh" <<-'JOB'
		sh /places/check.sh /places
		[ ! -e /places/probes.sh ] || bash /places/probes.sh
	JOB
}

# kernel_place SUITE runs the checks on an amd64 kernel.
kernel_place() {
	local place=$1 suite=$2 dir kernel
	dir=$(debian_root)
	kernel=$(fetch_kernel "$suite" amd64 linux-image-cloud-amd64)
	bundle "$work/places"
	RACE_N=${RACE_N:-20} with_probes "$work/places" "$place"
	checks_job
	make_initramfs "$kernel" "$(command -v busybox)"
	make_disk "$dir"
	boot "$kernel" 1500 "${emulator[@]}"
}

place_kernel_5_10() { kernel_place "$1" bullseye-security; }
place_kernel_6_1() { kernel_place "$1" bookworm-security; }
place_kernel_6_12() { kernel_place "$1" trixie; }
place_kernel_newest() { kernel_place "$1" sid; }

# emulator_arm64 is what runs an arm64 kernel.
# shellcheck disable=SC2054 # commas of the emulator
emulator_arm64=(aarch64 -M "virt,gic-version=3" -cpu "max,pauth-impdef=on" -accel "tcg,thread=multi"
	-append "console=ttyAMA0 quiet panic=-1")

# arm64_busybox is a busybox for arm64, downloaded once.
arm64_busybox() {
	local dir=$CACHE/busybox-arm64
	if [ ! -x "$dir/bin/busybox" ]; then
		apt_suite bookworm arm64
		rm -rf "$dir"
		mkdir -p "$dir"
		(cd "$dir" && apt-get -qq "${apt_options[@]}" download busybox-static >&2 && dpkg-deb -x busybox-static_*.deb .)
	fi
	echo "$dir/bin/busybox"
}

place_arm64_6_1() {
	local dir kernel
	dir=$(debian_root arm64)
	kernel=$(fetch_kernel bookworm-security arm64 linux-image-cloud-arm64)
	bundle "$work/places" "$root/bin/arm64/agentsh"
	checks_job
	make_initramfs "$kernel" "$(arm64_busybox)"
	make_disk "$dir"
	boot "$kernel" 1500 "${emulator_arm64[@]}"
}
