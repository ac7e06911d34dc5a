/* A program that is followed stops twice for each of its system calls, and its follower looks
 * at few of them. The others are resumed here: to return to the Go scheduler for each takes
 * several times as long as the stop. */
#define _GNU_SOURCE
#include "stops.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "amd64 or arm64"
#endif

enum {
	POLLS = 64, /* as long as a stop takes to come on a machine with a free processor */
	VAIN = 2,   /* polls in vain, after which a wait blocks at once */
	AGAIN = 64, /* waits, after which a poll is tried again */
	PAGE = 4096,
};

/* Waits for a tracee. Without __WNOTHREAD it would take the stops of other threads. */
static pid_t wait_for_any(struct stops *s)
{
	const int how = __WALL | __WNOTHREAD;
	if (s->vain < VAIN || s->vain % AGAIN == 0) {
		for (int i = 0; i < POLLS; i++) {
			pid_t tid = (pid_t)syscall(SYS_wait4, -1, &s->status, how | WNOHANG, NULL);
			if (tid != 0) {
				s->vain = 0;
				return tid;
			}
		}
	}
	s->vain++;
	return (pid_t)syscall(SYS_wait4, -1, &s->status, how, NULL);
}

/* Reports whether the path at an address has any of the names in it. A path that cannot be
   read counts as one that has. */
static int has_name(pid_t tid, uint64_t at, const struct skips *k)
{
	char path[2 * PAGE];
	size_t whole = PAGE - at % PAGE;
	struct iovec to = { path, sizeof path }, from[2] = { { (void *)at, whole }, { (void *)(at + whole), PAGE } };
	ssize_t n = process_vm_readv(tid, &to, 1, from, 2, 0); /* the second page need not be there */
	if (n <= 0 || !memchr(path, 0, (size_t)n))
		return 1;
	for (const char *name = k->names; name < k->names + k->length; name += strlen(name) + 1)
		if (strstr(path, name))
			return 1;
	return 0;
}

/* Reports whether a call that is entered is of no use to the follower. */
static int skips_call(struct stops *s, pid_t tid, const struct ptrace_syscall_info *info, const struct skips *k)
{
	unsigned char use = info->entry.nr < (unsigned)k->numbers ? k->calls[info->entry.nr] : CALL_TOLD;
	if (use == CALL_SKIPPED)
		return 1;
	if (use == CALL_TOLD || s->counted >= s->most)
		return 0;
	if (use >= CALL_NAMED_0 && has_name(tid, info->entry.args[use - CALL_NAMED_0], k))
		return 0;
	s->counted++;
	return 1;
}

/* Resumes a thread whose stop nobody needs. 0: the stop is needed. */
static int skip(struct stops *s, pid_t tid, const struct skips *k)
{
	struct ptrace_syscall_info info;
	if (!k->calls || !WIFSTOPPED(s->status) || s->status >> 8 != (SIGTRAP | 0x80))
		return 0;
	if (syscall(SYS_ptrace, PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) <= 0 || info.arch != NATIVE)
		return 0;
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY ? !skips_call(s, tid, &info, k) : info.op != PTRACE_SYSCALL_INFO_EXIT)
		return 0;
	syscall(SYS_ptrace, PTRACE_SYSCALL, tid, 0, 0); /* one that was killed is waited for */
	return 1;
}

int agentsh_next_stop(struct stops *s, struct skips skips)
{
	s->counted = 0;
	for (;;) {
		pid_t tid = wait_for_any(s);
		if (tid > 0 && !skip(s, tid, &skips))
			return tid;
		if (tid < 0 && errno != EINTR)
			return -errno;
	}
}
