/* The session init.
 *
 * It is a constructor of this program and runs before the Go runtime. It acts only
 * when the whole command line is "agentsh-init", and then never returns. It carries
 * out the setup that the supervisor sent (setup.c, mount.c, restrict.c). After that
 * it has two threads (loop.c):
 *
 *   main     reads the control socket, reaps children and ends commands. It has no
 *            filter: its kill calls must not wait for the supervisor.
 *   forking  has the filter, which every command inherits. It forks one child for
 *            each request (command.c).
 *
 * As process 1 it gets no signal from inside its namespace. When it ends, the kernel
 * kills all other processes. It ends when the supervisor closes the control socket. It
 * keeps no capability and reads nothing that comes from inside.
 *
 * In a session without namespaces it is a subreaper. The supervisor refuses signals to
 * it. When the control socket closes, it kills all processes with its marks.
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

struct init_state S = { .mu = PTHREAD_MUTEX_INITIALIZER, .proc = -1, .root = -1, .listener = -1, .layer = -1, .tag_base = TAG_BASE };

void die(int err, const char *step, const char *object)
{
	char msg[1 + 4 + 512];
	uint32_t e = (uint32_t)err;
	msg[0] = MSG_DIED;
	memcpy(msg + 1, &e, 4);
	int n = snprintf(msg + 5, sizeof msg - 5, "%s%s%s", step, object[0] ? " " : "", object);
	if (n < 0 || n >= (int)sizeof msg - 5)
		n = sizeof msg - 6;
	if (send(FD_CONTROL, msg, 5 + (size_t)n, MSG_NOSIGNAL) < 0)
		dprintf(2, "agentsh-init: %s: %s\n", msg + 5, strerror(err));
	_exit(125);
}

int send_msg(int sock, const void *data, size_t len, const int *fds, int nfds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = { (void *)data, len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (nfds > 0) {
		memset(&control, 0, sizeof control);
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, (size_t)nfds * sizeof(int));
	}
	ssize_t n;
	do
		n = sendmsg(sock, &m, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)len ? 0 : -1;
}

ssize_t recv_msg(int sock, void *data, size_t len, int *fds, int max, int *nfds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(16 * sizeof(int))];
	} control;
	struct iovec iov = { data, len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof control.buf };
	ssize_t n;
	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	*nfds = 0;
	if (n < 0)
		return -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		int k = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (int i = 0; i < k; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof fd);
			if (*nfds < max)
				fds[(*nfds)++] = fd;
			else
				close(fd);
		}
	}
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		for (int i = 0; i < *nfds; i++)
			close(fds[i]);
		*nfds = 0;
		errno = EMSGSIZE;
		return -1;
	}
	return n;
}

/* -- reading specifications -- */

static const uint8_t *read_raw(struct reader *r, size_t n)
{
	if (r->bad || (size_t)(r->end - r->p) < n) {
		r->bad = 1;
		return NULL;
	}
	const uint8_t *p = r->p;
	r->p += n;
	return p;
}

uint32_t read_u32(struct reader *r)
{
	uint32_t v = 0;
	const uint8_t *p = read_raw(r, sizeof v);
	if (p)
		memcpy(&v, p, sizeof v);
	return v;
}

uint64_t read_u64(struct reader *r)
{
	uint64_t v = 0;
	const uint8_t *p = read_raw(r, sizeof v);
	if (p)
		memcpy(&v, p, sizeof v);
	return v;
}

const uint8_t *read_bytes(struct reader *r, uint32_t *len)
{
	*len = read_u32(r);
	return read_raw(r, *len);
}

const char *read_str(struct reader *r)
{
	uint32_t n = read_u32(r);
	const uint8_t *p = read_raw(r, (size_t)n + 1);
	if (!p || p[n] != 0 || memchr(p, 0, n)) {
		r->bad = 1;
		return "";
	}
	return (const char *)p;
}

