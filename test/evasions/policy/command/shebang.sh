printf "#!%s %s\n" "$T" "$A" > script; chmod 755 script; ./script
