rm -f "$T"
