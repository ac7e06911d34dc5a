#!/bin/bash
# Run tests of sessions and the corpus of bypasses on arm64, in virtual machines without
# hardware support.
#
#   run.sh [PART ...]      PACKAGE or corpus, with :ENGINE; default: all with both engines
#
# A PACKAGE is one of seccomp seccomp/target supervisor/notify supervisor/launch supervisor/probe
# supervisor; an ENGINE is listener or trace. Each part has a machine of its own.
#
# CACHE     kernels and the root file system, made when they are missing (/var/tmp/agentsh-places)
# KERNEL    a suite of Debian and its package: trixie/linux-image-cloud-arm64
# EVASIONS  the corpus of bypasses
# RACE_N    tries of its races (20)
# RUN       tests to run, as -run of go test has it
#
# Programs come from bin/arm64. Emulation is ten to thirty times slower than a machine. The
# exit status is 0 if each part has ended without a failure.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export CACHE=${CACHE:-/var/tmp/agentsh-places}
corpus=${EVASIONS:-$root/../shared/evasions}
kernel=${KERNEL:-trixie/linux-image-cloud-arm64}
[ "$(id -u)" = 0 ] || { echo "arm64: needs root to make machines" >&2; exit 2; }
mkdir -p "$CACHE"
work=$(mktemp -d /var/tmp/arm64-run.XXXXXX)
trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$work"' EXIT

# shellcheck source=test/places/common.sh
. "$root/test/places/common.sh"
# shellcheck source=test/places/vm.sh
. "$root/test/places/vm.sh"

# What the trace engine cannot hold, and what only a listener has: as in "make trace".
listener_only=$(sed -n "s/^\t\t'\(.*\)' \\\\\$/\1/p" "$root/Makefile" | head -1)

# test_program PACKAGE builds the tests of a package. Sources are found by their path, so the
# machine has the tree where it is here.
test_program() {
	(cd "$root" && GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc PKG_CONFIG_LIBDIR=/usr/lib/aarch64-linux-gnu/pkgconfig \
		"${GO:-go}" test -c -tags netgo,osusergo -ldflags '-s -w -linkmode external -extldflags -static' -o "$2" "./$1")
}

# numbers DIRECTORY gives the probes of a corpus the numbers of system calls of arm64. From 424 on
# they are the same. Probes of calls that arm64 does not have (open, modify_ldt) are for x86-64 alone.
numbers() {
	local number script=()
	for number in 101=117 129=138 163=89 165=40 170=161 248=217 254=27 265=37 272=97 294=26 297=240 298=241 308=268 \
		316=276 317=277 319=279 322=281 323=282; do
		script+=(-e "s/\\b(sc|syscall)\\(${number%=*}\\b/\\1(ARM${number#*=}/g")
	done
	sed -i -E "${script[@]}" -e 's/\(ARM/(/g' -e 's/__NR_unlink\b/__NR_unlinkat/' "$1"/*/*.sh
	grep -lE '\b(sc|syscall)\((2|154),' "$1"/*/*.sh | xargs -r sed -i -e 's/^# needs: .*/# needs: x86-64/'
}

# machine PART runs one part.
machine() {
	local part=$1 package=${1%:*} engine=${1##*:} dir files
	rm -rf "$work/places"
	mkdir -p "$work/places"
	dir=$(debian_root arm64 tests gcc,libc6-dev,dash,diffutils,tar,gzip,findutils,curl,inotify-tools,bsdutils,debianutils)
	files=$(fetch_kernel "${kernel%/*}" arm64 "${kernel#*/}")
	cp "$here/job.sh" "$work/places/"
	cp "$root/bin/arm64/agentsh" "$work/places/agentsh"
	echo "$root" >"$work/places/root"
	git -C "$root" ls-files -z | tar -C "$root" --null -T - --ignore-failed-read -czf "$work/places/tree.tar.gz" 2>/dev/null
	case $package in
	corpus)
		mkdir "$work/places/corpus" "$work/places/built"
		cp -r "$corpus/." "$work/places/corpus/"
		numbers "$work/places/corpus"
		echo "${RACE_N:-20}" >"$work/places/tries"
		local probe
		for probe in "$work/places/corpus"/*/*.sh; do
			if grep -q cbuild "$probe"; then
				CC=aarch64-linux-gnu-gcc BUILD_ONLY=$work/places/built timeout 60 bash "$probe" >/dev/null 2>&1 </dev/null || true
			fi
		done
		printf 'CATEGORIES="%s"\ncorpus %s\n' "${CATEGORIES:-}" "$engine" >"$work/places/parts"
		;;
	*)
		test_program "$package" "$work/places/test"
		printf "RUN='%s' LIMIT='${LIMIT:-90m}' SKIP='%s'\ntests %s %s /places/test %s\n" "${RUN:-}" "$([ "$engine" = listener ] || echo "$listener_only")" \
			"$part" "$engine" "$package" >"$work/places/parts"
		;;
	esac
	chmod -R a+rX "$work/places"
	local modules=(tcp_diag udp_diag) # without them no connection is attributed
	make_initramfs "$files" "$(arm64_busybox)"
	make_disk "$dir" 2500
	memory=2048 boot "$files" "${SECONDS_OF_MACHINE:-7200}" "${emulator_arm64[@]}"
}

[ $# -gt 0 ] || set -- seccomp:listener seccomp/target:listener supervisor/launch:listener supervisor/probe:listener \
	supervisor/notify:listener supervisor/notify:trace supervisor:listener supervisor:trace corpus:listener corpus:trace
failed=0
for part; do
	result=ok
	set +e
	(
		set -e
		machine "$part"
	) >"$work/out" 2>"$work/log"
	status=$?
	set -e
	[ "$status" = 0 ] || result="FAIL: $(tail -1 "$work/log")"
	said=$(tr -d '\r' <"$work/out" | sed -n 's/^result\t[^\t]*\t//p')
	[[ $said == *"exit 0" ]] || result=FAIL
	printf '%-26s %s %s\n' "$part" "$said" "$result"
	if [ "$result" != ok ]; then
		failed=$((failed + 1))
		tr -d '\r' <"$work/out" | grep -avE '^=== |^ *--- (PASS|SKIP)' | tail -300
		tail -40 "$work/log"
	fi
done
[ "$failed" = 0 ]
