/* The two threads of the init after the setup, and the process trees of commands.
 *
 * Membership: every process of command n has the mark tag_base + n, its hard limit
 * RLIMIT_RTTIME, or RLIMIT_RSS where that cannot be set. The main thread sets it before the child may call execve. Every
 * process inherits it, and the filter refuses to change it. It survives setsid, double
 * forks and the end of parents. It needs no cgroup, and no helper process that a
 * command could kill.
 *
 * Completeness: a scan reads /proc in the order of numbers while processes start. A new
 * process therefore comes after its parent, unless numbers wrap. A tree is empty when
 * two scans in a row find no process. The last process of a tree has no other parent
 * left, so it is a child of the init, and its end wakes the main thread.
 */
#define _GNU_SOURCE
#include "init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PIDFD_SIGNAL_PROCESS_GROUP
#define PIDFD_SIGNAL_PROCESS_GROUP (1U << 2)
#endif

__attribute__((noreturn)) static void end_session(void);

/* -- the forking thread -- */

static pid_t fork_child(void)
{
	return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* Adds a command to the table; the caller holds mu. */
static struct command *add_command(uint64_t serial)
{
	for (int i = 0; i < MAX_COMMANDS; i++)
		if (S.commands[i].serial == 0) {
			S.commands[i] = (struct command){ .serial = serial };
			return &S.commands[i];
		}
	return NULL;
}

static void refuse_command(int sock, int err, const char *text)
{
	char msg[128];
	uint32_t e = (uint32_t)err;
	size_t n = strlen(text);
	msg[0] = MSG_FAILED;
	memcpy(msg + 1, &e, 4);
	memcpy(msg + 5, text, n);
	send_msg(sock, msg, 5 + n, NULL, 0);
}

static void start_command(uint64_t serial, int fds[5])
{
	pthread_mutex_lock(&S.mu);
	struct command *c = add_command(serial);
	if (!c) {
		pthread_mutex_unlock(&S.mu);
		refuse_command(fds[1], EAGAIN, "start command: too many are running");
		return;
	}
	pid_t pid = fork_child();
	if (pid == 0)
		run_command(fds);
	int err = errno;
	if (pid < 0)
		c->serial = 0;
	else
		c->pid = pid;
	pthread_mutex_unlock(&S.mu);
	uint64_t one = 1;
	if (pid < 0)
		refuse_command(fds[1], err, "fork command");
	else if (write(S.forked, &one, sizeof one) != sizeof one)
		die(errno, "wake the main thread", "");
}

static void serve_starts(void)
{
	for (;;) {
		struct {
			uint8_t type, pad[7];
			uint64_t serial;
		} m;
		int fds[5], nfds;
		ssize_t n = recv_msg(FD_START, &m, sizeof m, fds, 5, &nfds);
		if (n == 0)
			return; /* the main thread ends the init */
		if (n != sizeof m || nfds != 5 || m.type != MSG_COMMAND || m.serial == 0)
			die(n < 0 ? errno : EBADMSG, "receive command", "");
		start_command(m.serial, fds);
		for (int i = 0; i < 5; i++)
			close(fds[i]);
	}
}

/* Loads the filter with a listener. Where the kernel has none, or none whose waits signals
   do not interrupt, commands are traced: each loads its filter itself, because a process
   that is not traced could not even signal. */
static void choose_engine(void)
{
	S.listener_errno = 0;
	if (S.unjudged) {
		S.unfiltered = load_refusals() < 0 ? errno : 0;
		return;
	}
	if (S.filter.data) {
		S.listener = load_filter();
		S.listener_errno = errno;
	}
	S.traced = S.listener < 0 && S.trace_filter.data && (!S.filter.data || S.listener_errno == EBUSY ||
	                                                                (S.listener_errno == EINVAL && !knows_listener_flags()));
}

/* Has the supervisor choose the filter of traced commands: a listener of another supervisor
   takes calls away from a tracer. It may be there unseen, where a filter of that supervisor
   forbids further listeners with another error. */
static void receive_filter(void)
{
	struct reader r;
	uint8_t type, ask[2] = { MSG_BESIDE, S.listener_errno == EBUSY };
	int fd, nfds;
	if (send_msg(FD_CONTROL, ask, sizeof ask, NULL, 0) < 0)
		die(errno, "ask for the filter of traced commands", "");
	ssize_t n = recv_msg(FD_CONTROL, &type, 1, &fd, 1, &nfds);
	if (n == 0)
		_exit(125); /* the supervisor has ended */
	int err = n == 1 && nfds == 1 && type == MSG_FILTER ? map_spec(fd, &r) : n < 0 ? errno : EBADMSG;
	if (err)
		die(err, "receive the filter of traced commands", "");
	S.trace_filter.data = read_bytes(&r, &S.trace_filter.len);
	if (r.bad || r.p != r.end)
		die(EBADMSG, "receive the filter of traced commands", "");
	close(fd);
}

static void *forking_thread(void *unused)
{
	char byte = 0;
	(void)unused;
	/* The first thread of a process gets late timers, as it is the Go runtime's monitor elsewhere
	   (internal/threads). Here commands would inherit that. */
	prctl(PR_SET_TIMERSLACK, 0UL);
	/* Commands inherit the scheduling of this thread. The filter therefore refuses to
	   change that of these numbers: seccomp.initThreads. */
	if (!S.no_namespaces && syscall(SYS_gettid) > LAST_INIT_THREAD)
		die(ERANGE, "start the forking thread: its number is not one of the init's", "");
	if (S.layer >= 0 && syscall(SYS_landlock_restrict_self, S.layer, 0) < 0)
		die(errno, "enter Landlock domain", "of opens");
	choose_engine();
	if (write(S.prober[0], &byte, 1) != 1 || read(S.prober[0], &byte, 1) != 1)
		die(errno, "hand over the listener", "");
	pid_t pid = fork_child();
	if (pid < 0)
		die(errno, "fork prober", "");
	if (pid == 0)
		run_probes();
	if (write(S.prober[0], &byte, 1) != 1 || read(S.prober[0], &byte, 1) != 1)
		die(errno, "wait for prober", "");
	close(S.prober[0]);
	serve_starts();
	return NULL;
}

/* Hands the listener over, or reports that there is none. */
static void report_engine(void)
{
	uint8_t msg[5] = { MSG_LISTENER };
	uint32_t err = (uint32_t)(S.unjudged ? S.unfiltered : S.listener_errno);
	if (S.traced || S.unjudged) {
		msg[0] = S.traced ? MSG_TRACED : MSG_UNJUDGED;
		memcpy(msg + 1, &err, 4);
		if (send_msg(FD_CONTROL, msg, sizeof msg, NULL, 0) < 0)
			die(errno, "report that there is no listener", "");
		return;
	}
	if (send_msg(FD_CONTROL, msg, 1, &S.listener, 1) < 0)
		die(errno, "hand over the listener", "");
	close(S.listener);
}

/* Starts the forking thread, sends its listener to the supervisor, and has the thread
   prove that the restrictions hold. */
void start_forking_thread(void)
{
	pthread_t thread;
	char byte = 0;
	S.forked = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (S.forked < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, S.prober) < 0)
		die(errno, "connect the threads", "");
	int err = pthread_create(&thread, NULL, forking_thread, NULL);
	if (err)
		die(err, "start the forking thread", "");
	if (read(S.prober[1], &byte, 1) != 1)
		die(errno, "wait for the filter", "");
	if (S.listener < 0 && !S.traced && !S.unjudged)
		die(S.listener_errno, S.listener_errno == EINVAL ? "load the filter: the kernel may lack WAIT_KILLABLE_RECV (Linux 5.19)" :
		                      S.listener_errno == EBUSY  ? "load the filter: another supervisor's listener is above this one" :
		                                                   "load the filter", "");
	if (S.traced && S.beside)
		receive_filter();
	else if (S.traced && S.listener_errno == EBUSY)
		die(EBUSY, "load the filter: another supervisor's listener is above this one", "");
	report_engine();
	if (write(S.prober[1], &byte, 1) != 1 || read(S.prober[1], &byte, 1) != 1)
		die(errno, "start prober", "");
	int status;
	if (waitpid(-1, &status, __WALL) < 0 || status != 0)
		die(ECHILD, "run prober", "");
	if (write(S.prober[1], &byte, 1) != 1)
		die(errno, "finish prober", "");
	close(S.prober[1]);
	byte = MSG_READY;
	if (send_msg(FD_CONTROL, &byte, 1, NULL, 0) < 0)
		die(errno, "report ready", "");
}

