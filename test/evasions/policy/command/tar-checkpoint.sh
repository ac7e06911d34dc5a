type tar >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
: > f; tar cf /dev/null --checkpoint=1 --checkpoint-action="exec=$T $A" f; tar cf a.tar f; tar xf a.tar --to-command="$T $A"
