/* The start of a shell of a shared session.
 *
 * The Go runtime takes longer to start than a shell. So a shell of a shared session usually
 * does without it: early.c sends one request before the C library starts, and this
 * constructor, which runs before Go, follows the command (follow.c). Without a request it
 * does nothing, and the Go program does all.
 *
 * After the request was sent this never returns, unless the supervisor says that nothing was
 * begun: the command must not begin twice. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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

static void make_set(sigset_t *set, uint64_t bits)
{
	sigemptyset(set);
	for (int s = 1; s <= 64; s++)
		if (bits & (uint64_t)1 << (s - 1))
			sigaddset(set, s);
}

__attribute__((constructor)) static void follow_shell(void)
{
	sigset_t passed, mask;
	if (!early.sent)
		return;
	make_set(&passed, early.passed);
	make_set(&mask, early.mask);
	follow(early.sock, &mask, &passed); /* it returns if nothing was begun */
	close(early.sock);
	sigprocmask(SIG_SETMASK, &mask, NULL);
}
