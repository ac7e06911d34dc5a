/* What the kernel promises about processes. processes CASE HELLO prints what it saw. The
 * output is the same with and without supervision. HELLO prints its arguments.
 * processes idle N COMMAND... makes idle processes before it becomes the command. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static char *hello;
static volatile sig_atomic_t got;

static void say(const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	if (write(1, line, n) != n)
		_exit(3);
}

static void need(int ok, const char *what)
{
	if (ok)
		return;
	say("%s: %s\n", what, strerror(errno));
	_exit(1);
}

static const char *status_of(int status)
{
	static char text[64];
	if (WIFEXITED(status))
		snprintf(text, sizeof text, "exited %d", WEXITSTATUS(status));
	else if (WIFSIGNALED(status))
		snprintf(text, sizeof text, "killed %s", sigabbrev_np(WTERMSIG(status)));
	else if (WIFSTOPPED(status))
		snprintf(text, sizeof text, "stopped %s", sigabbrev_np(WSTOPSIG(status)));
	else if (WIFCONTINUED(status))
		return "continued";
	return text;
}

/* next waits for one change of a child and prints it. */
static void next(pid_t pid, int options)
{
	int status;
	pid_t done = waitpid(pid, &status, options);
	if (done < 0)
		say("wait: %s\n", strerror(errno));
	else
		say("%s\n", status_of(status));
}

static pid_t child(void)
{
	pid_t pid = fork();
	need(pid >= 0, "fork");
	return pid;
}

static void forever(void)
{
	for (;;)
		pause();
}

/* wait_for_state returns when the process has the state, or has ended. */
static void wait_for_state(pid_t pid, char want)
{
	char name[64], text[512];
	snprintf(name, sizeof name, "/proc/%d/stat", pid);
	for (;;) {
		int fd = open(name, O_RDONLY);
		ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
		close(fd);
		if (n <= 0)
			return;
		text[n] = 0;
		char *state = strrchr(text, ')');
		if (state && (state[2] == want || state[2] == 'Z'))
			return;
		sched_yield();
	}
}

/* A child waits here until the parent has seen what it waits for: a later change of the
 * child would replace that. */
static int go[2];

static void wait_to_go(void)
{
	char c;
	if (read(go[0], &c, 1) != 1)
		_exit(2);
}

static void let_go(void) { need(write(go[1], "x", 1) == 1, "write"); }

static void stops(void)
{
	static const int stopping[] = { SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU };
	for (int i = 0; i < 4; i++) {
		pid_t pid = child();
		if (pid == 0) {
			setpgid(0, 0);
			raise(stopping[i]);
			wait_to_go();
			raise(stopping[i]);
			_exit(i);
		}
		next(pid, WUNTRACED);
		say("more %d\n", waitpid(pid, NULL, WUNTRACED | WNOHANG | WCONTINUED));
		need(kill(pid, SIGCONT) == 0, "kill");
		next(pid, WCONTINUED);
		let_go();
		next(pid, WUNTRACED);
		need(kill(pid, SIGCONT) == 0, "kill");
		next(pid, 0);
	}
	pid_t pid = child();
	if (pid == 0)
		forever();
	need(kill(pid, SIGSTOP) == 0, "kill");
	next(pid, WUNTRACED);
	need(kill(pid, SIGTERM) == 0, "kill"); /* waits until it continues */
	need(kill(pid, SIGCONT) == 0, "kill");
	next(pid, 0);
	pid = child();
	if (pid == 0)
		forever();
	need(kill(pid, SIGSTOP) == 0, "kill");
	next(pid, WUNTRACED);
	need(kill(pid, SIGKILL) == 0, "kill");
	next(pid, 0);
}

