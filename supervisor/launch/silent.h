/* Children whose execve is not answered: see silent.c. */
#ifndef AGENTSH_SILENT_H
#define AGENTSH_SILENT_H

#include <pthread.h>
#include <stdint.h>

struct silent;

/* Begins to watch the next child of a thread of this process; NULL: it cannot. */
struct silent *silent_begin(int tid);
/* Ends the watch. 1: the child was killed, because its execve was not answered. */
int silent_end(struct silent *s);

#endif
