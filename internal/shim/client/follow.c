/* The signals and the end of a command of a shared session.
 *
 * The command has pipes that the supervisor made. This process copies between them and its
 * own streams (copy.c), so that it alone blocks, fails or gets EPIPE on these. The main
 * thread follows the socket and the signals. The rules are those of internal/foreground. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the main thread knows. */
static struct {
	char last_words[MAX_NOTE]; /* what is printed if the supervisor dies */
	const sigset_t *mask;
	int signals;
	uint64_t seen; /* signals that were passed */
	int exited;    /* the command has ended */
	int delivered; /* the supervisor knows what was read */
	int greeted;   /* the supervisor has said hello: until then it has not read the request */
	int answered;  /* the supervisor has said more than its hello */
	int broken;    /* the supervisor has gone */
	int64_t cancelled, pinged, heard;
} M;

static void print(const char *text, size_t n)
{
	struct pollfd p = { 2, POLLOUT, 0 };
	if (!F.cancel || poll(&p, 1, FORCED_LIMIT) == 1)
		write_all(2, text, n);
}

/* Error texts as the Go program has them: they begin with a small letter. */
static void reason(int err, char *buf, size_t size)
{
	snprintf(buf, size, "%s", strerror(err));
	if (buf[0] >= 'A' && buf[0] <= 'Z' && buf[1] >= 'a' && buf[1] <= 'z')
		buf[0] = (char)(buf[0] - 'A' + 'a');
}

/* Prints what failed; the status to exit with. */
static int print_failure(const struct failure *f, int code)
{
	static const char *const names[] = { "standard input", "standard output", "standard error" };
	char text[512], why[128];
	if (f->forced)
		snprintf(why, sizeof why, "nobody read it for 2s after the command was ended");
	else
		reason(f->err, why, sizeof why);
	int n = snprintf(text, sizeof text, "agentsh: %s could not be %s: %s%s\n", names[f->stream], f->stream ? "written" : "read", why,
	                 f->stream == 0 && f->reported ? ": the command had an empty one" : "");
	if (!f->reported)
		n += snprintf(text + n, sizeof text - (size_t)n,
		              "agentsh: hint: the command and all that it started were ended: repeat it with its output or input "
		              "somewhere else, as '>FILE' on a disk with room\n");
	print(text, (size_t)n);
	return f->reported ? code : 125;
}

__attribute__((noreturn)) static void lost(const char *text)
{
	sigprocmask(SIG_SETMASK, M.mask, NULL);
	print(text, strlen(text));
	_exit(125);
}

/* A checked reader of the end. */
struct ending {
	const char *p, *end;
	int bad;
};

static uint32_t take_u32(struct ending *e)
{
	uint32_t v = 0;
	if (e->bad || e->end - e->p < 4) {
		e->bad = 1;
		return 0;
	}
	memcpy(&v, e->p, 4);
	e->p += 4;
	return v;
}

static const char *take_text(struct ending *e, size_t *n)
{
	*n = take_u32(e);
	if (e->bad || (size_t)(e->end - e->p) <= *n || e->p[*n] != 0) {
		e->bad = 1;
		*n = 0;
		return "";
	}
	const char *text = e->p;
	e->p += *n + 1;
	return text;
}

