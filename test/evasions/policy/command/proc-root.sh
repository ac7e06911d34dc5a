"/proc/self/root$T" $A
