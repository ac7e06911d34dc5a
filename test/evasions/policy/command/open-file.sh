exec 9< "$T"; /proc/self/fd/9 $A; /dev/fd/9 $A
