/* Interpreters that leave their follower behind. Each is started by a script.
 *
 * untraced SCRIPT A: a thread that no tracer sees executes this program again,
 * which then executes A while the last byte of its name flips between a and b.
 * bash SCRIPT OTHER: one thread executes the script OTHER while another opens
 * SCRIPT, which an interpreter of this name does once.
 * hold SCRIPT: prints a line and stays.
 * waits SCRIPT: prints how calls end that threads wait in while SCRIPT is opened.
 * dash SCRIPT: a thread counts in the file SCRIPT.count while SCRIPT is opened.
 * stops N SCRIPT: runs SCRIPT, which dash interprets, N times, and stops it then.
 * Prints how often it went on counting.
 * leave N PROGRAM ARGUMENT...: runs the program N times, and prints how many
 * ended with 0, with 42, and otherwise. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char name[4096];
static char stack[1 << 16] __attribute__((aligned(16)));

static void *flip(void *unused)
{
	volatile char *last = name + strlen(name) - 1;
	for (unsigned seed = 1;; *last ^= 'a' ^ 'b')
		for (volatile unsigned i = rand_r(&seed) % 4000; i; i--)
			;
	return unused;
}

static int again(void *unused)
{
	execl("/proc/self/exe", "flipping", name, NULL);
	_exit(9);
}

static void *execute(void *script)
{
	execl(script, script, NULL);
	_exit(9);
}

static int tries(char **argv)
{
	int good = 0, won = 0, other = 0;
	for (int n = atoi(argv[0]); n; n--) {
		int status;
		pid_t pid = fork();
		if (!pid) {
			execv(argv[1], argv + 1);
			_exit(9);
		}
		waitpid(pid, &status, 0);
		if (status == 0)
			good++;
		else if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
			won++;
		else
			other++;
	}
	printf("%d %d %d\n", good, won, other);
	return 0;
}

static void *wait_for_event(void *how)
{
	struct epoll_event event;
	*(int *)how = epoll_wait(epoll_create1(0), &event, 1, 500) < 0 ? errno : 0;
	return NULL;
}

static void *wait_for_signal(void *how)
{
	struct timespec half = { .tv_nsec = 500000000 };
	sigset_t none;
	sigemptyset(&none);
	*(int *)how = sigtimedwait(&none, NULL, &half) < 0 ? errno : 0;
	return NULL;
}

static void *wait_for_data(void *how)
{
	struct timeval half = { .tv_usec = 500000 };
	int pair[2];
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &half, sizeof half);
	*(int *)how = recv(pair[0], &half, 1, 0) < 0 ? errno : 0;
	return NULL;
}

static int waits(const char *script)
{
	void *(*const wait[])(void *) = { wait_for_event, wait_for_signal, wait_for_data };
	enum { N = sizeof wait / sizeof *wait };
	pthread_t threads[N];
	int how[N];
	for (int i = 0; i < N; i++)
		pthread_create(threads + i, NULL, wait[i], how + i);
	usleep(100000);
	open(script, O_RDONLY);
	for (int i = 0; i < 2000; i++)
		usleep(1); /* the follower of an unknown interpreter lets it go after some calls */
	for (int i = 0; i < N; i++) {
		pthread_join(threads[i], NULL);
		printf("%s\n", strerror(how[i]));
	}
	return 0;
}

static volatile unsigned long *counts(const char *script)
{
	char file[4096];
	snprintf(file, sizeof file, "%s.count", script);
	int fd = open(file, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, 4096))
		return NULL;
	void *mem = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return mem;
}

static void *count(void *at)
{
	for (;; ++*(volatile unsigned long *)at)
		;
	return NULL;
}

static int stops(int n, char *script)
{
	volatile unsigned long *at = counts(script);
	unsigned seed = 1;
	int went_on = 0;
	for (; n; n--) {
		int status;
		*at = 0;
		pid_t pid = fork();
		if (!pid)
			execute(script);
		while (!*at && !waitpid(pid, &status, WNOHANG))
			usleep(100);
		usleep(rand_r(&seed) % 8000);
		kill(pid, SIGSTOP);
		if (waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status)) {
			unsigned long then = *at;
			usleep(5000);
			went_on += *at != then;
			kill(pid, SIGCONT);
			waitpid(pid, &status, 0);
		}
	}
	printf("%d\n", went_on);
	return 0;
}

int main(int argc, char **argv)
{
	const char *base = strrchr(argv[0], '/');
	base = base ? base + 1 : argv[0];
	pthread_t thread;
	if (!strcmp(base, "leave"))
		return tries(argv + 1);
	if (!strcmp(base, "waits"))
		return waits(argv[1]);
	if (!strcmp(base, "stops"))
		return stops(atoi(argv[1]), argv[2]);
	if (!strcmp(base, "dash")) {
		volatile unsigned long *at = counts(argv[1]);
		pthread_create(&thread, NULL, count, (void *)at);
		while (!*at)
			usleep(100);
		open(argv[1], O_RDONLY);
		usleep(5000);
		return 0;
	}
	if (!strcmp(base, "hold")) {
		puts("held");
		fflush(stdout);
		for (;;)
			pause();
	}
	if (!strcmp(base, "flipping")) {
		strcpy(name, argv[1]);
		pthread_create(&thread, NULL, flip, NULL);
		for (int i = 0; i < 1000; i++)
			execl(name, "prize", NULL);
		return 9;
	}
	if (!strcmp(base, "untraced")) {
		strcpy(name, argv[2]);
		clone(again, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_UNTRACED, NULL);
	} else {
		pthread_create(&thread, NULL, execute, argv[2]);
		usleep(atoi(argv[3]));
		open(argv[1], O_RDONLY);
	}
	for (;;)
		pause();
}