/* -- trees -- */

struct dirent_raw { /* struct linux_dirent64 */
	uint64_t ino;
	int64_t off;
	unsigned short len;
	unsigned char type;
	char name[];
};

static struct command *by_serial(uint64_t serial)
{
	for (int i = 0; serial && i < MAX_COMMANDS; i++)
		if (S.commands[i].serial == serial)
			return &S.commands[i];
	return NULL;
}

/* Signals a process by a pidfd. Nonzero: that is not possible. */
static int signal_pidfd(pid_t pid, int sig, unsigned flags)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return -1;
	long r = syscall(SYS_pidfd_send_signal, fd, sig, NULL, flags);
	int err = errno;
	close(fd);
	errno = err;
	return r < 0 ? -1 : 0;
}

/* Signals a process. A supervisor above may deny kill(2) or never answer it, so that is the
   last call. */
static int signal_process(pid_t pid, int sig)
{
	if (signal_pidfd(pid, sig, 0) == 0)
		return 0;
	return errno == ESRCH ? -1 : kill(pid, sig);
}

/* Calls f for each process but this one. */
static void each_process(void (*f)(pid_t, void *), void *arg)
{
	char buf[16384] __attribute__((aligned(8)));
	lseek(S.proc, 0, SEEK_SET);
	for (;;) {
		long n = syscall(SYS_getdents64, S.proc, buf, sizeof buf);
		if (n < 0)
			die(errno, "list processes", "");
		if (n == 0)
			return;
		for (long at = 0; at < n;) {
			struct dirent_raw *d = (struct dirent_raw *)(buf + at);
			at += d->len;
			int pid = atoi(d->name);
			if (pid > 1)
				f(pid, arg);
		}
	}
}