static void infos(void)
{
	pid_t pid = child();
	if (pid == 0) {
		raise(SIGSTOP);
		wait_to_go();
		_exit(7);
	}
	siginfo_t info;
	for (int i = 0; i < 3; i++) {
		need(waitid(P_PID, pid, &info, WSTOPPED | (i < 2 ? WNOWAIT : 0)) == 0, "waitid");
		say("stop %d %d\n", info.si_code == CLD_STOPPED, info.si_status == SIGSTOP);
	}
	need(kill(pid, SIGCONT) == 0, "kill");
	need(waitid(P_PID, pid, &info, WCONTINUED) == 0, "waitid");
	say("cont %d %d\n", info.si_code == CLD_CONTINUED, info.si_status == SIGCONT);
	let_go();
	for (int i = 0; i < 3; i++) {
		need(waitid(P_PID, pid, &info, WEXITED | (i < 2 ? WNOWAIT : 0)) == 0, "waitid");
		say("exit %d %d\n", info.si_code == CLD_EXITED, info.si_status);
		if (i < 2)
			say("zombie %d\n", kill(pid, 0));
	}
	say("gone %d\n", kill(pid, 0) < 0 && errno == ESRCH);
	next(pid, 0);
	pid = child();
	if (pid == 0)
		forever();
	need(kill(pid, SIGKILL) == 0, "kill");
	need(waitid(P_PID, pid, &info, WEXITED) == 0, "waitid");
	say("killed %d %d\n", info.si_code == CLD_KILLED, info.si_status);
}

static char stack[4][65536];

static int run_exit(void *status) { return (int)(long)status; }

static void clones(void)
{
	pid_t pid = clone(run_exit, stack[0] + sizeof stack[0], 0, (void *)5L); /* no signal at its end */
	need(pid > 0, "clone");
	wait_for_state(pid, 'Z');
	next(pid, WNOHANG);
	next(pid, __WALL);
	pid = clone(run_exit, stack[1] + sizeof stack[1], CLONE_VM | SIGCHLD, (void *)6L);
	need(pid > 0, "clone");
	next(pid, 0);
	pid = clone(run_exit, stack[2] + sizeof stack[2], 0, (void *)7L);
	need(pid > 0, "clone");
	next(pid, __WCLONE);
	if (child() == 0) { /* its child is ours */
		pid = clone(run_exit, stack[3] + sizeof stack[3], CLONE_PARENT | SIGCHLD, (void *)8L);
		_exit(pid > 0 ? 9 : 10);
	}
	int sum = 0, status;
	while (wait(&status) > 0)
		sum += WEXITSTATUS(status);
	say("sum %d\n", sum);
}

static pthread_barrier_t ready;

static void *exec_hello(void *arg)
{
	pthread_barrier_wait(&ready);
	execve(hello, (char *[]){ "hello", arg, NULL }, environ);
	say("exec: %s\n", strerror(errno));
	_exit(1);
}

static void *wait_forever(void *arg)
{
	forever();
	return arg;
}

static void threads(int racing, int waiting, int leader_ends)
{
	pthread_t t;
	pthread_barrier_init(&ready, NULL, racing);
	while (waiting--)
		pthread_create(&t, NULL, wait_forever, NULL);
	while (racing--)
		pthread_create(&t, NULL, exec_hello, "raced");
	if (leader_ends)
		pthread_exit(NULL);
	forever();
}

static void dethread(void)
{
	static const int how[][3] = { { 1, 0, 0 }, { 1, 3, 0 }, { 1, 3, 1 }, { 8, 0, 0 }, { 8, 4, 0 }, { 8, 0, 1 } };
	for (unsigned i = 0; i < sizeof how / sizeof *how; i++)
		for (int n = 0; n < 5; n++) {
			pid_t pid = child();
			if (pid == 0)
				threads(how[i][0], how[i][1], how[i][2]);
			next(pid, 0);
		}
}

