/* The child that becomes a command. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

/* Descriptors of the child while it prepares: 0 to 2 are the command's. */
enum { FD_SUPERVISOR = 3 };

enum { COMMAND_TTY = 1 };

struct plan {
	const char *path, *dir;
	char **argv, **envp;
	uint32_t flags, umask, nlimits;
	struct {
		uint32_t what;
		struct rlimit value;
	} limits[32];
};

static int report_fd;

/* Reports to the supervisor which step failed, and exits. */
__attribute__((noreturn)) static void fail(int err, const char *step, const char *object)
{
	char msg[5 + 512];
	uint32_t e = (uint32_t)err;
	msg[0] = MSG_FAILED;
	memcpy(msg + 1, &e, 4);
	int n = snprintf(msg + 5, sizeof msg - 5, "%s%s%s", step, object[0] ? " " : "", object);
	if (n < 0 || n >= (int)sizeof msg - 5)
		n = sizeof msg - 6;
	ssize_t ignored = write(report_fd, msg, 5 + (size_t)n);
	(void)ignored;
	_exit(127);
}

/* Reads counted strings as a NULL-terminated vector. */
static char **read_vector(struct reader *r)
{
	uint32_t n = read_u32(r);
	if (n > MAX_SPEC / 5)
		r->bad = 1;
	if (r->bad)
		return NULL;
	char **v = mmap(NULL, ((size_t)n + 1) * sizeof *v, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (v == MAP_FAILED)
		fail(errno, "read command", "");
	for (uint32_t i = 0; i < n && !r->bad; i++)
		v[i] = (char *)(uintptr_t)read_str(r);
	return v;
}

static void read_plan(int fd, struct plan *p)
{
	struct reader r;
	int err = map_spec(fd, &r);
	if (err)
		fail(err, "read command", "");
	p->path = read_str(&r);
	p->dir = read_str(&r);
	p->flags = read_u32(&r);
	p->umask = read_u32(&r);
	p->nlimits = read_u32(&r);
	if (p->nlimits > 32)
		r.bad = 1;
	for (uint32_t i = 0; i < p->nlimits && !r.bad; i++) {
		p->limits[i].what = read_u32(&r);
		p->limits[i].value.rlim_cur = read_u64(&r);
		p->limits[i].value.rlim_max = read_u64(&r);
		if ((int)p->limits[i].what == S.tag_limit)
			r.bad = 1;
	}
	p->argv = read_vector(&r);
	p->envp = read_vector(&r);
	if (r.bad || r.p != r.end || !p->path[0] || p->dir[0] != '/' || !p->argv || !p->argv[0] ||
	    (p->flags & ~COMMAND_TTY) || p->umask > 0777)
		fail(EBADMSG, "read command: malformed", "");
}

/* Moves the descriptors to their final numbers and closes all others. */
static void move_descriptors(const int fds[5])
{
	int high[4]; /* above every final number */
	for (int i = 0; i < 4; i++) {
		high[i] = fcntl(fds[i == 3 ? 1 : i + 2], F_DUPFD_CLOEXEC, 64);
		if (high[i] < 0)
			fail(errno, "move descriptors", "");
	}
	for (int i = 0; i < 4; i++)
		if (dup3(high[i], i, i == FD_SUPERVISOR ? O_CLOEXEC : 0) < 0 && errno != EINVAL)
			fail(errno, "move descriptors", "");
	report_fd = FD_SUPERVISOR;
	if (syscall(SYS_close_range, FD_SUPERVISOR + 1, ~0U, 0) < 0)
		fail(errno, "close descriptors", "");
}

/* Waits until the supervisor has registered the process and its mark is set. */
static void wait_for_go(void)
{
	char byte = MSG_STARTED;
	if (write(report_fd, &byte, 1) != 1)
		_exit(127);
	ssize_t n;
	do
		n = read(report_fd, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1 || byte != MSG_GO)
		_exit(127); /* the supervisor has ended */
}

void run_command(int fds[5])
{
	static struct plan p;
	sigset_t none;
	report_fd = fds[1];
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	read_plan(fds[0], &p);
	move_descriptors(fds);
	if (setsid() < 0)
		fail(errno, "start a session", "");
	if (S.traced) {
		if (load_trace_filter() < 0)
			fail(errno, "load the filter", "");
		if (S.dumpable) /* the supervisor begins to trace before it answers */
			prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	}
	wait_for_go();
	if ((p.flags & COMMAND_TTY) && ioctl(0, TIOCSCTTY, 0) < 0)
		fail(errno, "make the terminal the controlling one", "");
	umask((mode_t)p.umask);
	if (chdir(p.dir) < 0)
		fail(errno, "change directory to", p.dir);
	for (uint32_t i = 0; i < p.nlimits; i++)
		if (setrlimit((int)p.limits[i].what, &p.limits[i].value) < 0) {
			char name[16];
			snprintf(name, sizeof name, "%u", p.limits[i].what);
			fail(errno, "set resource limit", name);
		}
	if (S.dumpable)
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (execve(p.path, p.argv, p.envp) == 0) /* nobody but a listener above can do this */
		fail(EPERM, "exec, answered by another supervisor,", p.path);
	fail(errno, "exec", p.path);
}
