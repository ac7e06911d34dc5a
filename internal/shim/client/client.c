/* The start of a shell of a shared session.
 *
 * The Go runtime takes longer to start than a shell. So this constructor, which runs before
 * it, does what a shell of a shared session usually needs: it finds the session, sends one
 * request and follows the command (follow.c). In every other case it returns, and the Go
 * program does all of it: without a session, on a terminal, below a package manager, with a
 * manifest that the supervisor does not know.
 *
 * It decides nothing. The supervisor compares the manifest and the program with what the
 * disk has, chooses directory and environment, and writes what is printed. No variable says
 * where the session is: PWD alone is read, as a name of the current directory.
 *
 * After the request was sent it never returns: the command may have begun, and must not
 * begin twice. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define SHELLS "/usr/lib/agentsh/shells/"

int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int send_packet(int sock, const void *data, size_t len)
{
	ssize_t n;
	do
		n = send(sock, data, len, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)len ? 0 : -1;
}

ssize_t receive_packet(int sock, void *data, size_t len, int fds[3], int *nfds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec iov = { data, len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof control.buf };
	ssize_t n;
	int reset = 0;
	do /* a supervisor that closes with unread packets resets, and what it sent before follows */
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !reset++)));
	*nfds = 0;
	if (n <= 0)
		return 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		int k = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (int i = 0; i < k && *nfds < 3; i++)
			memcpy(&fds[(*nfds)++], CMSG_DATA(c) + (size_t)i * sizeof(int), sizeof(int));
	}
	return m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : n;
}

/* -- what is installed, and who started this -- */

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static int is_shell(const char *argv0)
{
	static const char *const names[] = { "sh", "bash", "dash", "ash", "rbash" };
	const char *name = last_part(argv0);
	if (*name == '-')
		name++;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(name, names[i]) == 0)
			return 1;
	return 0;
}

/* Reads a file of a process; the number of bytes before the NUL, or -1. */
static ssize_t read_proc(long pid, const char *file, char *buf, size_t size, int link)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%ld/%s", pid, file);
	ssize_t n = -1;
	if (link) {
		n = readlink(path, buf, size - 1);
	} else {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			n = read(fd, buf, size - 1);
			close(fd);
		}
	}
	if (n >= 0)
		buf[n] = 0;
	return n;
}

/* The list and the rule are those of packager.go. One that others could change counts here,
   and the Go program then looks at it again. */
int below_packager(void)
{
	static const char *const packagers[] = {
		"/usr/bin/dpkg", "/usr/bin/apt-get", "/usr/bin/apt", "/usr/bin/aptitude", "/usr/bin/rpm", "/usr/bin/microdnf",
		"/sbin/apk", "/usr/sbin/apk", "/usr/bin/apk", "/usr/bin/pacman", "/usr/bin/zypper",
	};
	if (geteuid() != 0 || getuid() != 0)
		return 0;
	long pid = getppid();
	for (int i = 0; i < 64 && pid >= 1; i++) {
		char text[4096];
		if (read_proc(pid, "exe", text, sizeof text, 1) > 0)
			for (size_t k = 0; k < sizeof packagers / sizeof *packagers; k++)
				if (strcmp(text, packagers[k]) == 0)
					return 1;
		if (read_proc(pid, "stat", text, sizeof text, 0) <= 0)
			return 0;
		char *end = strrchr(text, ')'), state;
		if (!end || sscanf(end + 1, " %c %ld", &state, &pid) != 2)
			return 0;
	}
	return 0;
}

static void put_u32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }

static void put_file(uint8_t *p, const struct stat *st)
{
	uint64_t v[5] = {
		st->st_dev, st->st_ino, (uint64_t)st->st_size,
		(uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec,
		(uint64_t)st->st_ctim.tv_sec * 1000000000 + (uint64_t)st->st_ctim.tv_nsec,
	};
	memcpy(p, v, sizeof v);
}

/* Whether a path is a directory of this user that nobody else can enter. */
static int is_private(const char *path)
{
	struct stat st;
	return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 0777) == 0700;
}

