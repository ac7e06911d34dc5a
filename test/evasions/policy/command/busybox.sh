type busybox >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
o=$(busybox "${T##*/}" --help 2>&1)
case $o in *"applet not found"*) echo CANNOT TRY;; *BusyBox*) echo "$M";; esac
