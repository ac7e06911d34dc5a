/* The opener: a process of the session that opens files for commands.
 *
 * A policy may decide each open below a directory whose files no mount can hide, such
 * as /proc. A second Landlock layer then keeps commands from opening them, and the
 * supervisor has this process open the files that the policy allows. The opener has the
 * user, the namespaces and the first Landlock layer of every command, and no capability.
 * It can therefore open exactly what a command could open without the second layer. It
 * is undumpable and outside the scope of that layer, so commands can neither read nor
 * signal it. It has no descriptor but its socket, and reads only from the supervisor. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN_PATH = 4096, SCOPE_SIGNAL = 2 };

/* Keep in step with opener.go. */
struct open_request {
	uint64_t id;
	uint32_t flags, pad;
	char path[OPEN_PATH]; /* absolute, without links, NUL-terminated */
};

struct open_reply {
	uint64_t id;
	uint32_t err, pad; /* 0: the message has one descriptor */
};

static void answer_open(int sock, struct open_request *q)
{
	struct open_how how = { .flags = q->flags | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };
	struct open_reply a = { .id = q->id };
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, q->path, &how, sizeof how);
	if (fd < 0)
		a.err = (uint32_t)errno;
	if (send_msg(sock, &a, sizeof a, &fd, fd < 0 ? 0 : 1) < 0)
		_exit(1);
	if (fd >= 0)
		close(fd);
}

__attribute__((noreturn)) static void opener(int sock)
{
	static struct open_request q;
	const int at = 3;
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		_exit(1);
	if (sock != at && dup2(sock, at) < 0)
		_exit(1);
	if (syscall(SYS_close_range, at + 1, ~0U, 0) < 0 || syscall(SYS_close_range, 0, at - 1, 0) < 0)
		_exit(1);
	for (;;) {
		int fds[1], nfds;
		ssize_t n = recv_msg(at, &q, sizeof q, fds, 0, &nfds);
		if (n != (ssize_t)sizeof q || q.path[OPEN_PATH - 1] != 0)
			_exit(0); /* the supervisor has ended, or the message is malformed */
		answer_open(at, &q);
	}
}

/* Makes the layer by which commands can open files beneath the paths only. */
static int make_layer(struct reader *r)
{
	struct {
		uint64_t fs, net, scoped;
	} a = { .fs = LANDLOCK_READ_FILE, .scoped = SCOPE_SIGNAL };
	uint32_t n = read_u32(r);
	if (n > MAX_ITEMS)
		r->bad = 1;
	if (r->bad)
		return -1;
	int ruleset = (int)syscall(SYS_landlock_create_ruleset, &a, sizeof a, 0);
	if (ruleset < 0)
		die(errno, "create Landlock ruleset", "of opens");
	for (uint32_t i = 0; i < n; i++) {
		const char *path = read_str(r);
		if (!r->bad)
			add_path_rule(ruleset, LANDLOCK_READ_FILE, path);
	}
	return ruleset;
}

void start_opener(struct reader *r)
{
	static const char msg[] = { MSG_SOCKET, 'o', 'p', 'e', 'n', 'e', 'r' };
	int pair[2];
	S.layer = make_layer(r);
	if (r->bad)
		return;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		die(errno, "connect opener", "");
	pid_t pid = fork();
	if (pid < 0)
		die(errno, "fork opener", "");
	if (pid == 0)
		opener(pair[1]);
	close(pair[1]);
	if (send_msg(FD_CONTROL, msg, sizeof msg, &pair[0], 1) < 0)
		die(errno, "hand over", "opener");
	close(pair[0]);
}
