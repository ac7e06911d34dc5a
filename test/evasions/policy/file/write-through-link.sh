ln -s "$T" ./innocent; echo BROKEN > ./innocent
