/* The Go runtime aborts a program that cannot start a thread. Every pthread_create of the
 * program comes here by the linker's --wrap. It waits until there is room, and makes room
 * by ending the sessions after a while: a supervisor must not die with less than a word.
 *
 * A waiting thread holds a processor of the Go runtime, so the program may stand still.
 * The calls of commands then wait for their answers. */
#include "threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_GUARDS 256
#define STEP_MS 10
#define PATIENCE_MS 5000 /* until sessions end */
#define LAST_MS 30000    /* until the program may abort, from the first failure */

/* A socket and one, whose shutdown ends a session; 0: free; -1: ended */
static int guards[MAX_GUARDS];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* of guards; nothing waits with it held */
static _Atomic int64_t failed; /* when a thread could not be started last, in ms */

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int threads_guard(int fd)
{
	int slot = -1;
	pthread_mutex_lock(&mu);
	for (int i = 0; slot < 0 && i < MAX_GUARDS; i++)
		if (guards[i] == 0) {
			guards[i] = fd + 1;
			slot = i;
		}
	pthread_mutex_unlock(&mu);
	return slot;
}

int threads_release(int slot)
{
	pthread_mutex_lock(&mu);
	int ended = guards[slot] == -1;
	guards[slot] = 0;
	pthread_mutex_unlock(&mu);
	return ended;
}

int64_t threads_failed(void)
{
	int64_t at = atomic_load(&failed);
	return at ? now_ms() - at : -1;
}

static void end_sessions(void)
{
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX_GUARDS; i++)
		if (guards[i] > 0) {
			shutdown(guards[i] - 1, SHUT_RDWR);
			guards[i] = -1;
		}
	pthread_mutex_unlock(&mu);
}

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static int create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	int64_t begin = 0;
	for (;;) {
		int err = __real_pthread_create(thread, attr, start, arg);
		if (err != EAGAIN)
			return err;
		int64_t now = now_ms();
		atomic_store(&failed, now);
		if (!begin)
			begin = now;
		if (now - begin >= LAST_MS)
			return err;
		if (now - begin >= PATIENCE_MS)
			end_sessions();
		struct timespec step = { .tv_nsec = STEP_MS * 1000000 };
		nanosleep(&step, NULL);
	}
}

/* The first thread of the Go runtime is its monitor (sysmon in runtime/proc.go). While anything
 * runs it wakes up every 20 us at first, and takes a tenth of the processor time of a start. So
 * the kernel may delay its timers. Timers of the program are those of other threads. */
#define MONITOR_SLACK 1000000UL /* ns */

static struct {
	void *(*start)(void *);
	void *arg;
} first;
static __thread int is_monitor;

static void *monitor(void *unused)
{
	(void)unused;
	is_monitor = 1;
	prctl(PR_SET_TIMERSLACK, MONITOR_SLACK);
	return first.start(first.arg);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	static _Atomic int begun;
	if (!atomic_exchange(&begun, 1)) {
		first.start = start, first.arg = arg;
		return create(thread, attr, monitor, NULL);
	}
	if (!is_monitor)
		return create(thread, attr, start, arg);
	prctl(PR_SET_TIMERSLACK, 0UL); /* the new thread has what this one has */
	int err = create(thread, attr, start, arg);
	prctl(PR_SET_TIMERSLACK, MONITOR_SLACK);
	return err;
}
