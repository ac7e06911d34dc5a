/* The session's own network: loopback, sockets for the supervisor, and netlink messages
   of the supervisor. */
#define _GNU_SOURCE
#include "init.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

void bring_up_loopback(void)
{
	struct ifreq ifr;
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		die(errno, "bring up loopback", "");
	memset(&ifr, 0, sizeof ifr);
	memcpy(ifr.ifr_name, "lo", 3);
	if (ioctl(s, SIOCGIFFLAGS, &ifr) < 0)
		die(errno, "bring up loopback", "");
	int is_up = ifr.ifr_flags & IFF_UP; /* then a kernel need not be able to change it */
	ifr.ifr_flags |= IFF_UP | IFF_RUNNING;
	if (!is_up && ioctl(s, SIOCSIFFLAGS, &ifr) < 0)
		die(errno, "bring up loopback", "");
	close(s);
}

/* Reports that an optional operation failed. Any other failure ends the init. */
static void missing(int err, uint32_t flags, const char *what, const char *tag)
{
	char msg[1 + 4 + 256];
	uint32_t e = (uint32_t)err;
	if (!(flags & FLAG_OPTIONAL))
		die(err, what, tag);
	msg[0] = MSG_MISSING;
	memcpy(msg + 1, &e, 4);
	int n = snprintf(msg + 5, sizeof msg - 5, "%s", tag);
	if (n < 0 || n >= (int)sizeof msg - 5 || send_msg(FD_CONTROL, msg, 5 + (size_t)n, NULL, 0) < 0)
		die(errno, "tell what is missing", tag);
}

/* Binds to loopback and, for a stream, listens. 0, or -1 and errno. */
static int bind_loopback(int s, int family, int type, uint16_t port)
{
	int one = 1;
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	const struct sockaddr *a = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
	if (family == AF_INET6 && setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) < 0)
		return -1;
	if (setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0)
		return -1;
	if (bind(s, a, family == AF_INET ? sizeof v4 : sizeof v6) < 0)
		return -1;
	return type == SOCK_STREAM ? listen(s, 4096) : 0;
}

/* Makes a socket of the session's network for the supervisor: bound to loopback, or a
   netlink socket of a protocol. */
void make_socket(struct reader *r)
{
	const char *tag = read_str(r);
	int family = (int)read_u32(r), type = (int)read_u32(r);
	uint32_t port = read_u32(r), flags = read_u32(r);
	if (r->bad || port > 65535)
		return;
	int s = socket(family, type | SOCK_CLOEXEC, family == AF_NETLINK ? (int)port : 0);
	if (s < 0 || (family != AF_NETLINK && bind_loopback(s, family, type, (uint16_t)port) < 0)) {
		missing(errno, flags, "make socket", tag);
		if (s >= 0)
			close(s);
		return;
	}
	char msg[1 + 256];
	int n = snprintf(msg, sizeof msg, "%c%s", MSG_SOCKET, tag);
	if (n < 1 || n >= (int)sizeof msg || send_msg(FD_CONTROL, msg, (size_t)n, &s, 1) < 0)
		die(errno, "hand over socket", tag);
	close(s);
}

/* Sends messages to the kernel and waits for acks acknowledgements. Returns 0 or the
   first error. */
static int exchange(int protocol, const uint8_t *data, uint32_t len, uint32_t acks)
{
	union {
		struct nlmsghdr head;
		char bytes[16384];
	} answer;
	struct sockaddr_nl kernel = { .nl_family = AF_NETLINK };
	int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
	int err = s < 0 ? errno : 0;
	if (!err && sendto(s, data, len, 0, (struct sockaddr *)&kernel, sizeof kernel) != (ssize_t)len)
		err = errno;
	while (!err && acks > 0) {
		ssize_t n = recv(s, &answer, sizeof answer, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			err = n < 0 ? errno : EPIPE;
		int left = (int)n;
		for (struct nlmsghdr *h = &answer.head; !err && NLMSG_OK(h, (unsigned)left); h = NLMSG_NEXT(h, left)) {
			if (h->nlmsg_type != NLMSG_ERROR)
				continue;
			err = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
			acks--;
		}
	}
	if (s >= 0)
		close(s);
	return err;
}

void send_netlink(struct reader *r)
{
	static int failed;
	const char *tag = read_str(r);
	uint32_t protocol = read_u32(r), acks = read_u32(r), flags = read_u32(r), len;
	const uint8_t *data = read_bytes(r, &len);
	if (r->bad || ((flags & FLAG_AFTER) && failed))
		return;
	failed = exchange((int)protocol, data, len, acks);
	if (failed)
		missing(failed, flags, "configure network", tag);
}
