echo BROKEN > ./new; ln -f ./new "$T"; ln -sf ./new "$T"