/* The directory of the session: /run is root's, and /var/tmp is sticky. */
static int find_directory(char *path, size_t size)
{
	int n;
	if (geteuid() == 0) {
		n = snprintf(path, size, "/run/agentsh");
	} else {
		n = snprintf(path, size, "/var/tmp/agentsh-%ld", (long)geteuid());
		if (!is_private(path))
			return -1;
		n += snprintf(path + n, size - (size_t)n, "/run/agentsh");
	}
	if (!is_private(path))
		return -1;
	snprintf(path + n, size - (size_t)n, "/shim");
	return is_private(path) ? 0 : -1;
}

static int read_key(const char *dir, uint8_t key[KEY_SIZE])
{
	char path[256];
	struct stat st;
	snprintf(path, sizeof path, "%s/shells.key", dir);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -1;
	int ok = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && read(fd, key, KEY_SIZE) == KEY_SIZE;
	close(fd);
	return ok ? 0 : -1;
}

static int dial(const char *dir)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = HELLO_LIMIT / 1000 };
	struct ucred peer;
	socklen_t len = sizeof peer;
	snprintf(to.sun_path, sizeof to.sun_path, "%s/shells", dir);
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (sock < 0)
		return -1;
	if (setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) < 0 ||
	    connect(sock, (struct sockaddr *)&to, sizeof to) < 0 ||
	    getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != geteuid()) {
		close(sock);
		return -1;
	}
	return sock;
}

static int receive_hello(struct session *s)
{
	char packet[4096];
	int fds[3], nfds;
	struct pollfd p = { s->sock, POLLIN, 0 };
	if (poll(&p, 1, HELLO_LIMIT) != 1)
		return -1;
	ssize_t n = receive_packet(s->sock, packet, sizeof packet - 1, fds, &nfds);
	for (int i = 0; i < nfds; i++)
		close(fds[i]);
	uint32_t version;
	if (n < 8 || packet[0] != 'H' || nfds > 0)
		return -1;
	memcpy(&version, packet + 4, sizeof version);
	packet[n] = 0;
	snprintf(s->last_words, sizeof s->last_words, "%s", packet + 8);
	return version == PROTOCOL ? 0 : -1;
}

int open_session(struct request *q, struct session *s)
{
	char dir[64];
	struct stat st;
	q->header[0] = 'R';
	if (lstat(SHELLS "manifest.json", &st) < 0 || !S_ISREG(st.st_mode))
		return -1;
	put_file(q->header + 8 + KEY_SIZE, &st);
	if (stat("/proc/self/exe", &st) < 0)
		return -1;
	put_file(q->header + 8 + KEY_SIZE + FILE_SIZE, &st);
	if (find_directory(dir, sizeof dir) < 0 || read_key(dir, q->header + 8) < 0)
		return -1;
	if ((s->sock = dial(dir)) < 0)
		return -1;
	if (receive_hello(s) == 0)
		return 0;
	close(s->sock);
	return -1;
}

/* -- the request -- */

/* Whether a name has no part that path.Clean would change. */
static int is_clean(const char *path)
{
	if (strcmp(path, "/") == 0)
		return 1;
	for (const char *p = path; *p; p += strcspn(p, "/")) {
		if (*p++ != '/')
			return 0;
		size_t n = strcspn(p, "/");
		if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return 0;
	}
	return 1;
}

/* The rule of paths.Here. */
static void find_here(struct request *q)
{
	struct stat here, named;
	for (char **e = q->envp; *e; e++)
		if (strncmp(*e, "PWD=", 4) == 0) {
			const char *pwd = *e + 4;
			if (pwd[0] == '/' && strlen(pwd) < sizeof q->here && is_clean(pwd) && stat(".", &here) == 0 && stat(pwd, &named) == 0 &&
			    here.st_dev == named.st_dev && here.st_ino == named.st_ino) {
				strcpy(q->here, pwd);
				return;
			}
			break;
		}
	if (!getcwd(q->here, sizeof q->here) || q->here[0] != '/')
		q->here[0] = 0;
}

