cat "$T"
