cp "$T" ./innocent && ./innocent $A