static void vforks(void)
{
	volatile int mine = 1;
	pid_t pid = vfork();
	if (pid == 0) {
		mine = 2;
		execve(hello, (char *[]){ "hello", "vfork", NULL }, environ);
		_exit(9);
	}
	next(pid, 0);
	say("shared %d\n", mine);
	pid = vfork();
	if (pid == 0) {
		execve("/missing", (char *[]){ "x", NULL }, environ);
		mine = errno;
		_exit(3);
	}
	next(pid, 0);
	say("errno %d\n", mine == ENOENT);
	pid = vfork();
	if (pid == 0)
		syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
	next(pid, 0);
	int fd = open(hello, O_RDONLY | O_CLOEXEC);
	pid = child();
	if (pid == 0) {
		fexecve(fd, (char *[]){ "hello", "fexecve", NULL }, environ);
		_exit(9);
	}
	next(pid, 0);
}

static void zombies(void)
{
	pid_t pid = child();
	if (pid == 0)
		_exit(4);
	wait_for_state(pid, 'Z');
	say("signal to a zombie %d\n", kill(pid, SIGKILL));
	next(pid, 0);
	signal(SIGCHLD, SIG_IGN);
	pid = child();
	if (pid == 0)
		_exit(0);
	next(pid, 0); /* waits, and finds none */
	signal(SIGCHLD, SIG_DFL);
	enum { MANY = 200 };
	pid_t all[MANY];
	int sum = 0, status;
	for (int i = 0; i < MANY; i++)
		if ((all[i] = child()) == 0)
			_exit(i & 7);
	for (int i = MANY - 1; i >= 0; i--)
		sum += waitpid(all[i], &status, 0) == all[i] && WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
	say("sum %d\n", sum);
}

/* A child that ends in one of four ways. HELLO as interpreter does not open its script. */
static pid_t ending(int how)
{
	pid_t pid = child();
	if (pid)
		return pid;
	if (how == 1)
		raise(SIGKILL);
	if (how == 2)
		execve(hello, (char *[]){ "hello", "quiet", NULL }, environ);
	if (how == 3) {
		char script[512];
		int n = strrchr(hello, '/') - hello;
		snprintf(script, sizeof script, "%.*s/script", n, hello);
		close(1);
		execve(script, (char *[]){ script, NULL }, environ);
	}
	_exit(0);
}

