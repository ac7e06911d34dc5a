/* Ways to exec. matrix CASE DIR: DIR holds hello (prints its arguments), script
 * (runs by hello), text (executable, no program), plain (not executable) and
 * link (to hello). Prints "ok" or what went wrong; cases that become hello
 * print what that prints. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char dir[3000], hello[4000];
static volatile int go;

static const char *in(const char *name)
{
	static char buf[4000];
	snprintf(buf, sizeof buf, "%s/%s", dir, name);
	return buf;
}

static void *exec_hello(void *arg)
{
	char *const args[] = { "hello", arg, NULL };
	while (!go)
		;
	execve(hello, args, environ);
	printf("exec: %s\n", strerror(errno));
	_exit(1);
}

static void *spin(void *unused)
{
	for (volatile unsigned long n = 0;; n++)
		;
	return unused;
}

static void threads(int n, void *(*f)(void *), void *arg)
{
	pthread_t t;
	while (n--)
		pthread_create(&t, NULL, f, arg);
}

static int expect(const char *path, int want)
{
	char *const args[] = { "x", NULL };
	execve(path, args, environ);
	if (errno == want)
		return 0;
	printf("%s: %s, want %s\n", path ? path : "null", strerror(errno), strerror(want));
	return 1;
}

static int errnos(void)
{
	int bad = 0;
	for (int i = 0; i < 20; i++) {
		bad |= expect(in("missing"), ENOENT);
		bad |= expect("missing/deeper", ENOENT);
		bad |= expect(in("plain"), EACCES);
		bad |= expect(dir, EACCES);
		bad |= expect(in("text"), ENOEXEC);
		bad |= expect(in("hello/x"), ENOTDIR);
		bad |= expect(in("loop"), ELOOP);
		bad |= expect("", ENOENT);
		bad |= expect((char *)8, EFAULT);
		bad |= expect(NULL, EFAULT);
		if (execve(hello, (char **)8, environ) == 0 || errno != EFAULT)
			bad |= printf("bad argv: %s\n", strerror(errno));
		if (execve(hello, (char *[]){ "x", (char *)8, NULL }, environ) == 0 || errno != EFAULT)
			bad |= printf("bad argument: %s\n", strerror(errno));
		if (execve(hello, (char *[]){ "x", NULL }, (char **)8) == 0 || errno != EFAULT)
			bad |= printf("bad environment: %s\n", strerror(errno));
	}
	char *long_path = malloc(5000);
	memset(long_path, '/', 4999);
	long_path[4999] = 0;
	bad |= expect(long_path, ENAMETOOLONG);
	static char huge[200 << 10];
	memset(huge, 'x', sizeof huge - 1);
	if (execve(hello, (char *[]){ "x", huge, NULL }, environ) == 0 || errno != E2BIG)
		bad |= printf("huge argument: %s\n", strerror(errno));
	if (!bad)
		puts("ok");
	return bad;
}

static int execveat_(int fd, const char *path, char *arg, int flags)
{
	char *const args[] = { "hello", arg, NULL };
	syscall(SYS_execveat, fd, path, args, environ, flags);
	printf("execveat: %s\n", strerror(errno));
	return 1;
}

static void on_signal(int s) { (void)s; }

static pid_t spawn_hello(void)
{
	pid_t pid = vfork();
	if (pid == 0) {
		char *const args[] = { "hello", "quiet", NULL };
		execve(hello, args, environ);
		_exit(9);
	}
	return pid;
}

/* storm runs hello many times while it gets signals at random moments. */
static int storm(int first, int second, int killed_is_fine)
{
	int bad = 0;
	unsigned seed = 7;
	for (int i = 0; i < 100; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
			sigaction(SIGUSR1, &act, NULL);
			_exit(execve(hello, (char *[]){ "hello", "quiet", NULL }, environ) ? 9 : 0);
		}
		for (volatile unsigned n = rand_r(&seed) % 300000; n; n--)
			;
		kill(pid, first);
		if (second)
			kill(pid, second);
		int status;
		if (waitpid(pid, &status, 0) != pid)
			bad |= printf("waitpid: %s\n", strerror(errno));
		else if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(WIFSIGNALED(status) && killed_is_fine))
			bad |= printf("try %d: status %#x\n", i, status);
	}
	if (!bad)
		puts("ok");
	return bad;
}

/* memfd runs a copy of hello that is in memory only. */
static int memfd(void)
{
	int in_fd = open(hello, O_RDONLY), fd = syscall(SYS_memfd_create, "x", 1U);
	char buf[65536];
	ssize_t n;
	while ((n = read(in_fd, buf, sizeof buf)) > 0)
		if (write(fd, buf, n) != n)
			return 1;
	return execveat_(fd, "", "memfd", AT_EMPTY_PATH);
}

static int traced(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		execve(hello, (char *[]){ "hello", "traced", NULL }, environ);
		printf("exec: %s\n", strerror(errno));
		fflush(stdout);
		_exit(0);
	}
	int status;
	while (waitpid(pid, &status, 0) == pid && !WIFEXITED(status) && !WIFSIGNALED(status))
		ptrace(PTRACE_CONT, pid, 0, 0);
	return 0;
}

/* handlers execs while a timer without SA_RESTART fires. Prints how many execs
 * failed with EINTR. */
