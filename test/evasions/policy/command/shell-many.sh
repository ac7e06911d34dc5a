i=0; while [ $i -lt 200 ]; do :; i=$((i+1)); done; : & : | : ; "$T" $A