/* Prints the refusals that the command has not shown itself. */
static void print_refusals(struct ending *e, uint32_t count, uint32_t more, const char *audit)
{
	uint32_t printed = 0;
	for (uint32_t i = 0; i < count; i++) {
		size_t first_len, line_len;
		const char *first = take_text(e, &first_len), *line = take_text(e, &line_len);
		if (e->bad)
			return;
		if (first_len > 0 && lines_shown(first, first_len))
			continue;
		if (printed == MAX_PRINTED || line_len == 0) {
			more++;
			continue;
		}
		print(line, line_len);
		print("\n", 1);
		printed++;
	}
	if (more > 0) {
		char text[4200];
		int n = snprintf(text, sizeof text, "agentsh: %u more refusals in %s\n", more, audit);
		print(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
	}
}

static const char malformed[] = "agentsh: the supervisor's answer is malformed\n";

/* Prints what the supervisor says of the end, and exits. */
__attribute__((noreturn)) static void finish(const char *body, size_t size)
{
	struct ending e = { body, body + size, 0 };
	size_t audit_len, said_len;
	int code = (int)take_u32(&e);
	uint32_t count = take_u32(&e), more = take_u32(&e);
	const char *audit = take_text(&e, &audit_len), *said = take_text(&e, &said_len);
	if (e.bad)
		lost(malformed);
	sigprocmask(SIG_SETMASK, M.mask, NULL); /* signals end this process */
	if (!F.failed_output)
		print_refusals(&e, count, more, audit);
	if (F.failure.stream >= 0)
		_exit(print_failure(&F.failure, code));
	if (said_len > 0)
		print(said, said_len);
	_exit(F.closed && code == 0 ? 128 + SIGPIPE : code);
}

__attribute__((noreturn)) static void receive_end(const char *packet, ssize_t n)
{
	static char part[1 + PART_SIZE];
	uint32_t size = 0;
	if (n == 8)
		memcpy(&size, packet + 4, sizeof size);
	char *body = size > 0 && size <= MAX_END ? malloc(size) : NULL;
	if (!body)
		lost(malformed);
	for (size_t at = 0; at < size;) {
		int fds[3], nfds;
		ssize_t k = receive_packet(F.sock, part, sizeof part, fds, &nfds);
		if (k == 0)
			lost(M.last_words);
		if (k < 2 || part[0] != 'e' || (size_t)k - 1 > size - at)
			lost(malformed);
		memcpy(body + at, part + 1, (size_t)k - 1);
		at += (size_t)k - 1;
	}
	finish(body, size);
}

static void cancel(void)
{
	if (M.cancelled)
		return;
	M.cancelled = now_ms();
	F.cancel = 1;
	send_packet(F.sock, "K", 1);
}

static void pass_signal(void)
{
	struct signalfd_siginfo s;
	if (read(M.signals, &s, sizeof s) != sizeof s || s.ssi_signo > 63)
		return;
	uint64_t bit = 1ULL << s.ssi_signo;
	if (M.exited || (M.seen & bit)) {
		cancel();
		return;
	}
	M.seen |= bit;
	uint8_t packet[2] = { 'S', (uint8_t)s.ssi_signo };
	send_packet(F.sock, packet, sizeof packet);
}

static void take_exit(int forced)
{
	M.exited = 1;
	end_outputs();
	if (M.seen || forced)
		cancel();
}

/* Takes the first packet. 1: nothing was begun. A supervisor of another version refuses the
   request. */
static int receive_hello(const char *packet, ssize_t n)
{
	uint32_t version;
	if (n < 8 || packet[0] != 'H')
		return 1;
	memcpy(&version, packet + 4, sizeof version);
	if (version != PROTOCOL)
		return 1;
	memcpy(M.last_words, packet + 8, (size_t)n - 8);
	M.greeted = 1;
	return 0;
}

/* Takes one packet of the supervisor. 1: nothing was begun. */
static int receive(void)
{
	static char packet[MAX_NOTE];
	int fds[3], nfds;
	ssize_t n = receive_packet(F.sock, packet, sizeof packet, fds, &nfds);
	if (!M.greeted) {
		for (int i = 0; i < nfds; i++)
			close(fds[i]);
		M.heard = now_ms();
		M.pinged = 0;
		return receive_hello(packet, n);
	}
	if (n == 0) {
		M.broken = 1;
		if (!M.exited)
			take_exit(0);
		return 0;
	}
	M.heard = now_ms();
	M.pinged = 0;
	if (packet[0] == 'F' && !M.answered)
		return 1;
	M.answered = 1;
	switch (packet[0]) {
	case 'N':
		write_all(2, packet + 1, (size_t)n - 1);
		break;
	case 'P':
		if (nfds == 3)
			take_pipes(fds);
		break;
	case 'X':
		take_exit(n > 1 && packet[1]);
		break;
	case 'E':
		receive_end(packet, n);
	}
	return 0;
}

/* Tells the supervisor when all outputs were read. */
static void report(void)
{
	uint8_t packet[24] = "C";
	if (!M.exited || M.delivered || M.broken || F.in_pipe < 0 || !outputs_done())
		return;
	for (int i = 0; i < 2; i++) {
		uint64_t n = (uint64_t)atomic_load(&F.out[i].count);
		memcpy(packet + 8 + 8 * i, &n, sizeof n);
	}
	M.delivered = 1;
	send_packet(F.sock, packet, sizeof packet);
}

/* Does what the passage of time demands. */
static void keep_time(int stopped)
{
	int64_t now = now_ms();
	if (stopped)
		M.heard = now; /* this process could not hear */
	if (M.cancelled && now - M.cancelled >= KILL_LIMIT)
		lost("agentsh: the supervisor did not end the command within 15s of the request\n");
	if (M.pinged && now - M.heard >= PING_LIMIT)
		lost("agentsh: the supervisor does not answer\n");
	if (!M.pinged && now - M.heard >= PING_INTERVAL) {
		M.pinged = now;
		send_packet(F.sock, "Q", 1);
	}
	if (M.cancelled)
		abandon_writes(M.cancelled);
}

/* Waits for what comes next. 1: nothing was begun. */
static int step(void)
{
	struct pollfd p[5] = { { M.broken ? -1 : F.sock, POLLIN, 0 }, { M.signals, POLLIN, 0 }, { F.wake, POLLIN, 0 } };
	for (int i = 0; i < 2; i++)
		p[3 + i] = (struct pollfd){ F.in_pipe < 0 || F.out[i].started || F.out[i].done ? -1 : F.out[i].in, POLLIN, 0 };
	int64_t before = now_ms();
	int n = poll(p, 5, M.cancelled ? 100 : PING_INTERVAL);
	if (n < 0 && errno != EINTR)
		lost("agentsh: the end of the command could not be awaited\n");
	keep_time(now_ms() - before >= 2 * PING_INTERVAL);
	if (n <= 0)
		return 0;
	if (p[2].revents) {
		uint64_t count;
		ssize_t ignored = read(F.wake, &count, sizeof count);
		(void)ignored;
		if (F.cancel)
			cancel();
	}
	if (p[1].revents)
		pass_signal();
	for (int i = 0; i < 2; i++) {
		if (p[3 + i].revents & POLLIN)
			start_output(&F.out[i]);
		else if (p[3 + i].revents) /* the command and all others have closed it */
			F.out[i].done = 1;
	}
	return p[0].revents ? receive() : 0;
}

void follow(int sock, const sigset_t *mask, const sigset_t *passed)
{
	struct sigaction ignore = { .sa_handler = SIG_IGN }, before;
	F.sock = sock;
	F.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	F.ended = eventfd(0, EFD_CLOEXEC);
	M.mask = mask;
	M.signals = signalfd(-1, passed, SFD_CLOEXEC | SFD_NONBLOCK);
	M.heard = now_ms();
	if (F.wake < 0 || F.ended < 0 || M.signals < 0)
		lost("agentsh: no descriptor is left\n"); /* the supervisor ends the command */
	sigaction(SIGPIPE, &ignore, &before); /* a closed output fails instead of ending this process */
	while (!step()) {
		report();
		if (M.broken && (F.in_pipe < 0 || outputs_done()))
			lost(M.last_words);
	}
	sigaction(SIGPIPE, &before, NULL);
	close(F.wake);
	close(F.ended);
	close(M.signals);
}
