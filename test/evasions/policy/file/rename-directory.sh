mv "${T%/*}" ./d 2>/dev/null && cat "./d/${T##*/}"
