/* The start of a program that is no part of a session: the operator's approval program.
 *
 * It must not have the oom_score_adj and the nice value of the supervisor. Another process
 * can change the nice value of a thread only after the program has begun, when it may have
 * other threads and children. Therefore this program is executed again as
 * "agentsh-outside". Like the session init, that is a constructor which never returns. It
 * sets the values of its own process and executes the program (approve.go). */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* FD_PROGRAM has the specification. FD_ERROR gets the errno if there is one. */
enum { FD_PROGRAM = 3, FD_ERROR = 4 };

__attribute__((noreturn)) static void fail_outside(int err)
{
	uint32_t e = (uint32_t)err;
	ssize_t ignored = write(FD_ERROR, &e, sizeof e); /* without a reader nobody waits */
	(void)ignored;
	_exit(125);
}

/* The values are for lack of memory and for load. A program that cannot have them still
   decides. */
static void set_own_values(const char *score, const char *nice)
{
	if (score[0]) {
		int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
		if (fd >= 0) {
			ssize_t ignored = write(fd, score, strlen(score));
			(void)ignored;
			close(fd);
		}
	}
	if (nice[0])
		setpriority(PRIO_PROCESS, 0, atoi(nice));
}

void start_outside(void)
{
	struct reader r;
	int err = map_spec(FD_PROGRAM, &r);
	if (err)
		fail_outside(err);
	const char *score = read_str(&r), *nice = read_str(&r);
	uint32_t n = read_u32(&r);
	if (r.bad || n == 0 || n > MAX_ITEMS)
		fail_outside(EBADMSG);
	char **argv = calloc((size_t)n + 1, sizeof *argv);
	if (!argv)
		fail_outside(ENOMEM);
	for (uint32_t i = 0; i < n; i++)
		argv[i] = (char *)read_str(&r);
	if (r.bad)
		fail_outside(EBADMSG);
	set_own_values(score, nice);
	close(FD_PROGRAM);
	if (fcntl(FD_ERROR, F_SETFD, FD_CLOEXEC) == 0)
		execv(argv[0], argv);
	fail_outside(errno);
}
