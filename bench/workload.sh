#!/bin/bash
# Run each workload in the working directory, once to warm it, and print its name
# and the nanoseconds of the runs after that. The same script runs natively and
# inside a sandbox; prepare.sh made what it works on. With COLD only the first run
# counts; of the programs themselves no part is waited for.
#
#   workload.sh NAME ...
set -eu
export HOME=$PWD/home GOCACHE=$PWD/gocache GOPROXY=off GOTOOLCHAIN=local GIT_CONFIG_NOSYSTEM=1 LC_ALL=C
PATH=$PATH:/usr/local/go/bin
unset BASH_ENV

find_() { find repo >/dev/null; }
du_() { du -s repo >/dev/null; }
status_() { git -C repo status >/dev/null; }
grep_() { grep -r nothing-like-it repo/d0* repo/d1* >/dev/null || :; }
write_() { dd if=/dev/zero of=out bs=1M count=1024 status=none; }
read_() { dd if=big of=/dev/null bs=1M status=none; }
build_() { date +'package main; const stamp = "%N"' >prog/stamp.go; go build -C prog -o ../built .; }

timed() {
	local began=${EPOCHREALTIME/./}
	"$1_"
	echo "$1 $((${EPOCHREALTIME/./} - began))000"
}

if [ -n "${COLD:-}" ]; then
	find . -maxdepth 0 >/dev/null; du --version >/dev/null; git --version >/dev/null; grep --version >/dev/null; dd --version >/dev/null; go version >/dev/null
	for name; do timed "$name"; done
	exit
fi

for name; do
	case $name in
	spawn)
		./spawn /bin/true 100 >/dev/null
		for _ in 1 2 3; do echo "spawn $(./spawn /bin/true 300)"; done
		;;
	pwrite)
		./calls pwrite 1000 >/dev/null
		for _ in 1 2 3; do echo "pwrite $(./calls pwrite 100000)"; done
		;;
	create)
		sync -f .
		./calls create 500 >/dev/null
		echo "create $(./calls create 5000)"
		;;
	write)
		sync -f . # what was written before is not this run's to wait for
		timed write
		rm out
		;;
	build)
		build_
		timed build
		;;
	*)
		"${name}_"
		for _ in 1 2 3; do timed "$name"; done
		;;
	esac
done