/* Opens a pidfd before a process is looked at: a signal then cannot reach a later process of
   this number. GONE: there is none. NUMBER_ONLY: a filter above refuses pidfds. */
enum { GONE = -1, NUMBER_ONLY = -2 };
static int hold_process(pid_t pid)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	return pidfd >= 0 ? pidfd : errno == EPERM ? NUMBER_ONLY : GONE;
}

/* Signals a process that hold_process returned pidfd for. */
static int signal_held(int pidfd, pid_t pid, int sig)
{
	if (pidfd >= 0 && syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) == 0)
		return 0;
	return pidfd >= 0 && errno == ESRCH ? -1 : kill(pid, sig);
}

struct group {
	pid_t leader;
	int sig, found;
};

static void visit_member(pid_t pid, void *arg)
{
	struct group *g = arg;
	int pidfd = hold_process(pid);
	if (pidfd == GONE)
		return;
	if (getpgid(pid) == g->leader && signal_held(pidfd, pid, g->sig) == 0)
		g->found = 1;
	if (pidfd >= 0)
		close(pidfd);
}

/* Signals the group of a process. Groups have pidfds since Linux 6.9. Before that its members
   are signaled one by one, unless a listener of this session says that there is no supervisor
   above which has one. */
static int signal_group(pid_t leader, int sig)
{
	struct group g = { leader, sig, 0 };
	if (signal_pidfd(leader, sig, PIDFD_SIGNAL_PROCESS_GROUP) == 0)
		return 0;
	if (errno == ESRCH)
		return -1;
	if (S.listener >= 0)
		return kill(-leader, sig);
	each_process(visit_member, &g);
	return g.found ? 0 : -1;
}

/* What a walk over the processes looks for. */
struct search {
	uint64_t only; /* the serial number of a command that gets sig */
	int sig;
	uint32_t *leftover; /* or NULL */
};

/* Counts one process for its command, and signals it if that is requested. */
static void visit(pid_t pid, void *arg)
{
	const struct search *w = arg;
	struct rlimit l;
	int pidfd = hold_process(pid);
	if (pidfd == GONE)
		return;
	if (prlimit(pid, S.tag_limit, NULL, &l) == 0 && l.rlim_max != RLIM_INFINITY && l.rlim_max > S.tag_base) {
		struct command *c = by_serial(l.rlim_max - S.tag_base);
		if (c) {
			if (w->leftover && c->exited && !c->reported && c->found < 64)
				w->leftover[(c - S.commands) * 64 + c->found] = (uint32_t)pid;
			c->found++;
			int s = c->killing ? SIGKILL : c->serial == w->only ? w->sig : 0;
			if (s)
				signal_held(pidfd, pid, s);
		}
	}
	if (pidfd >= 0)
		close(pidfd);
}

