for l in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do [ -e "$l" ] && "$l" --argv0 innocent "$T" $A; done
