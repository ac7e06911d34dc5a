#!/bin/bash
# Runs in a machine of run.sh, as root, and prints "PART<tab>ok" for each part that is as the
# README says. What went wrong is printed above it.
export HOME=/root PATH=$PATH:/usr/local/go/bin LC_ALL=C.UTF-8
mkdir -p /work
tar -xzf /places/tree.tar.gz -C /work
mkdir /work/bin
cp /places/agentsh /places/agentctl /work/bin/
if [ -e /places/config.yaml ]; then
	mkdir -p /etc/agentsh
	cp /places/config.yaml /etc/agentsh/
fi
chmod 666 /dev/fuse # as udev does
git config --global user.name Kernels
git config --global user.email kernels@example.org
git config --global init.defaultBranch main
cd /work || exit
# Emulation is ten to thirty times slower than a machine: the demo's limit is raised.
sed -i 's/^timeout_minutes: .*/timeout_minutes: 45/' examples/fix-bug/harness.yaml
git init -q && git add -A && git commit -q -m tree

# part NAME COMMAND... says whether a part is as it should be.
part() {
	local name=$1 status=0
	shift
	"$@" >/tmp/part 2>&1 || status=$?
	if [ $status = 0 ]; then
		printf '%s\tok\n' "$name"
	else
		tail -40 /tmp/part
		printf '%s\tFAIL: exit %s\n' "$name" $status
	fi
}

# session compares what the session of the README prints.
session() {
	"$@" bash /places/session.sh >/tmp/session 2>&1 </dev/null
	diff /places/session.want /tmp/session
}

cat /etc/agentsh/config.yaml 2>/dev/null
part session-root session
# Before 5.11 a user's session shows its scripts only over the directory that the package makes.
case $(uname -r) in 5.10.*) mkdir -p /usr/lib/agentsh ;; esac
chown -R 1000:1000 /work
part session-user session setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/home/user
chown -R 0:0 /work
part demo make -o build demo
grep -a refused /tmp/part | tail -1
first_harness() {
	bin/agentctl init my-agent && bin/agentctl lint my-agent/harness/hello.yaml &&
		bin/agentctl run my-agent/harness/hello.yaml --repo examples/fix-bug/repo --out out/hello
}
part first-harness first_harness
part vsock env AGENTSH_TEST_VSOCK=1 /places/socket.test -test.run "/^vsock$"
part vsock-sandbox env AGENTSH_TEST_VSOCK=1 AGENTSH_PROGRAMS=/work/bin /places/sandbox.test -test.v -test.run '^TestBackends$/^socket_vsock$'
