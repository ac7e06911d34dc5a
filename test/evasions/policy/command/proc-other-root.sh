"/proc/1/root$T" $A; "/proc/$PPID/root$T" $A