/* A child has ended for a pidfd, for /proc and for a wait at the same time. */
static void seen_ends(void)
{
	int missed[2] = { 0, 0 };
	for (int i = 0; i < 200; i++) {
		pid_t pid = ending(i % 4);
		struct pollfd p = { .fd = syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
		need(p.fd >= 0 && poll(&p, 1, -1) == 1, "poll");
		if (waitpid(pid, NULL, WNOHANG) != pid && ++missed[0])
			waitpid(pid, NULL, 0);
		close(p.fd);
		pid = ending(i % 4);
		wait_for_state(pid, 'Z');
		if (waitpid(pid, NULL, WNOHANG) != pid && ++missed[1])
			waitpid(pid, NULL, 0);
	}
	say("ended, and no wait returns it: %d %d\n", missed[0], missed[1]);
}

static void *execute(void *unused)
{
	execve(hello, (char *[]){ "hello", "quiet", NULL }, environ);
	_exit(9);
	return unused;
}

static void *end_all(void *after_first)
{
	char path[64], text[64] = "";
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
	while (after_first && !strstr(text, ") Z")) { /* no signal may find it at its last stop */
		int fd = open(path, O_RDONLY);
		need(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "stat");
		close(fd);
	}
	_exit(0);
	return NULL;
}

/* Writes the path of a file beside another one. */
static void beside(char path[512], const char *other, const char *name)
{
	snprintf(path, 512, "%.*s/%s", (int)(strrchr(other, '/') - other), other, name);
}

/* As interpreter of a script that it does not open, with threads: processes ended SCRIPT HOW. */
static void ended(const char *script, char how)
{
	char program[512];
	beside(program, script, "hello");
	hello = program;
	pthread_t t;
	for (int i = 0; i < 3; i++)
		pthread_create(&t, NULL, wait_forever, NULL);
	switch (how) {
	case 'a':
		_exit(0);
	case 'b': /* another thread than the first */
		pthread_create(&t, NULL, end_all, NULL);
		forever();
	case 'c': /* another one, after the first has ended */
		pthread_create(&t, NULL, end_all, (void *)script);
		pthread_exit(NULL);
	case 'd':
		raise(SIGKILL);
	case 'e':
		raise(SIGTERM);
		break;
	case 'f': /* the others end for it */
		execute(NULL);
		break;
	case 'g':
		pthread_create(&t, NULL, execute, NULL);
		forever();
	case 'h':
		pthread_create(&t, NULL, execute, NULL);
		pthread_exit(NULL);
	}
	_exit(1);
}

/* As seen_ends, for threads and pidfds: /proc has a zombie as soon as its first thread ends. */
static void threads_end(void)
{
	char script[512];
	beside(script, hello, "threaded");
	for (char how[] = "a"; *how <= 'h'; ++*how) {
		int missed = 0, status = 0;
		for (int i = 0; i < 10; i++) {
			pid_t pid = child();
			if (pid == 0) {
				execve(script, (char *[]){ script, how, NULL }, environ);
				_exit(9);
			}
			struct pollfd p = { .fd = syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
			need(p.fd >= 0 && poll(&p, 1, -1) == 1, "poll");
			if (waitpid(pid, &status, WNOHANG) != pid && ++missed)
				waitpid(pid, &status, 0);
			close(p.fd);
		}
		/* A thread that is continued just when another ends the process does not stop at its end: doc/detect.md. */
		say("%s: ended with %d, and waits return it: %d\n", how, status, missed <= 1);
	}
}

static void on_signal(int s) { got = s; }

static void orphans(void)
{
	int end[2];
	need(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe(end) == 0, "prepare");
	pid_t self = getpid(), middle = child();
	if (middle == 0) {
		pid_t orphan = child();
		if (orphan == 0) {
			signal(SIGUSR1, on_signal);
			sigset_t blocked, none;
			sigemptyset(&none);
			sigemptyset(&blocked);
			sigaddset(&blocked, SIGUSR1);
			sigprocmask(SIG_BLOCK, &blocked, NULL);
			prctl(PR_SET_PDEATHSIG, SIGUSR1);
			if (write(end[1], "r", 1) != 1)
				_exit(1);
			sigsuspend(&none);
			_exit(got == SIGUSR1 && getppid() == self ? 11 : 1);
		}
		char c;
		if (read(end[0], &c, 1) != 1)
			_exit(1);
		_exit(12);
	}
	next(middle, 0);
	next(-1, 0);
	next(-1, 0);
}

static void *stay(void *unused)
{
	for (volatile unsigned long n = 0;; n++)
		;
	return unused;
}

static void groups(void)
{
	pid_t first = child();
	if (first == 0) {
		setpgid(0, 0);
		pthread_t t;
		pthread_create(&t, NULL, stay, NULL);
		forever();
	}
	setpgid(first, first);
	pid_t second = child();
	if (second == 0) {
		setpgid(0, first);
		forever();
	}
	setpgid(second, first);
	need(kill(-first, SIGSTOP) == 0, "kill");
	next(first, WUNTRACED);
	next(second, WUNTRACED);
	need(kill(-first, SIGCONT) == 0, "kill");
	next(first, WCONTINUED);
	next(second, WCONTINUED);
	need(kill(-first, SIGTERM) == 0, "kill");
	next(first, 0);
	next(second, 0);
	say("group gone %d\n", kill(-first, 0) < 0 && errno == ESRCH);
}

/* A stopped process whose group becomes an orphan gets SIGHUP and SIGCONT. */
static void orphaned_group(void)
{
	need(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prepare");
	pid_t leader = child();
	if (leader == 0) {
		setsid();
		pid_t pid = child();
		if (pid == 0) {
			setpgid(0, 0);
			signal(SIGHUP, on_signal);
			raise(SIGTSTP);
			_exit(got == SIGHUP ? 13 : 1);
		}
		int status;
		need(waitpid(pid, &status, WUNTRACED) == pid, "wait");
		_exit(WIFSTOPPED(status) ? 14 : 15);
	}
	next(leader, 0);
	next(-1, 0);
}

/* in_terminal runs f as the leader of a session with a terminal, and prints its output. */
static int master;

static void in_terminal(void (*f)(int))
{
	master = posix_openpt(O_RDWR | O_NOCTTY);
	need(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0, "open a terminal");
	const char *name = ptsname(master);
	pid_t leader = child();
	if (leader == 0) {
		setsid();
		int tty = open(name, O_RDWR);
		need(tty >= 0, "open the terminal");
		f(tty);
		_exit(0);
	}
	next(leader, 0);
}

static void jobs(int tty)
{
	signal(SIGTTOU, SIG_IGN);
	pid_t pid = child();
	if (pid == 0) {
		char c;
		struct termios mode;
		setpgid(0, 0);
		signal(SIGTTOU, SIG_DFL);
		ssize_t n = read(tty, &c, 1); /* in the background: SIGTTIN */
		say("read %zd\n", n);
		raise(SIGSTOP);
		tcgetattr(tty, &mode);
		say("set %d\n", tcsetattr(tty, TCSANOW, &mode)); /* in the background: SIGTTOU */
		raise(SIGSTOP);
		forever();
	}
	setpgid(pid, pid);
	next(pid, WUNTRACED);
	need(tcsetpgrp(tty, pid) == 0, "foreground");
	need(kill(-pid, SIGCONT) == 0, "kill");
	next(pid, WCONTINUED);
	need(write(master, "\n", 1) == 1, "type");
	next(pid, WUNTRACED);
	need(tcsetpgrp(tty, getpgrp()) == 0, "background");
	say("foreground %d\n", tcgetpgrp(tty) == getpgrp());
	need(kill(-pid, SIGCONT) == 0, "kill");
	next(pid, WUNTRACED);
	need(tcsetpgrp(tty, pid) == 0, "foreground");
	need(kill(-pid, SIGCONT) == 0, "kill");
	next(pid, WUNTRACED);
	need(kill(-pid, SIGCONT) == 0, "kill");
	next(pid, WCONTINUED);
	need(write(master, "\x1a", 1) == 1, "type");
	next(pid, WUNTRACED);
	need(kill(-pid, SIGCONT) == 0, "kill");
	need(write(master, "\x03", 1) == 1, "type");
	next(pid, 0);
}

/* The end of the session's leader hangs up the foreground group. */
static int told[2];

static void hangup(int tty)
{
	pid_t pid = child();
	if (pid == 0) {
		setpgid(0, 0);
		signal(SIGHUP, on_signal);
		sigset_t blocked, none;
		sigemptyset(&none);
		sigemptyset(&blocked);
		sigaddset(&blocked, SIGHUP);
		sigprocmask(SIG_BLOCK, &blocked, NULL);
		if (write(told[1], "r", 1) != 1)
			_exit(1);
		sigsuspend(&none);
		_exit(got == SIGHUP ? 16 : 1);
	}
	setpgid(pid, pid);
	signal(SIGTTOU, SIG_IGN);
	need(tcsetpgrp(tty, pid) == 0, "foreground");
	char c;
	need(read(told[0], &c, 1) == 1, "read");
}

static void on_child(int s, siginfo_t *info, void *unused)
{
	(void)unused;
	got = s;
	char line[64];
	int n = snprintf(line, sizeof line, "child %d %d\n", info->si_code, info->si_status);
	if (write(1, line, n) != n)
		_exit(3);
}

static void child_signals(void)
{
	sigset_t blocked, old;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGCHLD);
	sigprocmask(SIG_BLOCK, &blocked, &old);
	for (int quiet = 0; quiet < 2; quiet++) {
		struct sigaction act = { .sa_sigaction = on_child, .sa_flags = SA_SIGINFO | (quiet ? SA_NOCLDSTOP : 0) };
		sigaction(SIGCHLD, &act, NULL);
		pid_t pid = child();
		if (pid == 0) {
			raise(SIGSTOP);
			wait_to_go();
			_exit(quiet);
		}
		if (!quiet)
			sigsuspend(&old);
		next(pid, WUNTRACED);
		need(kill(pid, SIGCONT) == 0, "kill");
		if (!quiet)
			sigsuspend(&old);
		else
			next(pid, WCONTINUED);
		let_go();
		sigsuspend(&old);
		next(pid, 0);
	}
}

/* make_call makes a call of at most ms milliseconds, or of a minute, and writes its result. */
static void make_call(int i, int ms, int never, int results)
{
	struct pollfd p = { .fd = never, .events = POLLIN };
	struct timespec short_time = { ms / 1000, ms % 1000 * 1000000 }, long_time = { 60, 0 };
	struct epoll_event e = { .events = EPOLLIN };
	int ep = epoll_create1(0), word = 0, result = 0;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	epoll_ctl(ep, EPOLL_CTL_ADD, never, &e);
	errno = 0;
	switch (i) {
	case 0: result = poll(&p, 1, ms); break;
	case 1: result = nanosleep(&short_time, NULL); break;
	case 2: result = epoll_wait(ep, &e, 1, 60000); break;
	case 3: result = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &short_time, NULL, 0); break;
	case 4: result = sigtimedwait(&set, NULL, &long_time); break;
	}
	dprintf(results, "call %d: %d %s\n", i, result, strerror(errno));
	_exit(0);
}

/* interrupted stops a child in a call and continues it. It returns 0 if the call ended before
 * the stop, as on a busy machine. */
static int interrupted(int i, int ms)
{
	int never[2], results[2], status;
	char text[128];
	need(pipe(never) == 0 && pipe(results) == 0, "pipe");
	pid_t pid = child();
	if (pid == 0)
		make_call(i, ms, never[0], results[1]);
	wait_for_state(pid, 'S');
	need(kill(pid, SIGSTOP) == 0, "kill");
	need(waitpid(pid, &status, WUNTRACED) == pid, "wait");
	int stopped = WIFSTOPPED(status);
	if (stopped) {
		say("%s\n", status_of(status));
		need(kill(pid, SIGCONT) == 0, "kill");
		need(waitpid(pid, &status, 0) == pid, "wait");
		ssize_t n = read(results[0], text, sizeof text);
		need(n > 0, "read");
		say("%.*s%s\n", (int)n, text, status_of(status));
	}
	for (int end = 0; end < 2; end++) {
		close(never[end]);
		close(results[end]);
	}
	return stopped;
}

/* Calls that a stop interrupts go on, or end with EINTR: see signal(7). */
static void restarts(void)
{
	for (int i = 0; i < 5; i++) {
		for (int ms = 300; !interrupted(i, ms); ms *= 4)
			need(ms < 60000, "stop");
	}
	struct sigaction act = { .sa_handler = on_signal };
	struct itimerval each = { { 1, 0 }, { 1, 0 } }, none = { { 0, 0 }, { 0, 0 } };
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &each, NULL); /* more than once: the first can come before the call */
	int result = pause();
	int because = errno;
	setitimer(ITIMER_REAL, &none, NULL);
	say("pause %d %s\n", result, strerror(because));
}

