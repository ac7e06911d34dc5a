#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>

/* One arena for all threads. Otherwise each thread gets one, and keeps the memory that
 * the compiler of filters used in it once. C allocates nothing else here. */
__attribute__((constructor)) static void one_arena(void)
{
	mallopt(M_ARENA_MAX, 1);
}
#endif
