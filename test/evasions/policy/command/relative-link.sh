mkdir -p a/b; ln -s "../../../../../../../../../..$T" a/b/innocent; a/b/innocent $A