static void queued(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGRTMIN);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	pid_t self = getpid(), pid = child();
	if (pid == 0) {
		for (int i = 0; i < 5; i++)
			sigqueue(self, SIGRTMIN, (union sigval){ .sival_int = i });
		need(kill(self, SIGUSR1) == 0, "kill");
		need(kill(self, SIGUSR1) == 0, "kill");
		_exit(0);
	}
	next(pid, 0);
	siginfo_t info;
	struct timespec none = { 0, 0 };
	while (sigtimedwait(&set, &info, &none) > 0)
		say("%d %d %d %d\n", info.si_signo == SIGUSR1, info.si_code, info.si_signo == SIGUSR1 ? 0 : info.si_value.sival_int, info.si_pid == pid);
}

static void ends(void)
{
	for (int i = 0; i < 4; i++) {
		pid_t pid = child();
		if (pid == 0) {
			pthread_t t;
			for (int n = 0; n < 4; n++)
				pthread_create(&t, NULL, n & 1 ? wait_forever : stay, NULL);
			switch (i) {
			case 0: _exit(21);
			case 1: abort();
			case 2: *(volatile int *)8 = 1; break;
			case 3: kill(getpid(), SIGKILL); break;
			}
			forever();
		}
		int status;
		need(waitpid(pid, &status, 0) == pid, "wait");
		say("%s\n", status_of(status));
	}
}