struct body {
	char *p;
	size_t len, size;
};

static int add_word(struct body *b, const char *word)
{
	size_t n = strlen(word) + 1;
	if (n > MAX_BODY || b->len + n > MAX_BODY)
		return -1; /* the Go program says so */
	if (b->len + n > b->size) {
		size_t size = 2 * (b->len + n);
		char *p = realloc(b->p, size);
		if (!p)
			return -1;
		b->p = p;
		b->size = size;
	}
	memcpy(b->p + b->len, word, n);
	b->len += n;
	return 0;
}

static int make_body(const struct request *q, struct body *b)
{
	uint32_t argc = 0, envc = 0;
	b->size = 16 << 10;
	b->len = 8;
	if (!(b->p = malloc(b->size)))
		return -1;
	if (add_word(b, q->exe) < 0 || add_word(b, q->here) < 0)
		return -1;
	for (char **a = q->argv; *a; a++, argc++)
		if (add_word(b, *a) < 0)
			return -1;
	for (char **e = q->envp; *e; e++, envc++)
		if (add_word(b, *e) < 0)
			return -1;
	put_u32((uint8_t *)b->p, argc);
	put_u32((uint8_t *)b->p + 4, envc);
	return 0;
}

static int send_body(const struct body *b, int sock)
{
	static char part[1 + PART_SIZE] = "r";
	for (size_t at = 0; at < b->len;) {
		size_t n = b->len - at < PART_SIZE ? b->len - at : PART_SIZE;
		memcpy(part + 1, b->p + at, n);
		if (send_packet(sock, part, 1 + n) < 0)
			return -1;
		at += n;
	}
	return 0;
}

int send_request(const struct request *q, int sock)
{
	struct body b = { 0 };
	uint8_t header[HEADER_SIZE];
	int sent = -1;
	if (make_body(q, &b) == 0) {
		memcpy(header, q->header, sizeof header);
		put_u32(header + 4, (uint32_t)b.len);
		sent = send_packet(sock, header, sizeof header) < 0 ? -1 : send_body(&b, sock);
	}
	free(b.p);
	return sent;
}

/* -- the start -- */

/* The command's end and the socket must not have the number of a standard stream. A closed
   output gets one that can only be read: each write to it fails with EBADF, as before. */
static int occupy_streams(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
			return -1;
	return 0;
}

static int is_terminal(int fd)
{
	struct termios t;
	return ioctl(fd, TCGETS, &t) == 0;
}

/* The signals that are passed to the command, without those that this process was started
   with as ignored: see nohup(1). */
static void passed_signals(sigset_t *set)
{
	static const int all[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	sigemptyset(set);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct sigaction old;
		if (sigaction(all[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaddset(set, all[i]);
	}
}

#ifdef __GLIBC__ /* another library gives constructors no arguments */
__attribute__((constructor)) static void start_shell(int argc, char **argv, char **envp)
{
	static struct request q;
	static struct session s;
	sigset_t passed, mask;
	if (argc < 1 || !argv[0][0] || !is_shell(argv[0]))
		return;
	ssize_t n = readlink("/proc/self/exe", q.exe, sizeof q.exe - 1);
	if (n <= 0 || n == sizeof q.exe - 1 || occupy_streams() < 0 || (is_terminal(0) && is_terminal(1)) || below_packager())
		return;
	q.argv = argv;
	q.envp = envp;
	if (open_session(&q, &s) < 0)
		return;
	find_here(&q);
	passed_signals(&passed);
	sigprocmask(SIG_BLOCK, &passed, &mask);
	if (send_request(&q, s.sock) == 0)
		follow(&s, &mask, &passed); /* it returns if the supervisor refused */
	close(s.sock);
	sigprocmask(SIG_SETMASK, &mask, NULL);
}
#endif
