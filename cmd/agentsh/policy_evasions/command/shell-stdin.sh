echo "$T $A" | sh
