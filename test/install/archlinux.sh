# The Arch package, by pacman into a root.
# shellcheck shell=bash
root=$WORK/archlinux
new_root archlinux
mkdir -p "$root/var/lib/pacman" "$WORK/gpg"
printf '[options]\nArchitecture = auto\nSigLevel = Never\n' >"$WORK/pacman.conf"
pac() { pacman --config "$WORK/pacman.conf" --root "$root" --dbpath "$root/var/lib/pacman" --logfile "$WORK/pacman.log" --gpgdir "$WORK/gpg" --noconfirm "$@"; }
case $ARCH in
amd64) file=$(echo "$PACKAGES"/agentsh-*-x86_64.pkg.tar.zst) ;;
*) file=$(echo "$PACKAGES"/agentsh-*-aarch64.pkg.tar.zst) ;;
esac

expect 0 '' pac -Udd "$WORK"/old/*.pkg.tar.zst
edit "$root"
expect 0 'config.yaml.pacnew' pac -Udd "$file"
edited "$root"
rm "$root/etc/agentsh/config.yaml.pacnew"
installed "$root"
check_installation "$root"
check_bash_startup "$root"

expect 0 'config.yaml.pacsave' pac -Rdd agentsh
rm "$root/etc/agentsh/config.yaml.pacsave" && rmdir "$root/etc/agentsh"
rm -r "$root/var/lib/pacman"
gone "$root"
