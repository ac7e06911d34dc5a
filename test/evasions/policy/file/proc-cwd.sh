cd "${T%/*}" && cat "/proc/self/cwd/${T##*/}"