static int handlers(void)
{
	int interrupted = 0;
	struct sigaction act = { .sa_handler = on_signal };
	sigaction(SIGALRM, &act, NULL);
	timer_t timer;
	struct itimerspec every = { { 0, 1000000 }, { 0, 1000000 } };
	timer_create(CLOCK_MONOTONIC, NULL, &timer);
	timer_settime(timer, 0, &every, NULL);
	for (int i = 0; i < 1000; i++) {
		execve("/missing", (char *[]){ "x", NULL }, environ);
		interrupted += errno == EINTR;
	}
	printf("%d\n", interrupted);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	const char *c = argv[1];
	snprintf(dir, sizeof dir, "%s", argv[2]);
	snprintf(hello, sizeof hello, "%s/hello", dir);
	setvbuf(stdout, NULL, _IOLBF, 0);
#define CASE(name) if (!strcmp(c, name))
	CASE("thread") { threads(1, exec_hello, "thread"); go = 1; pause(); }
	CASE("leader-gone") { threads(1, exec_hello, "leader-gone"); go = 1; pthread_exit(NULL); }
	CASE("race") { threads(8, exec_hello, "race"); go = 1; pause(); }
	CASE("spinners") { threads(4, spin, NULL); go = 1; exec_hello("spinners"); }
	CASE("errnos") return errnos();
	CASE("at-empty") return execveat_(open(hello, O_RDONLY), "", "at-empty", AT_EMPTY_PATH);
	CASE("at-cloexec") return execveat_(open(hello, O_RDONLY | O_CLOEXEC), "", "at-cloexec", AT_EMPTY_PATH);
	CASE("at-path") return execveat_(open(hello, O_PATH), "", "at-path", AT_EMPTY_PATH);
	CASE("at-dir") return execveat_(open(dir, O_RDONLY), "hello", "at-dir", 0);
	CASE("at-dir-up") { mkdir(in("sub"), 0755); return execveat_(open(in("sub"), O_RDONLY), "../hello", "at-dir-up", 0); }
	CASE("at-nofollow") return execveat_(AT_FDCWD, in("link"), "at-nofollow", AT_SYMLINK_NOFOLLOW);
	CASE("at-flags") return execveat_(AT_FDCWD, hello, "at-flags", 0x4000);
	CASE("at-bad") return execveat_(77, "hello", "at-bad", 0);
	CASE("at-script") return execveat_(open(in("script"), O_RDONLY), "", "at-script", AT_EMPTY_PATH);
	CASE("link") return execveat_(AT_FDCWD, in("link"), "link", 0);
	CASE("relative") { if (chdir(dir)) return 1; return execveat_(AT_FDCWD, "./hello", "relative", 0); }
	CASE("relative-up") { mkdir(in("sub"), 0755); if (chdir(in("sub"))) return 1; return execveat_(AT_FDCWD, "../hello", "relative-up", 0); }
	CASE("script") return execveat_(AT_FDCWD, in("script"), "one", 0);
	CASE("script-of-script") return execveat_(AT_FDCWD, in("script2"), "one", 0);
	CASE("null-argv") { syscall(SYS_execve, in("hello"), NULL, NULL); return 1; }
	CASE("self-exe") {
		if (argc > 3) { puts("self-exe"); return 0; }
		execve("/proc/self/exe", (char *[]){ "matrix", "self-exe", dir, "again", NULL }, environ);
		return printf("exec: %s\n", strerror(errno));
	}
	CASE("self-fd") {
		char path[64];
		snprintf(path, sizeof path, "/proc/self/fd/%d", open(hello, O_RDONLY));
		return execveat_(AT_FDCWD, path, "self-fd", 0);
	}
	CASE("dev-fd") {
		char path[64];
		snprintf(path, sizeof path, "/dev/fd/%d", open(hello, O_RDONLY));
		return execveat_(AT_FDCWD, path, "dev-fd", 0);
	}
	CASE("self-cwd") { if (chdir(dir)) return 1; return execveat_(AT_FDCWD, "/proc/thread-self/cwd/hello", "self-cwd", 0); }
	CASE("self-root") { char p[5000]; snprintf(p, sizeof p, "/proc/self/root%s", hello); return execveat_(AT_FDCWD, p, "self-root", 0); }
	CASE("usr1") return storm(SIGUSR1, 0, 1);
	CASE("kill") return storm(SIGKILL, 0, 1);
	CASE("stop") return storm(SIGSTOP, SIGCONT, 0);
	CASE("memfd") return memfd();
	CASE("deleted") { int fd = open(in("doomed"), O_RDONLY); unlink(in("doomed")); return execveat_(fd, "", "deleted", AT_EMPTY_PATH); }
	CASE("traced") return traced();
	CASE("handlers") return handlers();
	CASE("undumpable") { prctl(PR_SET_DUMPABLE, 0); return execveat_(AT_FDCWD, hello, "undumpable", 0); }
	CASE("many") {
		int n = 60000;
		char **args = calloc(n + 2, sizeof *args);
		for (int i = 0; i <= n; i++)
			args[i] = i ? "abc" : "hello";
		args[1] = "count";
		execve(hello, args, environ);
		return printf("exec: %s\n", strerror(errno));
	}
	CASE("parallel") {
		for (int i = 0; i < 50; i++) {
			pid_t p[8];
			for (int j = 0; j < 8; j++)
				p[j] = spawn_hello();
			for (int j = 0; j < 8; j++) {
				int status;
				if (waitpid(p[j], &status, 0) != p[j] || status)
					return printf("status %#x\n", status);
			}
		}
		puts("ok");
		return 0;
	}
	return printf("no case %s\n", c);
}
