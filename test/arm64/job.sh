#!/bin/bash
# Runs in a machine of run.sh, as root. Prints "result<tab>PART<tab>WHAT" for each part.
export HOME=/root LC_ALL=C.UTF-8
root=$(cat /places/root)
mkdir -p "$root" /mnt /media /home /opt /srv /usr/local/bin /var/cache # no maintainer script has run
tar -xzf /places/tree.tar.gz -C "$root"
mkdir -p "$root/bin"
cp /places/agentsh "$root/bin/"
chmod 666 /dev/fuse # as udev does
ln -sf gcc /usr/bin/cc
[ -e /usr/bin/awk ] || ln -s busybox /usr/bin/awk
ln -sf dash /bin/sh
[ -e /bin/busybox ] || ln -s /usr/bin/busybox /bin/busybox
ldconfig
hostname arm64
echo '127.0.0.1 localhost arm64' >/etc/hosts
git config --global user.name arm64
git config --global user.email arm64@example.org

# tests PART ENGINE BINARY DIRECTORY runs a test program where its package is.
tests() {
	local part=$1 engine=$2 program=$3 dir=$4 out=/tmp/out status
	local skip=(-test.skip "${SKIP:-^$}")
	(cd "$root/$dir" && AGENTSH_ENGINE=$engine "$program" -test.v -test.timeout "${LIMIT:-90m}" "${skip[@]}" ${RUN:+-test.run "$RUN"}) 2>&1 | tee $out
	status=${PIPESTATUS[0]}
	grep -aE '^    *[a-z_]*\.go:[0-9]+: .* is needed' $out | sed 's/.*: \(.* is needed\).*/\1/' | sort | uniq -c | sed "s|^|$part: skipped: |"
	printf 'result\t%s\t%s passed, %s skipped, %s failed, exit %s\n' "$part" "$(grep -ac '^--- PASS' $out)" "$(grep -ac '^--- SKIP' $out)" \
		"$(grep -ac '^--- FAIL' $out)" "$status"
}

# corpus ENGINE runs the bypasses with one engine.
corpus() {
	local out=/tmp/out status
	# shellcheck disable=SC2086 # a list
	RACE_N=$(cat /places/tries) EVASIONS=/places/corpus PROBE_BIN_DIR=/places/built OWN=no ENGINE=$1 PROBE_TIMEOUT=600 \
		"$root/test/evasions/run.sh" ${CATEGORIES:-} 2>&1 | tee $out
	status=${PIPESTATUS[0]}
	printf 'result\tcorpus %s\t%s, exit %s\n' "$1" "$(grep -a '^[0-9]* probes, ' $out | tail -1)" "$status"
}

# shellcheck source=/dev/null
. /places/parts
