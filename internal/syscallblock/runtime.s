// The functions have no body here: a file of assembly lets the compiler accept that.