static void walk(uint64_t only, int sig, uint32_t *leftover)
{
	struct search w = { only, sig, leftover };
	for (int i = 0; i < MAX_COMMANDS; i++)
		S.commands[i].found = 0;
	each_process(visit, &w);
}

static void report_tree(struct command *c, const uint32_t *pids)
{
	struct {
		uint8_t type, pad[7];
		uint64_t serial;
		uint32_t pids[64];
	} m = { .type = MSG_TREE, .serial = c->serial };
	uint32_t n = c->found < 64 ? c->found : 64;
	memcpy(m.pids, pids, n * sizeof pids[0]);
	if (send_msg(FD_CONTROL, &m, 16 + n * sizeof pids[0], NULL, 0) < 0)
		end_session();
	c->reported = 1;
}

/* Scans the trees of all commands. It kills the trees that are being killed, sends sig
   to the tree of command only, and reports leftover processes and empty trees.
   Nonzero: a tree that seemed empty was not, so scan again soon. */
int scan(uint64_t only, int sig)
{
	static uint32_t leftover[MAX_COMMANDS * 64];
	static uint8_t empty[MAX_COMMANDS];
	walk(only, sig, leftover);
	int again = 0;
	for (int i = 0; i < MAX_COMMANDS; i++) {
		struct command *c = &S.commands[i];
		empty[i] = c->serial && c->exited && c->found == 0;
		again |= empty[i];
		if (c->serial && c->exited && c->found && !c->reported)
			report_tree(c, leftover + i * 64);
	}
	if (!again)
		return 0;
	again = 0;
	walk(0, 0, NULL);
	for (int i = 0; i < MAX_COMMANDS; i++) {
		struct command *c = &S.commands[i];
		if (!empty[i])
			continue;
		if (c->found) {
			again = 1;
			continue;
		}
		struct {
			uint8_t type, pad[7];
			uint64_t serial;
		} m = { .type = MSG_EMPTY, .serial = c->serial };
		if (send_msg(FD_CONTROL, &m, sizeof m, NULL, 0) < 0)
			end_session();
		c->serial = 0;
	}
	return again;
}

/* -- the main thread -- */

static uint64_t micros(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec;
}

static void report_exit(struct command *c, int status, const struct rusage *u)
{
	struct exit_msg m = { .type = MSG_EXIT, .status = (uint32_t)status, .serial = c->serial,
		              .user_us = micros(u->ru_utime), .system_us = micros(u->ru_stime), .maxrss_kb = (uint64_t)u->ru_maxrss };
	if (send_msg(FD_CONTROL, &m, sizeof m, NULL, 0) < 0)
		end_session();
	c->exited = 1;
}

static void reap(void)
{
	int status;
	struct rusage u;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG | __WALL, &u)) > 0)
		for (int i = 0; i < MAX_COMMANDS; i++)
			if (S.commands[i].serial && S.commands[i].pid == pid && !S.commands[i].exited)
				report_exit(&S.commands[i], status, &u);
}

/* Marks the children that were forked meanwhile, and reports it. Only then the
   supervisor lets them continue. */
static void mark_forked(void)
{
	for (int i = 0; i < MAX_COMMANDS; i++) {
		struct command *c = &S.commands[i];
		if (!c->serial || c->marked || c->exited)
			continue;
		struct rlimit l = { S.tag_base + c->serial, S.tag_base + c->serial };
		struct {
			uint8_t type, pad[7];
			uint64_t serial;
		} m = { .type = MSG_MARKED, .serial = c->serial };
		if (prlimit(c->pid, S.tag_limit, &l, NULL) < 0)
			die(errno, "mark command", "");
		if (send_msg(FD_CONTROL, &m, sizeof m, NULL, 0) < 0)
			end_session();
		c->marked = 1;
	}
}

static int unfinished(void)
{
	for (int i = 0; i < MAX_COMMANDS; i++)
		if (S.commands[i].serial && (S.commands[i].exited || S.commands[i].killing))
			return 1;
	return 0;
}

