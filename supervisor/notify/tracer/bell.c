/* The bell of a tracing thread: an idle process that the thread traces. A signal to it
 * stops it, which ends a wait of the thread for any of its tracees. Nothing else ends
 * such a wait without a race.
 *
 * The process shares memory and descriptors of this one: a copy would keep pipes open. It
 * uses nothing of them but its stack. It makes system calls without the C library, because
 * it has no thread data of its own. */
#define _GNU_SOURCE
#include "bell.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { STACK = 16384 };

static long call(long number, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
#else
#error "amd64 or arm64"
#endif
}

/* Every signal but BELL_SIGNAL stays blocked: no handler of this program may run here. */
static int wait_for_signals(void *unused)
{
	unsigned long blocked = ~(1UL << (BELL_SIGNAL - 1));
	(void)unused;
	call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
	call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&blocked, 0, sizeof blocked);
	for (;;)
		call(SYS_ppoll, 0, 0, 0, 0);
	return 0;
}

struct bell agentsh_start_bell(void)
{
	struct bell b = { 0 };
	b.stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (b.stack == MAP_FAILED) {
		b.pid = -errno;
		return b;
	}
	b.pid = clone(wait_for_signals, (char *)b.stack + STACK, CLONE_VM | CLONE_FILES | CLONE_FS, NULL);
	if (b.pid < 0) {
		b.pid = -errno;
		munmap(b.stack, STACK);
	}
	return b;
}

void agentsh_free_bell(void *stack)
{
	munmap(stack, STACK);
}
