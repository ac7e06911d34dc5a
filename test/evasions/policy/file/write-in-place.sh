sed -i s/./BROKEN/ "$T"
