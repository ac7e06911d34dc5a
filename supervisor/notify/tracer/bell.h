#ifndef AGENTSH_BELL_H
#define AGENTSH_BELL_H

#include <signal.h>

enum { BELL_SIGNAL = SIGUSR1 };

struct bell {
	int pid; /* or -errno */
	void *stack;
};

/* Starts a bell that the calling thread does not trace yet. */
struct bell agentsh_start_bell(void);
void agentsh_free_bell(void *stack);

#endif
