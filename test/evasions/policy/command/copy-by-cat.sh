cat "$T" > ./innocent; chmod 755 ./innocent; ./innocent $A
