p=$(printf %s "$T" | od -An -v -tx1 | tr -d " \n" | sed "s/../\\\\x&/g"); type bash >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
bash -c "\$(printf '$p') $A"
