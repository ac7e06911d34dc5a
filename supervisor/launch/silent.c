/* Finds a child whose execve the listener of another supervisor has stopped and does not
 * answer, and kills it.
 *
 * This is a thread of C: while a child that was made by vfork(2) waits in its execve, the Go
 * runtime cannot stop the world, and so any goroutine may hang. See silent.go. */
#define _GNU_SOURCE
#include "silent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in internal/silence. */
enum { LOOKS = 50, LOOK_TIME = 100 };

struct silent {
	pthread_t thread;
	int end;  /* an eventfd: the watch ends */
	int tid;  /* the thread that makes the child */
	int found;
};

/* Reads a file into a string; the empty one if there is nothing. */
static void read_text(const char *path, char *text, size_t size)
{
	ssize_t n = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, size - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = 0;
}

/* Whether a new child waits in execve for a listener; call gets the call as the kernel prints
   it. The kernel may not show it, for instance after the child has changed its user. Then it
   counts that the child sleeps: it has nothing else to wait for. See proc_pid_syscall(5),
   proc_pid_stat(5) and proc_pid_wchan(5). */
static int waits(int pid, char *call, size_t size)
{
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	read_text(path, text, sizeof text);
	const char *state = strrchr(text, ')');
	if (!state || (strncmp(state, ") S", 3) != 0 && strncmp(state, ") D", 3) != 0))
		return 0;
	int sleeps = state[2] == 'S';
	snprintf(path, sizeof path, "/proc/%d/syscall", pid);
	read_text(path, call, size);
	if (!call[0])
		return sleeps;
	snprintf(path, sizeof path, "/proc/%d/wchan", pid);
	read_text(path, text, sizeof text);
	int elsewhere = text[0] && strcmp(text, "0") != 0 && !strstr(text, "seccomp"); /* as for a disk */
	return atoi(call) == SYS_execve && !elsewhere;
}

static void kill_process(int pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return;
	syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
	close(fd);
}

static void *watch(void *arg)
{
	struct silent *s = arg;
	char children[64], text[64], call[256], before[256] = "";
	int count = 0;
	snprintf(children, sizeof children, "/proc/self/task/%d/children", s->tid);
	for (;;) {
		struct pollfd p = { s->end, POLLIN, 0 };
		int n = poll(&p, 1, LOOK_TIME);
		if (n > 0)
			return NULL;
		read_text(children, text, sizeof text); /* a kernel without this file: nothing is found */
		int pid = atoi(text);
		if (pid <= 0 || !waits(pid, call, sizeof call) || (count > 0 && strcmp(call, before) != 0)) {
			count = 0;
			continue;
		}
		memcpy(before, call, sizeof before);
		if (++count == LOOKS) {
			s->found = 1;
			kill_process(pid);
			return NULL;
		}
	}
}

struct silent *silent_begin(int tid)
{
	struct silent *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	sigset_t all, mask;
	sigfillset(&all);
	s->tid = tid;
	s->end = eventfd(0, EFD_CLOEXEC);
	pthread_sigmask(SIG_SETMASK, &all, &mask); /* signals are for threads of Go */
	int err = s->end < 0 ? errno : pthread_create(&s->thread, NULL, watch, s);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (err) {
		if (s->end >= 0)
			close(s->end);
		free(s);
		return NULL;
	}
	return s;
}

int silent_end(struct silent *s)
{
	uint64_t one = 1;
	ssize_t ignored = write(s->end, &one, sizeof one);
	(void)ignored;
	pthread_join(s->thread, NULL);
	int found = s->found;
	close(s->end);
	free(s);
	return found;
}