/* Signals at random moments of execs. */
static void storms(void)
{
	static const int kinds[][2] = { { SIGKILL, 0 }, { SIGSTOP, SIGCONT }, { SIGSTOP, SIGKILL } };
	unsigned seed = 11;
	for (int kind = 0; kind < 3; kind++) {
		int bad = 0;
		for (int i = 0; i < 60; i++) {
			pid_t pid = child();
			if (pid == 0) {
				execve(hello, (char *[]){ "hello", "quiet", NULL }, environ);
				_exit(9);
			}
			for (volatile unsigned n = rand_r(&seed) % 400000; n; n--)
				;
			need(kill(pid, kinds[kind][0]) == 0, "kill");
			if (kinds[kind][1])
				need(kill(pid, kinds[kind][1]) == 0, "kill");
			int status;
			int done = waitpid(pid, &status, 0) == pid;
			int fine = (WIFEXITED(status) && WEXITSTATUS(status) == 0) || (kind != 1 && WIFSIGNALED(status));
			bad += !done || !fine;
		}
		say("storm %d\n", bad);
	}
}

/* Execs and judged signals while a timer fires whose handler has no SA_RESTART. */
static void interrupts(void)
{
	struct sigaction act = { .sa_handler = on_signal };
	struct itimerval each = { { 0, 1000 }, { 0, 1000 } }, none = { { 0, 0 }, { 0, 0 } };
	int execs = 0, kills = 0;
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &each, NULL);
	for (int i = 0; i < 1000; i++) {
		execve("/missing", (char *[]){ "x", NULL }, environ);
		execs += errno != ENOENT;
		kills += kill(getpid(), 0) != 0;
	}
	setitimer(ITIMER_REAL, &none, NULL);
	say("%d %d\n", execs, kills);
}

