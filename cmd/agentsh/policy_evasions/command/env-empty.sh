env -i "$T" $A
