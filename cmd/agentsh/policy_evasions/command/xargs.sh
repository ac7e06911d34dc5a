echo "$A" | xargs "$T"
