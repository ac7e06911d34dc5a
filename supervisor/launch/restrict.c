/* The restriction of the init: user, capabilities, Landlock, the filter, and the proof. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif

/* -- user and capabilities -- */

struct caps {
	struct __user_cap_header_struct head;
	struct __user_cap_data_struct data[2];
};

static void drop_bounding(void)
{
	for (int cap = 0; cap < 64; cap++) {
		int set = prctl(PR_CAPBSET_READ, cap, 0, 0, 0);
		if (set < 0)
			return; /* beyond the last capability of this kernel */
		if (set > 0 && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			die(errno, "drop bounding capabilities", "");
	}
}

static int has_capabilities(void)
{
	struct caps c = { .head = { .version = _LINUX_CAPABILITY_VERSION_3 } };
	int any = syscall(SYS_capget, &c.head, c.data) < 0;
	for (int i = 0; i < 2; i++)
		any |= (c.data[i].effective | c.data[i].permitted | c.data[i].inheritable) != 0;
	return any;
}

static void drop_capabilities(void)
{
	struct caps c = { .head = { .version = _LINUX_CAPABILITY_VERSION_3 } };
	if (!has_capabilities())
		return; /* and a filter above may refuse the calls */
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
		die(errno, "clear ambient capabilities", "");
	if (syscall(SYS_capset, &c.head, c.data) < 0)
		die(errno, "drop capabilities", "");
}

/* Checks the result of all the calls before, whatever they returned. */
static void check_user(uid_t uid, gid_t gid)
{
	struct caps c = { .head = { .version = _LINUX_CAPABILITY_VERSION_3 } };
	uid_t u[3];
	gid_t g[3];
	if (syscall(SYS_capget, &c.head, c.data) < 0 || getresuid(&u[0], &u[1], &u[2]) < 0 || getresgid(&g[0], &g[1], &g[2]) < 0)
		die(errno, "check user", "");
	for (int i = 0; i < 2; i++)
		if (c.data[i].effective | c.data[i].permitted | c.data[i].inheritable)
			die(EPERM, "check user: capabilities are left", "");
	for (int i = 0; i < 3; i++)
		if (u[i] != uid || g[i] != gid)
			die(EPERM, "check user: another user or group is left", "");
}

void drop_privileges(struct reader *r)
{
	gid_t groups[256];
	uid_t uid = read_u32(r);
	gid_t gid = read_u32(r);
	uint32_t n = read_u32(r);
	if (n > 256) {
		r->bad = 1;
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		groups[i] = read_u32(r);
	uint32_t flags = read_u32(r);
	if (r->bad || S.root >= 0) {
		r->bad = 1;
		return;
	}
	/* uid 0 of a user namespace gains nothing by execve. A kernel without these bits
	   refuses them (EPERM); it is enough that the bounding set is emptied next. */
	if (!(flags & CREDS_KEEP) && prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
	          SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED, 0, 0, 0) < 0 && errno != EPERM)
		die(errno, "set securebits", "");
	if (!(flags & CREDS_KEEP))
		drop_bounding();
	S.bounded = !(flags & CREDS_KEEP);
	if ((flags & CREDS_SETGROUPS) && setgroups(n, groups) < 0)
		die(errno, "set groups", "");
	if ((flags & CREDS_SETIDS) && (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0))
		die(errno, "set user and group", "");
	drop_capabilities();
	check_user(uid, gid);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		die(errno, "set no_new_privs", "");
}

/* -- Landlock, see landlock(7) -- */

struct ruleset_attr {
	uint64_t fs, net, scoped;
};

struct path_beneath {
	uint64_t access;
	int32_t fd;
} __attribute__((packed));

enum {
	/* execute, write_file, read_file, truncate, ioctl_dev: the rights that a rule
	   about a file may have */
	LANDLOCK_FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15,
};

void add_path_rule(int ruleset, uint64_t access, const char *path)
{
	struct stat st;
	struct path_beneath p = { .access = access };
	p.fd = open(path, O_PATH | O_CLOEXEC);
	int err = p.fd < 0 || fstat(p.fd, &st) < 0 ? errno : 0;
	if (err == ENOENT || err == EACCES) {
		if (p.fd >= 0)
			close(p.fd);
		return; /* the file is missing, or its file system refuses to open it */
	}
	if (err)
		die(err, "open Landlock path", path);
	if (!S_ISDIR(st.st_mode))
		p.access &= LANDLOCK_FILE_RIGHTS;
	if (p.access && syscall(SYS_landlock_add_rule, ruleset, 1 /* PATH_BENEATH */, &p, 0) < 0)
		die(errno, "add Landlock rule", path);
	close(p.fd);
}

void restrict_landlock(struct reader *r)
{
	struct ruleset_attr a = { .fs = read_u64(r) };
	a.net = read_u64(r);
	a.scoped = read_u64(r);
	uint32_t n = read_u32(r);
	if (n > MAX_ITEMS)
		r->bad = 1;
	if (r->bad)
		return;
	int ruleset = (int)syscall(SYS_landlock_create_ruleset, &a, sizeof a, 0);
	if (ruleset < 0)
		die(errno, "create Landlock ruleset", "");
	for (uint32_t i = 0; i < n; i++) {
		uint64_t access = read_u64(r);
		const char *path = read_str(r);
		if (r->bad)
			return;
		add_path_rule(ruleset, access, path);
	}
	if (syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
		die(errno, "enter Landlock domain", "");
	close(ruleset);
}

/* -- the filter -- */

static int load(const struct filter *f, unsigned long flags)
{
	struct sock_fprog prog = { .len = (unsigned short)(f->len / sizeof(struct sock_filter)),
		                   .filter = (struct sock_filter *)(uintptr_t)f->data };
	if (f->len == 0 || f->len % sizeof(struct sock_filter) || f->len / sizeof(struct sock_filter) > BPF_MAXINSNS) {
		errno = EBADMSG;
		return -1;
	}
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
}

static unsigned long listener_flags(void)
{
	return SECCOMP_FILTER_FLAG_NEW_LISTENER | (S.interruptible ? 0 : SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
}

/* The kernel looks at the flags before it reads the filter. */
int knows_listener_flags(void)
{
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, listener_flags(), NULL) == 0 || errno != EINVAL;
}

int load_filter(void)
{
	return load(&S.filter, listener_flags());
}

int load_refusals(void)
{
	return load(&S.filter, 0);
}

int load_trace_filter(void)
{
	return load(&S.trace_filter, 0);
}

/* -- the proof: operations that must fail now -- */

static char report[8192];
static size_t report_len;

static void add_probe(const char *what, const char *object, int err)
{
	char name[256];
	uint32_t e = (uint32_t)err;
	int n = snprintf(name, sizeof name, "%s%s%s", what, object[0] ? " " : "", object);
	if (n < 0 || n >= (int)sizeof name)
		n = sizeof name - 1;
	if (report_len + 5 + (size_t)n > sizeof report)
		_exit(1);
	memcpy(report + report_len, &e, 4);
	report[report_len + 4] = (char)n;
	memcpy(report + report_len + 5, name, (size_t)n);
	report_len += 5 + (size_t)n;
}

static void probe_call(const char *what, long ret)
{
	add_probe(what, "", ret < 0 ? errno : 0);
}

/* Tries to create a file in a directory, or to open a file for writing. */
static void probe_write(const char *path)
{
	struct stat st;
	char name[4096];
	if (stat(path, &st) < 0) {
		add_probe("write", path, 0); /* missing: it proves nothing */
		return;
	}
	if (!S_ISDIR(st.st_mode)) {
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		add_probe("write", path, fd < 0 ? errno : 0);
		return;
	}
	if (snprintf(name, sizeof name, "%s/.agentsh-probe", path) >= (int)sizeof name)
		_exit(1);
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int err = fd < 0 ? errno : 0;
	if (fd >= 0)
		unlink(name);
	add_probe("write", path, err);
}

static void probe_capabilities(void)
{
	struct caps c = { .head = { .version = _LINUX_CAPABILITY_VERSION_3 } };
	int err = EPERM;
	if (syscall(SYS_capget, &c.head, c.data) < 0)
		err = 0;
	for (int i = 0; i < 2; i++)
		if (c.data[i].effective | c.data[i].permitted | c.data[i].inheritable)
			err = 0;
	if (S.bounded && prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN, 0, 0, 0) != 0)
		err = 0;
	add_probe("use a capability", "", err);
}

void run_probes(void)
{
	report[0] = MSG_PROBES;
	report_len = 1;
	if (S.traced && load_trace_filter() < 0) /* nobody traces this process: calls that are named fail with ENOSYS */
		_exit(1);
	add_probe("gain privileges by execve", "", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? EPERM : 0);
	probe_capabilities();
	if (!S.unfiltered) {
		add_probe("run unfiltered", "", prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2 ? EPERM : 0);
		probe_call("create a user namespace", unshare(CLONE_NEWUSER));
		probe_call("mount", mount("none", "/", "tmpfs", MS_REMOUNT | MS_BIND, NULL));
		probe_call("trace a process", ptrace(PTRACE_TRACEME, 0, 0, 0));
		probe_call("open a vsock", socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0));
	}
	for (uint32_t i = 0; i < S.nprobes; i++)
		probe_write(S.probes[i]);
	if (write(FD_CONTROL, report, report_len) != (ssize_t)report_len)
		_exit(1);
	_exit(0);
}
