while read -r l; do echo "$l"; done < "$T"
