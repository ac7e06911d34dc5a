dd if="$T" 2>/dev/null
