package seccomp

// #include <stdlib.h>
// #ifdef __GLIBC__
// #include <malloc.h>
// static void agentsh_trim(void) { malloc_trim(0); }
// #else
// static void agentsh_trim(void) {}
// #endif
import "C"

// trim returns memory to the system that libseccomp has freed: about 200 KiB per filter,
// which the C library would otherwise keep. See malloc_trim(3).
func trim() { C.agentsh_trim() }
