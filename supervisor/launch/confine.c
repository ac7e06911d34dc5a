/* The restriction of a server process. It runs before the Go runtime has threads, so
 * that it applies to all of them. Like init.c it is a constructor of this program. It
 * acts only when descriptor 3 is a sealed confinement (confine.go). If a step fails,
 * the process exits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FD_CONFINEMENT = 3, FD_RULESET = 4, HAS_RULESET = 1 };

struct confinement {
	char magic[4];
	uint32_t flags;
	uint64_t caps; /* the capabilities to keep */
	struct sock_filter filter[BPF_MAXINSNS];
};

/* 1 when the process is confined: its donations start two descriptors later. */
int agentsh_confined;

static void fail_step(const char *step)
{
	dprintf(2, "agentsh: confine: %s: %s\n", step, strerror(errno));
	_exit(125);
}

/* Keeps only the capabilities in mask. No other one can come back. */
static void keep_capabilities(uint64_t mask)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &head, data) < 0)
		fail_step("read capabilities");
	for (int i = 0; i < 2; i++) {
		uint32_t keep = (uint32_t)(mask >> (32 * i));
		data[i].effective &= keep;
		data[i].permitted &= keep;
		data[i].inheritable = 0;
	}
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 || syscall(SYS_capset, &head, data) < 0)
		fail_step("drop capabilities");
}

__attribute__((constructor)) static void maybe_confine(void)
{
	static struct confinement c;
	int seals = fcntl(FD_CONFINEMENT, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_WRITE))
		return;
	ssize_t n = pread(FD_CONFINEMENT, &c, sizeof c, 0);
	ssize_t head = offsetof(struct confinement, filter);
	if (n < head || memcmp(c.magic, "agcf", 4) != 0)
		return;
	struct sock_fprog prog = { .len = (unsigned short)((size_t)(n - head) / sizeof(struct sock_filter)), .filter = c.filter };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		fail_step("set no_new_privs");
	keep_capabilities(c.caps);
	if ((c.flags & HAS_RULESET) && syscall(SYS_landlock_restrict_self, FD_RULESET, 0) < 0)
		fail_step("enter Landlock domain");
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) < 0)
		fail_step("load filter");
	close(FD_CONFINEMENT);
	close(FD_RULESET);
	agentsh_confined = 1;
}
