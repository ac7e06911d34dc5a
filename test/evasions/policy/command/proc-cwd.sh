cd "${T%/*}" && "/proc/self/cwd/${T##*/}" $A
