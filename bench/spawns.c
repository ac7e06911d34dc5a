/* The median time of a spawn and the end of its process, in milliseconds: spawns COUNT PROGRAM. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 1;
	int count = atoi(argv[1]);
	double *took = calloc(count, sizeof *took);
	char *args[] = {argv[2], NULL};
	for (int i = 0; i < count; i++) {
		struct timespec begin, end;
		pid_t pid;
		int status;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		if (posix_spawn(&pid, argv[2], NULL, NULL, args, environ) || waitpid(pid, &status, 0) != pid || status)
			return 1;
		clock_gettime(CLOCK_MONOTONIC, &end);
		took[i] = (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6;
	}
	qsort(took, count, sizeof *took, compare);
	printf("%.2f\n", took[count / 2]);
	return 0;
}
