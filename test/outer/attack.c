/* Attacks on the stop of an execve by SIGSYS, beside a listener that takes execve.
 *
 *   attack NAME PROGRAM [COOKIE]
 *
 * PROGRAM is denied, and prints "reached" if it runs. Each attack prints what became of it.
 * A process that is killed prints "killed".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *program;
static uint64_t cookie;
extern char **environ;

static long run(const char *path, uint64_t last)
{
	char *argv[] = { (char *)path, NULL };
	return syscall(SYS_execve, path, argv, environ, 0, 0, last);
}

static const char *ended(long r) { return r < 0 && errno == EACCES ? "denied" : r < 0 ? strerror(errno) : "?"; }

static void report(const char *what) { dprintf(1, "%s\n", what); }

/* Runs a function in a child and reports how the child ended. */
static void in_child(void (*f)(void))
{
	pid_t pid = fork();
	if (pid == 0) {
		f();
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		report(WTERMSIG(status) == SIGKILL ? "killed" : strsignal(WTERMSIG(status)));
}

static volatile sig_atomic_t handled;
static void handler(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)info, (void)context;
	handled++;
}

static void set_handler(void)
{
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	sigaction(SIGSYS, &a, NULL);
}

static void denied(void) { report(ended(run(program, 0))); }

static void with_handler(void)
{
	set_handler();
	denied();
	report(handled ? "handled" : "not handled");
	run("/bin/true", 0);
	report("true did not run");
}

static void block(int how)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGSYS);
	sigprocmask(how, &set, NULL);
}

static void blocked(void)
{
	block(SIG_BLOCK);
	denied();
	block(SIG_BLOCK);
	run("/bin/true", 0);
	report("true did not run");
}

static void ignored(void)
{
	signal(SIGSYS, SIG_IGN);
	denied();
	signal(SIGSYS, SIG_IGN);
	run("/bin/true", 0);
	report("true did not run");
}

/* A call with the cookie of the session passes the filter. */
static void replayed(void) { report(ended(run(program, cookie))); }

static void guessed(void)
{
	for (uint64_t n = 0; n < 64; n++) {
		long r = run(program, (uint64_t)1 << n);
		if (r >= 0 || errno != EACCES)
			report(ended(r));
	}
	report(ended(run(program, cookie ^ 1)));
}

/* The judged program is allowed, the one that runs with the cookie is not. */
static void *replay_thread(void *unused)
{
	(void)unused;
	run(program, cookie);
	return NULL;
}

static void replayed_beside(void)
{
	pthread_t t;
	pthread_create(&t, NULL, replay_thread, NULL);
	for (int n = 0; n < 1000; n++)
		run("/nothing/here", 0);
	pthread_join(t, NULL);
	report("still here");
}

static void replayed_by_thread(void)
{
	pthread_t t;
	pthread_create(&t, NULL, replay_thread, NULL);
	pthread_join(t, NULL);
	report("still here");
}

static void *exec_thread(void *path)
{
	report(ended(run(path, 0)));
	return NULL;
}

static void by_thread(void)
{
	pthread_t t;
	pthread_create(&t, NULL, exec_thread, (void *)program);
	pthread_join(t, NULL);
	pthread_create(&t, NULL, exec_thread, "/bin/true");
	pthread_join(t, NULL);
	report("true did not run");
}

static int vfork_child(void *unused)
{
	(void)unused;
	run(program, 0);
	_exit(errno == EACCES ? 7 : 8);
}

static void by_vfork(void)
{
	static char stack[65536];
	int status;
	pid_t pid = clone(vfork_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
	waitpid(pid, &status, 0);
	report(WIFEXITED(status) && WEXITSTATUS(status) == 7 ? "denied" : "?");
	denied();
}

/* A SIGSYS like that of the filter, which no call caused. */
static void forged(void)
{
	struct {
		int signo, err, code, pad;
		void *address;
		int call;
		unsigned arch;
		char rest[96];
	} info = { .signo = SIGSYS, .err = 0x5e5d, .code = 1 /* SYS_SECCOMP */, .call = SYS_execve,
#ifdef __x86_64__
		   .arch = AUDIT_ARCH_X86_64 };
#else
		   .arch = AUDIT_ARCH_AARCH64 };
#endif
	set_handler();
	syscall(SYS_rt_sigqueueinfo, getpid(), SIGSYS, &info);
	denied();
	report("after a forged signal");
}

