/* Interpreters that leave their follower behind. Each is started by a script.
 *
 * untraced SCRIPT A: a thread that no tracer sees executes this program again,
 * which then executes A while the last byte of its name flips between a and b.
 * bash SCRIPT OTHER: one thread executes the script OTHER while another opens
 * SCRIPT, which an interpreter of this name does once.
 * hold SCRIPT: prints a line and stays.
 * leave N PROGRAM ARGUMENT...: runs the program N times, and prints how many
 * ended with 0, with 42, and otherwise. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(int argc, char **argv)
{
	const char *base = strrchr(argv[0], '/');
	base = base ? base + 1 : argv[0];
	pthread_t thread;
	if (!strcmp(base, "leave"))
		return tries(argv + 1);
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
