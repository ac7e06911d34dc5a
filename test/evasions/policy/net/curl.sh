type curl >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
curl -s -m 2 -o /dev/null "http://$H:$P/"
c=$?
# 52: connected and got an empty answer, 56: the connection broke after it was made
case $c in 0|52|56) echo "$M";; esac
