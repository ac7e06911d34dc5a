env "$T" $A
