ln "$T" ./innocent && ./innocent $A
