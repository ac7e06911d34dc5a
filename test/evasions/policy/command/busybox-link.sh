b=$(find /bin/ /usr/bin/ -maxdepth 1 -name busybox 2>/dev/null | head -n 1)
[ -n "$b" ] || { echo CANNOT TRY; exit; }
ln -s "$b" "./${T##*/}"
cp "$b" ./busybox
for o in "$("./${T##*/}" --help 2>&1)" "$(./busybox "${T##*/}" --help 2>&1)"; do
	case $o in *"applet not found"*) ;; *BusyBox*) echo "$M";; esac
done
