ln -s "$T" ./innocent; ./innocent $A
