cat "/proc/self/root$T" "/proc/1/root$T" "/proc/$PPID/root$T"
