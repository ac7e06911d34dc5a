type bash >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
bash -c 'exec -a innocent "$T" $A'
