"${T#/usr}" $A
