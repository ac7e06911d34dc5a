/* exchange HOW A B N PROGRAM ARGUMENT...: runs the program N times while another
 * process exchanges the files A and B (names), or writes the content of B into A
 * and back (content), or exchanges
 * them while their directory, in which the program runs, has another name (cwd).
 * Prints how many runs ended with 0, with 42 and otherwise, and whether the other
 * process went on. The same follows for a first run without an exchange, and for one
 * after a single exchange. Each other run begins after an exchange. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static volatile unsigned *exchanges; /* how many there were, in shared memory */
static int single; /* one exchange, then return */

static char *content(const char *name, ssize_t *size)
{
	char *data = malloc(1 << 20);
	int fd = open(name, O_RDONLY);
	*size = read(fd, data, 1 << 20);
	close(fd);
	return data;
}

static void names(const char *a, const char *b)
{
	do {
		if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE))
			_exit(3);
		++*exchanges;
	} while (!single);
}

/* The directory that the program runs in has another name at times. */
static void directory(const char *a, const char *b)
{
	char dir[4096], other[4100];
	int n = strrchr(a, '/') - a;
	snprintf(dir, sizeof dir, "%.*s", n, a);
	snprintf(other, sizeof other, "%s.x", dir);
	int fd = open(dir, O_RDONLY | O_DIRECTORY);
	do {
		if (rename(dir, other) || renameat2(fd, a + n + 1, fd, b + n + 1, RENAME_EXCHANGE) || rename(other, dir))
			_exit(3);
		++*exchanges;
	} while (!single);
	close(fd);
}

static ssize_t size[2]; /* of the contents before the first exchange */
static char *data[2];

static void contents(const char *a)
{
	for (unsigned i = 1, done = 0; !done; i ^= 1) {
		int fd = open(a, O_WRONLY); /* fails while the kernel executes it, as an exec does while it is open */
		if (fd < 0)
			continue;
		if (size[0] != size[1] || pwrite(fd, data[i], size[i], 0) != size[i])
			_exit(3);
		close(fd);
		++*exchanges;
		done = single;
		sched_yield();
	}
}

static void exchange(char **argv)
{
	if (!strcmp(argv[1], "names"))
		names(argv[2], argv[3]);
	else if (!strcmp(argv[1], "cwd"))
		directory(argv[2], argv[3]);
	else
		contents(argv[2]);
}

/* One run; counts is how many ended with 0, with 42 and otherwise. */
static void run(char **argv, int *counts)
{
	pid_t pid;
	int status = -1;
	if (posix_spawn(&pid, *argv, NULL, NULL, argv, environ) == 0)
		waitpid(pid, &status, 0);
	counts[status == 0 ? 0 : WIFEXITED(status) && WEXITSTATUS(status) == 42 ? 1 : 2]++;
}

int main(int argc, char **argv)
{
	if (argc < 6)
		return 2;
	int counts[3][3] = { 0 };
	exchanges = mmap(NULL, sizeof *exchanges, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!strcmp(argv[1], "cwd")) {
		char *dir = strdup(argv[2]);
		*strrchr(dir, '/') = 0;
		if (chdir(dir))
			return 4;
	}
	if (!strcmp(argv[1], "content"))
		for (int i = 0; i < 2; i++)
			data[i] = content(argv[2 + i], size + i);
	int null = open("/dev/null", O_RDWR), keep = dup(1);
	dup2(null, 0);
	dup2(null, 2);
	run(argv + 5, counts[1]);
	pid_t other = fork();
	if (!other) {
		single = 1;
		exchange(argv);
		_exit(0);
	}
	waitpid(other, NULL, 0);
	run(argv + 5, counts[2]);
	pid_t flipper = fork();
	if (!flipper) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		exchange(argv);
	}
	unsigned seen = *exchanges;
	int alive = 1;
	for (int n = atoi(argv[4]); n && alive; n--) {
		while (*exchanges == seen && (alive = waitpid(flipper, NULL, WNOHANG) == 0))
			sched_yield();
		seen = *exchanges;
		run(argv + 5, counts[0]);
	}
	kill(flipper, SIGKILL);
	dprintf(keep, "%d %d %d %d", counts[0][0], counts[0][1], counts[0][2], alive);
	dprintf(keep, " %d %d %d %d %d %d\n", counts[1][0], counts[1][1], counts[1][2], counts[2][0], counts[2][1], counts[2][2]);
	return 0;
}
