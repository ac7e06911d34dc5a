/* What command lines cost, in turn: processor time of all their processes, and time.
 *
 *   cc -O2 -o cost cost.c
 *   cost ROUNDS 'PROGRAM ARG ...' ['PROGRAM ARG ...' ...]
 *
 * A command line is split at spaces. Each runs once per round, and the order is turned after
 * each round. The processor time is that of a control group made for the command line, so it
 * has also the processes that nobody waits for. On a busy machine it is steadier than the time.
 * Prints medians, the ratio of each to the first, and context switches of all processes that
 * were waited for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 64, MAX_LINES = 8 };

struct line {
	char *argv[MAX_ARGS + 1];
	char group[256];
	double *cpu, *wall, *switches;
};

static const char *above, *usage_file;

static void fail(const char *what)
{
	fprintf(stderr, "cost: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Processor time of a group in milliseconds. See cgroups(7) and cgroup-v2 in the kernel's documentation. */
static double used(const struct line *l)
{
	char name[512], text[4096];
	snprintf(name, sizeof name, "%s/%s", l->group, usage_file);
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail(name);
	ssize_t n = read(fd, text, sizeof text - 1);
	if (n < 0)
		fail(name);
	text[n] = 0;
	close(fd);
	if (strncmp(text, "usage_usec ", 11) == 0)
		return (double)atoll(text + 11) / 1e3;
	return (double)atoll(text) / 1e6;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void once(struct line *l, int round)
{
	char procs[512];
	snprintf(procs, sizeof procs, "%s/cgroup.procs", l->group);
	int group = open(procs, O_WRONLY | O_CLOEXEC);
	if (group < 0)
		fail(procs);
	struct rusage before, after;
	getrusage(RUSAGE_CHILDREN, &before);
	double cpu = used(l), began = now();
	pid_t pid = fork();
	if (pid == 0) {
		if (write(group, "0", 1) != 1)
			_exit(98);
		execvp(l->argv[0], l->argv);
		_exit(99);
	}
	int status;
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		fail("run");
	l->wall[round] = now() - began;
	/* Processes that nobody waits for end soon. */
	for (int i = 0; i < 20; i++) {
		char any;
		int fd = open(procs, O_RDONLY | O_CLOEXEC);
		ssize_t n = read(fd, &any, 1);
		close(fd);
		if (n <= 0)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	}
	l->cpu[round] = used(l) - cpu;
	getrusage(RUSAGE_CHILDREN, &after);
	l->switches[round] = (double)(after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw);
	close(group);
	if (!WIFEXITED(status) || WEXITSTATUS(status) >= 98) {
		fprintf(stderr, "cost: %s ended with status %#x\n", l->argv[0], (unsigned)status);
		exit(1);
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof *v, compare);
	return v[(n - 1) / 2];
}

int main(int argc, char **argv)
{
	static struct line lines[MAX_LINES];
	int rounds = argc > 2 ? atoi(argv[1]) : 0, count = argc - 2;
	if (rounds < 1 || count > MAX_LINES) {
		fprintf(stderr, "usage: cost ROUNDS 'PROGRAM ARG ...' ...\n");
		return 2;
	}
	above = "/sys/fs/cgroup/cpuacct", usage_file = "cpuacct.usage";
	if (access(above, W_OK) != 0)
		above = "/sys/fs/cgroup", usage_file = "cpu.stat";
	for (int i = 0; i < count; i++) {
		struct line *l = &lines[i];
		int n = 0;
		for (char *word = strtok(argv[i + 2], " "); word && n < MAX_ARGS; word = strtok(NULL, " "))
			l->argv[n++] = word;
		snprintf(l->group, sizeof l->group, "%s/agentsh-cost-%d-%d", above, (int)getpid(), i);
		if (mkdir(l->group, 0755) < 0)
			fail(l->group);
		l->cpu = calloc((size_t)rounds, sizeof *l->cpu);
		l->wall = calloc((size_t)rounds, sizeof *l->wall);
		l->switches = calloc((size_t)rounds, sizeof *l->switches);
	}
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < count; i++)
			once(&lines[(r + i) % count], r);
	double first = 0, first_wall = 0;
	for (int i = 0; i < count; i++) {
		struct line *l = &lines[i];
		double cpu = median(l->cpu, rounds), wall = median(l->wall, rounds);
		if (i == 0)
			first = cpu, first_wall = wall;
		printf("cpu %8.2f ms (least %8.2f) %6.3fx   wall %8.2f ms (least %8.2f) %6.3fx   switches %6.0f   %s\n", cpu, l->cpu[0], cpu / first,
		       wall, l->wall[0], wall / first_wall, median(l->switches, rounds), l->argv[0]);
		rmdir(l->group);
	}
	return 0;
}
