find . -maxdepth 0 -exec "$T" $A ";"
