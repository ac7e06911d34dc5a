/* Tries to run a denied program, or an allowed one with a denied argument, by
 * changing both while the exec is judged.
 *
 * attack MODE PATH FLIP TRIES: MODE is vfork or shared; PATH's last byte flips
 * between a and b when FLIP holds p; argv[1] flips between ok and ek when it
 * holds a. Prints: ran refused killed wrong-program wrong-argument. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile char *path_byte, *arg_byte;
static volatile int stop;
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
	}
	return unused;
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
	char *const args[] = { page, page + 2048, NULL };
	char *const env[] = { NULL };
	pthread_t thread;
	pthread_create(&thread, NULL, flip, NULL);
	int counts[5] = { 0 };
	for (int tries = atoi(argv[4]); tries; tries--) {
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
	stop = 1;
	pthread_join(thread, NULL);
	printf("%d %d %d %d %d\n", counts[0], counts[1], counts[2], counts[3], counts[4]);
	return 0;
}
