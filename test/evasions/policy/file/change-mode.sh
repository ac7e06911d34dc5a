chmod 777 "$T" && cat "$T"
