/* The client of a shared session: see client.c. */
#ifndef AGENTSH_CLIENT_H
#define AGENTSH_CLIENT_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Keep in step with internal/shellsocket. */
enum {
	PROTOCOL = 2,
	KEY_SIZE = 32,
	FILE_SIZE = 5 * 8,
	HEADER_SIZE = 12 + KEY_SIZE + 2 * FILE_SIZE,
	PART_SIZE = 32 << 10,
	MAX_BODY = 4 << 20,
	MAX_END = 16 << 20,
	MAX_NOTE = 16 << 10,
	MAX_PRINTED = 20, /* refusals */
};

/* Times, in milliseconds. */
enum {
	SEND_LIMIT = 10000, /* of a part of the request */
	PING_INTERVAL = 5000,
	PING_LIMIT = 60000,
	KILL_LIMIT = 15000, /* from a request to kill the command to its end */
	FORCED_LIMIT = 2000, /* of a write after the command was ended */
};

/* What was done before the C library started: see early.c. */
struct early {
	int sent; /* the request was sent */
	int sock;
	uint64_t passed, mask; /* signals, as the kernel has them: bit 0 is signal 1 */
};
extern struct early early;

/* Sends a packet; -1: the supervisor has gone. */
int send_packet(int sock, const void *data, size_t len);
/* Receives a packet, with up to three descriptors. 0: the supervisor has gone. */
ssize_t receive_packet(int sock, void *data, size_t len, int fds[3], int *nfds);
int64_t now_ms(void);

/* -- lines.c: lines of the command's output that tell of a refusal -- */

struct lines {
	char line[4097];
	size_t len;
	int skip, back;
};
void lines_read(struct lines *l, const char *p, size_t n);
/* Whether the command has shown a line. */
int lines_shown(const char *line, size_t n);

/* -- copy.c -- */

/* One output of the command. Its thread owns it from its start to done. */
struct output {
	int n;  /* 1 or 2: the descriptor that it is written to */
	int in; /* the pipe; -1: closed */
	int watched, started;
	atomic_int done;
	_Atomic int64_t writing; /* since when a write blocks; 0: none does */
	_Atomic int64_t count;   /* bytes that were read */
	struct lines lines;
	char buf[64 << 10];
};

/* The stream that failed first. One that ended the command counts more. */
struct failure {
	int stream, err, reported;
	int forced; /* nobody read it */
};

struct streams {
	int sock;
	int wake;  /* an eventfd for the main thread */
	int ended; /* an eventfd that can be read when the command has ended */
	struct output out[2];
	int in_pipe; /* of the standard input; -1: the command has none yet */

	pthread_mutex_t mu;
	struct failure failure; /* stream -1: none */
	int failed_output;      /* an output has lost something */
	int closed;             /* the reader of an output has gone */
	atomic_int cancel;      /* the command is to be killed */
};

extern struct streams F;

/* Takes the command's pipes, and begins with its standard input. */
void take_pipes(const int fds[3]);
void start_output(struct output *o);
/* Has the outputs end with what is in the pipes. */
void end_outputs(void);
int outputs_done(void);
/* Gives up writes that nobody reads, after the end was demanded. */
void abandon_writes(int64_t since);
/* Writes all, and waits for a descriptor that does not block; 0, or an errno. */
int write_all(int fd, const char *p, size_t n);

/* -- follow.c -- */

/* Follows the command to its end, and exits with its status. It returns if nothing was
   begun: the supervisor refused the request, or said nothing at all. */
void follow(int sock, const sigset_t *mask, const sigset_t *passed);

#endif
