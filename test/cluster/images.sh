#!/bin/bash
# Make the images of the cluster's tests and give them to containerd: images.sh DIRECTORY. They
# come from this machine: pause, agentsh (packaging/docker has the same files) and bare, which has
# directories alone. Pods mount /usr of this machine into it.
set -euo pipefail

dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# image NAME ROOT ENTRYPOINT: an archive as 'docker save' writes it.
image() {
	local name=$1 root=$2 entrypoint=$3 layer config
	tar -C "$root" --owner=0 --group=0 -cf "$work/layer.tar" .
	layer=$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)
	config='{"architecture":"amd64","os":"linux","config":{"Entrypoint":['$entrypoint']},"rootfs":{"type":"layers","diff_ids":["sha256:'$layer'"]}}'
	printf '%s' "$config" >"$work/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" >"$work/manifest.json"
	tar -C "$work" -cf "$work/image.tar" manifest.json config.json layer.tar
	ctr --address /run/containerd/containerd.sock -n k8s.io images import "$work/image.tar" >/dev/null
}

mkdir -p "$work/pause/bin"
cp /bin/busybox "$work/pause/bin/busybox"
image localhost/pause:1 "$work/pause" '"/bin/busybox","sleep","1000000"'

mkdir -p "$work/agentsh/usr/bin"
cp "$CLUSTER_AGENTSH" "$work/agentsh/usr/bin/agentsh"
cp "$CLUSTER_AGENTCTL" "$work/agentsh/usr/bin/agentctl"
image localhost/agentsh:1 "$work/agentsh" '"/usr/bin/agentsh"'

bare=$work/bare
mkdir -p "$bare"/{usr,etc/alternatives,root,run,proc,sys,dev,var/tmp,tmp,home,mnt}
chmod 1777 "$bare/tmp" "$bare/var/tmp"
for link in bin sbin lib lib64; do ln -s "usr/$link" "$bare/$link"; done
printf 'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n' >"$bare/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' >"$bare/etc/group"
printf 'root:*:1:0:99999:7:::\n' >"$bare/etc/shadow"
chmod 600 "$bare/etc/shadow"
cp /etc/ld.so.cache "$bare/etc/" # of the /usr that pods mount
image localhost/bare:1 "$bare" '"/bin/sh"'
# agentctl with git: what packaging/docker/agentctl.Dockerfile has, with the programs of this machine.
agentctl=$work/agentctl
cp -a "$bare" "$agentctl"
mkdir -p "$agentctl"/usr/{bin,lib,lib64,sbin}
cp "$CLUSTER_AGENTCTL" "$agentctl/usr/bin/agentctl"
cp -a /usr/bin/git /usr/bin/git-upload-pack /usr/bin/git-receive-pack "$agentctl/usr/bin/"
cp -a /usr/lib/git-core "$agentctl/usr/lib/"
for program in dash rm mv; do cp "/usr/bin/$program" "$agentctl/usr/bin/"; done
ln -sf dash "$agentctl/usr/bin/sh"
for program in git dash rm mv; do ldd "/usr/bin/$program"; done | grep -o '/lib[^ ]*' | sort -u | while read -r library; do
	mkdir -p "$agentctl/usr$(dirname "$library")"
	cp -L "$library" "$agentctl/usr$library"
done
image localhost/agentctl:1 "$agentctl" '"/usr/bin/agentctl"'
echo "images are in" >"$dir/log/images"