/* Frame: "agsh", u32 version, u32 length of the whole, then the content. */
int map_spec(int fd, struct reader *r)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return errno;
	if (st.st_size < 12 || st.st_size > MAX_SPEC)
		return EMSGSIZE;
	void *m = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (m == MAP_FAILED)
		return errno;
	r->p = m;
	r->end = r->p + st.st_size;
	r->bad = 0;
	const uint8_t *magic = read_raw(r, 4);
	if (!magic || memcmp(magic, "agsh", 4) != 0 || read_u32(r) != 1 || read_u32(r) != (uint32_t)st.st_size)
		return EBADMSG;
	return 0;
}

/* -- start -- */

/* Sets all signals to their defaults and blocks SIGCHLD for the loop. */
static void reset_signals(void)
{
	for (int s = 1; s < 65; s++)
		signal(s, SIG_DFL);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
}

static void receive_setup(struct reader *r)
{
	uint8_t type = 0;
	int fd, nfds;
	ssize_t n = recv_msg(FD_CONTROL, &type, 1, &fd, 1, &nfds);
	if (n == 0)
		_exit(125); /* the supervisor has ended */
	if (n != 1 || nfds != 1 || type != MSG_SETUP)
		die(n < 0 ? errno : EBADMSG, "receive setup", "");
	int err = map_spec(fd, r);
	if (err)
		die(err, "read setup", "");
	close(fd);
}

/* When memory runs out the kernel ends commands before the supervisor: this process and
   what it starts have at least this value. Nobody inside can lower it. Raising it needs
   no privilege. See proc_pid_oom_score_adj(5). */
#define COMMAND_OOM_SCORE 500

static void offer_memory(void)
{
	char text[16] = "";
	int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return; /* without /proc */
	if (read(fd, text, sizeof text - 1) > 0 && atoi(text) < COMMAND_OOM_SCORE) {
		int n = snprintf(text, sizeof text, "%d", COMMAND_OOM_SCORE);
		ssize_t ignored = write(fd, text, (size_t)n);
		(void)ignored;
	}
	close(fd);
}

__attribute__((noreturn)) static void init_main(void)
{
	reset_signals();
	offer_memory(); /* while it can be dumped: its files in /proc are its own */
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		die(errno, "become undumpable", "");
	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		die(errno, "die with the supervisor", "");
	if (fcntl(FD_CONTROL, F_SETFD, FD_CLOEXEC) < 0 || fcntl(FD_START, F_SETFD, FD_CLOEXEC) < 0)
		die(errno, "start session init: no control socket", "");
	if (syscall(SYS_close_range, 5, ~0U, 0) < 0)
		die(errno, "close descriptors", "");
	umask(022);
	setsid();
	struct reader r;
	receive_setup(&r);
	run_setup(&r);
	run_loop();
	_exit(0);
}

/* The Go runtime opens /dev/null for writing in place of a closed output, and writes
 * to it would succeed. A /dev/null that can only be read fails each write with EBADF,
 * as a closed descriptor does. */
static void block_closed(void)
{
	for (int fd = 1; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0) {
			int null = open("/dev/null", O_RDONLY);
			if (null >= 0 && null != fd) { /* a lower descriptor is closed, too */
				dup2(null, fd);
				close(null);
			}
		}
}

/* Whether a command line is that of a supervisor: "agentsh" with any directory. */
static int is_program(const char *line, size_t len)
{
	const char *end = memchr(line, 0, len), *base = line;
	for (const char *p = line; end && p < end; p++)
		if (*p == '/')
			base = p + 1;
	return end && strcmp(base, "agentsh") == 0;
}

__attribute__((constructor)) static void maybe_init(void)
{
	block_closed();
	static const char name[] = "agentsh-init", outside[] = "agentsh-outside";
	char line[4096];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t n = read(fd, line, sizeof line);
	close(fd);
	if (n == sizeof name && memcmp(line, name, sizeof name) == 0)
		init_main();
	if (n == sizeof outside && memcmp(line, outside, sizeof outside) == 0)
		start_outside();
	if (n > 0 && is_program(line, (size_t)n))
		enter_user_namespace();
}
