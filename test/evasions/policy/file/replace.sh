echo BROKEN > ./new; mv -f ./new "$T"
