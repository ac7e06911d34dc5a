/* exchange HOW A B N PROGRAM ARGUMENT...: runs the program N times while another
 * process exchanges the files A and B (names), or writes the content of B into A
 * and back (content), or exchanges
 * them while their directory, in which the program runs, has another name (cwd). Prints how many runs ended with 0, with 42 and otherwise. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

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
	for (;;)
		if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE))
			_exit(3);
}

/* The directory that the program runs in has another name at times. */
static void directory(const char *a, const char *b)
{
	char dir[4096], other[4100];
	int n = strrchr(a, '/') - a;
	snprintf(dir, sizeof dir, "%.*s", n, a);
	snprintf(other, sizeof other, "%s.x", dir);
	int fd = open(dir, O_RDONLY | O_DIRECTORY);
	for (;;)
		if (rename(dir, other) || renameat2(fd, a + n + 1, fd, b + n + 1, RENAME_EXCHANGE) || rename(other, dir))
			_exit(3);
}

static void contents(const char *a, const char *b)
{
	ssize_t size[2];
	char *data[2] = { content(a, size), content(b, size + 1) };
	for (unsigned i = 1;; i ^= 1) {
		int fd = open(a, O_WRONLY); /* fails while the kernel executes it, as an exec does while it is open */
		if (fd < 0)
			continue;
		if (size[0] != size[1] || pwrite(fd, data[i], size[i], 0) != size[i])
			_exit(3);
		close(fd);
		sched_yield();
	}
}

int main(int argc, char **argv)
{
	if (argc < 6)
		return 2;
	int good = 0, won = 0, refused = 0, n = atoi(argv[4]);
	if (!strcmp(argv[1], "cwd")) {
		char *dir = strdup(argv[2]);
		*strrchr(dir, '/') = 0;
		if (chdir(dir))
			return 4;
	}
	pid_t flipper = fork();
	if (!flipper) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!strcmp(argv[1], "names"))
			names(argv[2], argv[3]);
		if (!strcmp(argv[1], "cwd"))
			directory(argv[2], argv[3]);
		contents(argv[2], argv[3]);
	}
	int null = open("/dev/null", O_RDWR), keep = dup(1);
	dup2(null, 0);
	dup2(null, 2);
	for (int i = 0; i < n; i++) {
		pid_t pid;
		int status = -1;
		if (posix_spawn(&pid, argv[5], NULL, NULL, argv + 5, environ) == 0)
			waitpid(pid, &status, 0);
		if (status == 0)
			good++;
		else if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
			won++;
		else
			refused++;
	}
	int alive = kill(flipper, 0) == 0 && waitpid(flipper, NULL, WNOHANG) == 0;
	kill(flipper, SIGKILL);
	dprintf(keep, "%d %d %d %d\n", good, won, refused, alive);
	return 0;
}
