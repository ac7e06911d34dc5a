env -S "$T $A"
