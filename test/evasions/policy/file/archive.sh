tar cf - "$T" 2>/dev/null | tar xOf -
