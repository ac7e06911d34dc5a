/* The streams of a command. A thread copies each one. It starts with the first byte: most
 * commands use few streams. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct streams F = { .in_pipe = -1, .mu = PTHREAD_MUTEX_INITIALIZER, .failure = { .stream = -1 } };

static void wake_main(void)
{
	uint64_t one = 1;
	ssize_t ignored = write(F.wake, &one, sizeof one);
	(void)ignored;
}

static void fail(int stream, int err, int reported, int forced)
{
	pthread_mutex_lock(&F.mu);
	if (F.failure.stream < 0 || (F.failure.reported && !reported))
		F.failure = (struct failure){ stream, err, reported, forced };
	if (stream > 0)
		F.failed_output = 1;
	if (!reported)
		F.cancel = 1;
	pthread_mutex_unlock(&F.mu);
	wake_main();
}

/* Waits until fd is ready, or ended can be read unless it is -1. */
static int await(int fd, short events, int ended)
{
	struct pollfd p[2] = { { fd, events, 0 }, { ended, POLLIN, 0 } };
	int n;
	do
		n = poll(p, 2, -1);
	while (n < 0 && errno == EINTR);
	return n;
}

int write_all(int fd, const char *p, size_t n)
{
	while (n > 0) {
		ssize_t k = write(fd, p, n);
		if (k < 0 && (errno == EINTR || (errno == EAGAIN && await(fd, POLLOUT, -1) > 0)))
			continue;
		if (k < 0)
			return errno;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

/* Writes output of the command; nonzero: nobody gets what follows. */
static int deliver(struct output *o, const char *p, size_t n)
{
	atomic_store(&o->writing, now_ms());
	int err = write_all(o->n, p, n);
	atomic_store(&o->writing, 0);
	if (!err) {
		if (o->watched)
			lines_read(&o->lines, p, n);
		return 0;
	}
	if (err != EPIPE) {
		fail(o->n, err, 0, 0);
		return 1;
	}
	uint8_t closed[2] = { 'O', (uint8_t)o->n };
	pthread_mutex_lock(&F.mu);
	F.closed = 1;
	pthread_mutex_unlock(&F.mu);
	close(o->in); /* with the supervisor's: the command's next write gets SIGPIPE */
	o->in = -1;
	send_packet(F.sock, closed, sizeof closed);
	return 1;
}

static int has_ended(void)
{
	struct pollfd p = { F.ended, POLLIN, 0 };
	return poll(&p, 1, 0) == 1;
}

/* The bytes that a pipe has, or can have. By splice(2) a pipe gets pages of a socket, and then has
   more than F_GETPIPE_SZ says. */
static long pipe_bytes(int fd)
{
	long size = fcntl(fd, F_GETPIPE_SZ);
	int has = 0;
	if (ioctl(fd, FIONREAD, &has) == 0 && has > size)
		size = has;
	return size;
}

/* Copies an output until its end. After the end of the command it copies what is in the
   pipe, and no more than a pipe can have: others may go on writing. */
static void *copy_output(void *arg)
{
	struct output *o = arg;
	int lost = 0;
	long left = -1; /* bytes that may follow; -1: the command runs */
	while (o->in >= 0 && left != 0) {
		if (left < 0 && has_ended())
			left = pipe_bytes(o->in);
		size_t room = left >= 0 && (size_t)left < sizeof o->buf ? (size_t)left : sizeof o->buf;
		ssize_t n = read(o->in, o->buf, room);
		if (n < 0 && errno == EAGAIN && left < 0 && await(o->in, POLLIN, F.ended) > 0)
			continue;
		if (n <= 0)
			break;
		if (left >= 0)
			left -= n;
		atomic_fetch_add(&o->count, n);
		if (!lost)
			lost = deliver(o, o->buf, (size_t)n);
	}
	atomic_store(&o->done, 1);
	wake_main();
	return NULL;
}

static void end_input(void)
{
	send_packet(F.sock, "I", 1);
	close(F.in_pipe);
}

/* Copies the standard input. If it fails after some bytes, half of it must not look like
   all: the supervisor holds the pipe open until it has ended the command. */
static void *copy_input(void *arg)
{
	static char buf[64 << 10];
	int some = 0;
	(void)arg;
	for (;;) {
		ssize_t n = read(0, buf, sizeof buf);
		if (n < 0 && (errno == EINTR || (errno == EAGAIN && await(0, POLLIN, -1) > 0)))
			continue;
		if (n < 0 && some) {
			fail(0, errno, 0, 0);
			return NULL;
		}
		if (n < 0 && errno != EIO) /* else the terminal has gone */
			fail(0, errno, 1, 0);
		if (n <= 0) {
			end_input();
			return NULL;
		}
		some = 1;
		if (write_all(F.in_pipe, buf, (size_t)n) != 0) {
			close(F.in_pipe); /* the command reads no more */
			return NULL;
		}
	}
}

static void start_thread(void *(*run)(void *), void *arg)
{
	pthread_t t;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	int err = pthread_create(&t, &attr, run, arg);
	if (err) {
		dprintf(2, "agentsh: start a thread: %s\n", strerror(err));
		_exit(125); /* the supervisor ends the command */
	}
}

void start_output(struct output *o)
{
	o->started = 1;
	start_thread(copy_output, o);
}

static int same_file(int a, int b)
{
	struct stat x, y;
	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

void take_pipes(const int fds[3])
{
	struct stat st;
	if (F.in_pipe >= 0)
		return;
	F.in_pipe = fds[0];
	for (int i = 0; i < 2; i++) {
		F.out[i].n = i + 1;
		F.out[i].in = fds[i + 1];
		F.out[i].watched = i == 1 || same_file(1, 2);
	}
	if (fstat(0, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3))
		end_input(); /* /dev/null */
	else
		start_thread(copy_input, NULL);
}

void end_outputs(void)
{
	uint64_t one = 1;
	ssize_t ignored = write(F.ended, &one, sizeof one);
	(void)ignored;
	for (int i = 0; i < 2 && F.in_pipe >= 0; i++) {
		struct output *o = &F.out[i];
		struct pollfd p = { o->in, POLLIN, 0 };
		if (o->started || o->done)
			continue;
		if (poll(&p, 1, 0) == 1 && (p.revents & POLLIN))
			start_output(o);
		else
			o->done = 1;
	}
}

int outputs_done(void)
{
	return atomic_load(&F.out[0].done) && atomic_load(&F.out[1].done);
}

void abandon_writes(int64_t since)
{
	for (int i = 0; i < 2; i++) {
		struct output *o = &F.out[i];
		int64_t began = atomic_load(&o->writing);
		if (!began || atomic_load(&o->done) || now_ms() - (began > since ? began : since) < FORCED_LIMIT)
			continue;
		atomic_store(&o->done, 1); /* its thread stays in the write */
		fail(o->n, 0, 1, 1);
	}
}