static int killing(void)
{
	for (int i = 0; i < MAX_COMMANDS; i++)
		if (S.commands[i].serial && S.commands[i].killing)
			return 1;
	return 0;
}

/* Signals the group of a command, or the rest of its tree when its first process has
   ended, or starts to kill the whole tree. */
static void end_command(const struct kill_msg *m)
{
	struct command *c = by_serial(m->serial);
	if (!c)
		return;
	if (m->whole) {
		c->killing = 1;
		/* it may have no mark yet */
		if (!c->exited)
			signal_process(c->pid, SIGKILL);
		scan(0, 0);
	} else if (!c->exited) {
		if (signal_group(c->pid, (int)m->sig) < 0)
			signal_process(c->pid, (int)m->sig);
	} else {
		scan(c->serial, (int)m->sig);
	}
}

static void open_pty(void)
{
	struct {
		uint8_t type, pad[3];
		uint32_t err;
	} m = { .type = MSG_PTY };
	int fds[2] = { -1, -1 }, unlock = 0;
	fds[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fds[0] < 0 || ioctl(fds[0], TIOCSPTLCK, &unlock) < 0 ||
	    (fds[1] = ioctl(fds[0], TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0)
		m.err = (uint32_t)errno;
	if (send_msg(FD_CONTROL, &m, sizeof m, fds, m.err ? 0 : 2) < 0)
		end_session();
	if (fds[0] >= 0)
		close(fds[0]);
	if (fds[1] >= 0)
		close(fds[1]);
}

/* Kills every process of a session without namespaces. The kernel does this for a pid
   namespace. Orphans become children of the init. */
static void end_all(void)
{
	for (int left = 1, quiet = 0; left || quiet < 2; quiet = left ? 0 : quiet + 1) {
		left = 0;
		for (int i = 0; i < MAX_COMMANDS; i++)
			if (S.commands[i].serial) {
				S.commands[i].killing = 1;
				if (!S.commands[i].exited)
					signal_process(S.commands[i].pid, SIGKILL);
			}
		walk(0, 0, NULL);
		for (int i = 0; i < MAX_COMMANDS; i++)
			left |= S.commands[i].serial && S.commands[i].found;
		for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG | __WALL)) > 0;)
			for (int i = 0; i < MAX_COMMANDS; i++)
				if (S.commands[i].pid == pid)
					S.commands[i].exited = 1;
		if (left)
			poll(NULL, 0, 5);
	}
}

/* The supervisor has ended, or closes the session. */
__attribute__((noreturn)) static void end_session(void)
{
	if (S.no_namespaces)
		end_all();
	_exit(0);
}

static void serve_control(void)
{
	union {
		uint8_t type;
		struct kill_msg kill;
	} m;
	int nfds;
	ssize_t n = recv_msg(FD_CONTROL, &m, sizeof m, NULL, 0, &nfds);
	if (n == 0)
		end_session();
	if (n == sizeof m.kill && m.type == MSG_KILL && m.kill.sig < 65)
		end_command(&m.kill);
	else if (n == 1 && m.type == MSG_OPENPTY)
		open_pty();
	else
		die(n < 0 ? errno : EBADMSG, "receive request", "");
}

void run_loop(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	int sfd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (sfd < 0)
		die(errno, "open signalfd", "");
	int wait_ms = -1;
	for (;;) {
		struct pollfd p[3] = { { .fd = FD_CONTROL, .events = POLLIN }, { .fd = sfd, .events = POLLIN }, { .fd = S.forked, .events = POLLIN } };
		int n = poll(p, 3, wait_ms);
		if (n < 0 && errno != EINTR)
			die(errno, "poll", "");
		pthread_mutex_lock(&S.mu);
		if (n > 0 && p[1].revents) {
			struct signalfd_siginfo si;
			while (read(sfd, &si, sizeof si) > 0)
				;
			reap();
		}
		if (n > 0 && p[2].revents) {
			uint64_t count;
			ssize_t ignored = read(S.forked, &count, sizeof count);
			(void)ignored;
			mark_forked();
		}
		if (n > 0 && p[0].revents)
			serve_control();
		int again = unfinished() && scan(0, 0);
		/* A killed process may need time to end, and a scan may miss one that is being
		   forked: scan again. */
		wait_ms = again || killing() ? 20 : -1;
		pthread_mutex_unlock(&S.mu);
	}
}
