/* Waiting for the stops of followed programs. See stops.c. */
#ifndef AGENTSH_STOPS_H
#define AGENTSH_STOPS_H

/* What a call number says about a stop. */
enum { CALL_TOLD = 0, CALL_SKIPPED = 1, CALL_COUNTED = 2, CALL_NAMED_0 = 3, CALL_NAMED_1 = 4 };

struct stops {
	int most;    /* counted calls that are skipped; in */
	int counted; /* how many were; out */
	int status;  /* of the thread, as from wait4(2); out */
	int vain;    /* times that polling was in vain, kept between calls */
};

/* What a follower does not need. */
struct skips {
	const unsigned char *calls; /* a byte for each call number; NULL: no stop is skipped */
	int numbers;
	const char *names; /* texts that end with NUL; a call whose path has none is skipped */
	int length;        /* of names */
};

/* Waits for the next stop or end of a tracee of the calling thread and returns its number, or
   a negative errno. */
int agentsh_next_stop(struct stops *s, struct skips skips);

#endif
