/* Tries to run a denied program, or an allowed one with a denied argument, by
 * changing both while the exec is judged.
 *
 * attack MODE PATH FLIP TRIES: MODE is vfork or shared; PATH's last byte flips
 * between a and b when FLIP holds p; argv[1] flips between ok and ek when it
 * holds a. Prints the counts ran refused killed wrong-program wrong-argument, then
 * those of two tries in which nothing changes. The first is of what is allowed, the
 * second of what is denied. Each other try begins after a change. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile char *path_byte, *arg_byte;
static volatile int stop;
static volatile unsigned flips;
static int flip_path, flip_arg;

static void *flip(void *unused)
{
	unsigned seed = 1;
	while (!stop) {
		if (flip_path)
			*path_byte ^= 'a' ^ 'b';
		for (volatile unsigned i = rand_r(&seed) % 4000; i; i--)
			;
		if (flip_arg)
			*arg_byte ^= 'o' ^ 'e';
		for (volatile unsigned i = rand_r(&seed) % 4000; i; i--)
			;
		flips++;
	}
	return unused;
}

/* One try; counts is ran refused killed wrong-program wrong-argument. */
static void once(int shared, char *page, int *counts)
{
	char *const args[] = { page, page + 2048, NULL };
	char *const env[] = { NULL };
	pid_t pid = shared ? fork() : vfork();
	if (pid == 0) {
		execve(page, args, env);
		_exit(9);
	}
	int status;
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		counts[2]++;
	else
		counts[WEXITSTATUS(status) == 9 ? 1 : WEXITSTATUS(status) == 42 ? 3 : WEXITSTATUS(status) == 43 ? 4 : 0]++;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	int shared = !strcmp(argv[1], "shared");
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	strcpy(page, argv[2]);
	strcpy(page + 2048, "ok");
	path_byte = page + strlen(page) - 1;
	arg_byte = page + 2048;
	flip_path = strchr(argv[3], 'p') != NULL;
	flip_arg = strchr(argv[3], 'a') != NULL;
	int counts[3][5] = { 0 };
	volatile char *byte = flip_path ? path_byte : arg_byte;
	int bit = flip_path ? 'a' ^ 'b' : 'o' ^ 'e';
	once(shared, page, counts[1]);
	*byte ^= bit;
	once(shared, page, counts[2]);
	*byte ^= bit;
	pthread_t thread;
	pthread_create(&thread, NULL, flip, NULL);
	unsigned seen = flips;
	for (int tries = atoi(argv[4]); tries; tries--) {
		while (flips == seen)
			sched_yield();
		seen = flips;
		once(shared, page, counts[0]);
	}
	stop = 1;
	pthread_join(thread, NULL);
	for (int i = 0; i < 15; i++)
		printf("%d ", counts[i / 5][i % 5]);
	putchar('\n');
	return 0;
}
