type bash >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
timeout 2 bash -c ': < /dev/tcp/$H/$P' && echo "$M"