static void filter(unsigned action)
{
	struct sock_filter f[] = { { 0x20, 0, 0, offsetof(struct seccomp_data, nr) }, { 0x15, 0, 1, SYS_execve }, { 0x06, 0, 0, action },
		                   { 0x06, 0, 0, SECCOMP_RET_ALLOW } };
	struct sock_fprog p = { 4, f };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p) < 0)
		report(strerror(errno));
}

static void own_allow(void)
{
	filter(SECCOMP_RET_ALLOW);
	denied();
}

static void own_trace(void)
{
	filter(SECCOMP_RET_TRACE);
	denied();
}

static void own_notify(void)
{
	filter(SECCOMP_RET_USER_NOTIF);
	denied();
}

/* Its own signal is the process's own: the handler gets it. */
static void own_trap(void)
{
	set_handler();
	filter(SECCOMP_RET_TRAP | 1);
	run("/bin/true", 0);
	report(handled ? "handled" : "not handled");
}

/* The same mark as that of the session. */
static void own_mark(void)
{
	set_handler();
	filter(SECCOMP_RET_TRAP | 0x5e5d);
	denied();
	run("/bin/true", 0);
	report(handled ? "handled" : "not handled");
}

/* Signals that arrive before the call is made again must not see the cookie. */
static volatile uint64_t seen;
#ifdef __x86_64__
#include <ucontext.h>
static void look(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)info;
	if ((uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_R8 + 1] == cookie)
		seen++;
}
#else
static void look(int sig, siginfo_t *info, void *context) { (void)sig, (void)info, (void)context; }
#endif

static void signals(void)
{
	struct sigaction a = { .sa_sigaction = look, .sa_flags = SA_SIGINFO };
	sigaction(SIGUSR1, &a, NULL);
	pid_t parent = getpid(), pid = fork();
	if (pid == 0) {
		for (;;)
			kill(parent, SIGUSR1);
	}
	int wrong = 0;
	for (int n = 0; n < 1000; n++) {
		run("/nothing/here", 42);
		wrong += errno != ENOENT && errno != EINTR;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	dprintf(1, "%d wrong, seen %d\n", wrong, (int)seen);
}

/* The last argument has its old value after a call that failed. */
static void restored(void)
{
#ifdef __x86_64__
	register long last asm("r9") = 4242;
	register long r asm("rax") = SYS_execve;
	char *argv[] = { "x", NULL };
	asm volatile("syscall" : "+r"(r), "+r"(last) : "D"("/nothing/here"), "S"(argv), "d"(environ) : "rcx", "r11", "memory");
	dprintf(1, "%ld %ld\n", r, last);
#else
	dprintf(1, "-2 4242\n");
#endif
}

static const struct {
	const char *name;
	void (*f)(void);
} attacks[] = {
	{ "denied", denied }, { "handler", with_handler }, { "blocked", blocked }, { "ignored", ignored }, { "replayed", replayed },
	{ "guessed", guessed }, { "replayed-by-thread", replayed_by_thread }, { "replayed-beside", replayed_beside }, { "thread", by_thread },
	{ "vfork", by_vfork }, { "forged", forged }, { "own-allow", own_allow }, { "own-trace", own_trace }, { "own-notify", own_notify },
	{ "own-trap", own_trap }, { "own-mark", own_mark }, { "signals", signals }, { "restored", restored },
};

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	program = argv[2];
	cookie = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
	for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++)
		if (strcmp(attacks[i].name, argv[1]) == 0) {
			in_child(attacks[i].f);
			return 0;
		}
	return 2;
}
