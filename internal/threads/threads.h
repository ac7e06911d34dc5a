#include <stdint.h>

/* Ends what a socket is for, by its shutdown, when no thread can be started for a while.
   Returns a slot, or -1. The socket stays open until threads_release. */
int threads_guard(int fd);

/* Nonzero: the socket was shut down. */
int threads_release(int slot);

/* Milliseconds since a thread could not be started; -1: never. */
int64_t threads_failed(void);
