cp "$T" ./innocent && exec 9< ./innocent && rm ./innocent && /proc/self/fd/9 $A
