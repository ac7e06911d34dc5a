echo BROKEN >> "$T"
