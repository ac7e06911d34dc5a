#!/bin/bash
# attack: ordinary work goes on
set -u
cd "$(mktemp -d "${WORKDIR:-/tmp}/own.XXXXXX")" || { echo "RESULT error workdir"; exit; }
result() { echo "RESULT $*"; exit; }
printf "#!/bin/bash\necho one\n" >s; chmod 755 s; [ "$(bash s)" = one ] || result blocked
[ "$(printf "b\na\n" | sort | head -1)" = a ] || result blocked
result allowed
