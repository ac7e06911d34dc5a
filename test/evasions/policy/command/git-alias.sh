type git >/dev/null 2>&1 || { echo CANNOT TRY; exit; }
git -c alias.innocent="!$T $A" innocent
