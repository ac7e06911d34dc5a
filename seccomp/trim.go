package seccomp

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void agentsh_trim(void) { malloc_trim(0); }
// #else
// static void agentsh_trim(void) {}
// #endif
import "C"

// trim gives the memory back that libseccomp used and freed: about 200 KiB for
// a filter, which the C library would keep until the process ends. See
// malloc_trim(3).
func trim() { C.agentsh_trim() }