/* rule sends a signal that the policy of the test denies. */
static void rule(void)
{
	int result = kill(getpid(), SIGUSR2);
	say("%d %s\n", result, strerror(errno));
	pid_t pid = child();
	if (pid == 0)
		forever();
	say("%d\n", kill(pid, SIGUSR2));
	say("%d %d\n", kill(0, SIGUSR2), killpg(getpgrp(), SIGUSR2));
	need(kill(pid, SIGINT) == 0, "kill");
	next(pid, 0);
}

/* own_trace loads a filter that stops execve and kill for a tracer, which there is none of. */
static void own_trace(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kill, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE | 7),
	};
	struct sock_fprog p = { sizeof f / sizeof *f, f };
	pid_t pid = child();
	if (pid == 0) {
		need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p) == 0, "filter");
		say("%d", kill(getpid(), 0));
		say(" %d", kill(getpid(), SIGUSR2));
		say(" %s\n", strerror(errno));
		execve("/missing", (char *[]){ "x", NULL }, environ);
		say("%s\n", strerror(errno));
		execve(hello, (char *[]){ "hello", "runs", NULL }, environ);
		say("%s\n", strerror(errno));
		_exit(9);
	}
	next(pid, 0);
}

/* idle makes processes that do nothing, every third one stopped, and executes a command. */
static int idle(char **argv)
{
	for (int i = atoi(argv[2]); i; i--) {
		pid_t pid = child();
		if (pid == 0) {
			if (i % 3 == 0)
				raise(SIGSTOP);
			forever();
		}
		if (i % 3 == 0)
			need(waitpid(pid, NULL, WUNTRACED) == pid, "wait");
	}
	execv(argv[3], argv + 3);
	need(0, argv[3]);
	return 1;
}

/* Signals that are ignored, by default or by choice, end no wait. */
static void ignored(void)
{
	struct epoll_event event;
	struct timespec limit = { .tv_nsec = 200000000 };
	struct timeval limit_us = { .tv_usec = 200000 };
	struct sembuf less = { .sem_op = -1 };
	const int signals[] = { SIGCHLD, SIGWINCH, SIGUSR1 };
	sigset_t set;
	char c;
	int pair[2], poller = epoll_create1(0), semaphore = semget(IPC_PRIVATE, 1, 0600);
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && semaphore >= 0, "prepare");
	need(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit_us, sizeof limit_us) == 0, "limit");
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGUSR1, SIG_IGN);
	for (int i = 0; i < 12; i++) {
		pid_t pid = child();
		if (pid == 0) {
			usleep(50000);
			if (i % 3)
				kill(getppid(), signals[i % 3]);
			_exit(0);
		}
		long r = 0;
		switch (i / 3) {
		case 0: r = epoll_wait(poller, &event, 1, 200); break;
		case 1: r = semtimedop(semaphore, &less, 1, &limit); break;
		case 2: r = sigtimedwait(&set, NULL, &limit); break;
		case 3: r = recv(pair[0], &c, 1, 0); break;
		}
		say("%d %ld %s", i, r, r < 0 ? strerror(errno) : "");
		need(waitpid(pid, NULL, 0) == pid, "wait");
	}
	semctl(semaphore, 0, IPC_RMID);
}

/* Ignored signals that come on and on do not prolong a wait without end. */
static void ignored_stream(void)
{
	struct timeval limit = { .tv_usec = 300000 };
	char c;
	int pair[2];
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0, "prepare");
	pid_t pid = child();
	if (pid == 0)
		for (;;) {
			kill(getppid(), SIGWINCH);
			usleep(50000);
		}
	need(recv(pair[0], &c, 1, 0) < 0, "receive");
	need(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid, "end");
	say("ended");
}

/* busy_leader has another thread execute in vain, and then a program, while the first one makes calls. */
static void *executes(void *arg)
{
	(void)arg;
	char *const none[] = { "none", NULL }, *const argv[] = { hello, "executed", NULL };
	for (int i = 0; i < 200; i++)
		execv("/nonexistent", none);
	execv(hello, argv);
	return NULL;
}

static void busy_leader(void)
{
	pthread_t thread;
	need(pthread_create(&thread, NULL, executes, NULL) == 0, "thread");
	for (;;) {
		need(kill(getpid(), 0) == 0, "kill");
		waitpid(-1, NULL, WNOHANG);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "stops", stops }, { "infos", infos }, { "clones", clones }, { "dethread", dethread }, { "vforks", vforks },
	{ "zombies", zombies }, { "seen-ends", seen_ends }, { "threads-end", threads_end }, { "orphans", orphans }, { "groups", groups }, { "orphaned-group", orphaned_group },
	{ "child-signals", child_signals }, { "restarts", restarts }, { "ignored", ignored }, { "ignored-stream", ignored_stream }, { "busy-leader", busy_leader }, { "queued", queued }, { "ends", ends },
	{ "storms", storms }, { "interrupts", interrupts }, { "rule", rule },
	{ "own-trace", own_trace },
};

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	if (argc > 3 && strcmp(argv[1], "ended") == 0) {
		ended(argv[2], *argv[3]);
		return 1;
	}
	if (argc > 3 && strcmp(argv[1], "idle") == 0)
		return idle(argv);
	hello = argv[2];
	need(pipe(go) == 0, "pipe");
	if (strcmp(argv[1], "jobs") == 0)
		in_terminal(jobs);
	else if (strcmp(argv[1], "hangup") == 0) {
		need(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && pipe(told) == 0, "prepare");
		in_terminal(hangup);
		next(-1, 0);
	} else
		for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
			if (strcmp(argv[1], cases[i].name) == 0) {
				cases[i].run();
				return 0;
			}
	return 0;
}
