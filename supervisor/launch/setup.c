/* The setup: carries out the operations of the supervisor in their order. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static void limit(struct reader *r)
{
	uint32_t what = read_u32(r);
	struct rlimit l = { .rlim_cur = read_u64(r) };
	l.rlim_max = read_u64(r);
	if (r->bad)
		return;
	if (setrlimit((int)what, &l) < 0) {
		char name[16];
		snprintf(name, sizeof name, "%u", what);
		die(errno, "set resource limit", name);
	}
}

/* Tells the supervisor that the root is complete. What follows mounts nothing. */
static void report_root(void)
{
	const uint8_t msg = MSG_ROOT;
	if (send_msg(FD_CONTROL, &msg, 1, NULL, 0) < 0)
		die(errno, "report the new root", "");
}

static void run_op(uint32_t op, struct reader *r)
{
	const char *text;
	switch (op) {
	case OP_SOCKET:
		make_socket(r);
		return;
	case OP_NETLINK:
		send_netlink(r);
		return;
	case OP_LOOPBACK:
		bring_up_loopback();
		return;
	case OP_HOSTNAME:
		text = read_str(r);
		/* the profile of a container may allow namespaces and forbid this */
		if (!r->bad && sethostname(text, strlen(text)) < 0 && errno != EPERM)
			die(errno, "set host name", text);
		return;
	case OP_PIVOT:
		pivot();
		report_root();
		return;
	case OP_RLIMIT:
		limit(r);
		return;
	case OP_CREDS:
		drop_privileges(r);
		return;
	case OP_LANDLOCK:
		restrict_landlock(r);
		return;
	case OP_OPENER:
		start_opener(r);
		return;
	case OP_FILTER:
		S.filter.data = read_bytes(r, &S.filter.len);
		return;
	case OP_TRACE_FILTER:
		S.trace_filter.data = read_bytes(r, &S.trace_filter.len);
		return;
	case OP_PROBE:
		text = read_str(r);
		if (S.nprobes == sizeof S.probes / sizeof S.probes[0])
			r->bad = 1;
		else
			S.probes[S.nprobes++] = text;
		return;
	default:
		setup_mount_op(op, r);
	}
}

/* Checks that marks can be set: the limit that holds them must be unlimited. */
static void check_tag_limit(void)
{
	const char *name = S.tag_limit == RLIMIT_RSS ? "RLIMIT_RSS" : "RLIMIT_RTTIME";
	struct rlimit l;
	if (getrlimit(S.tag_limit, &l) < 0)
		die(errno, "read resource limit", name);
	if (l.rlim_max != RLIM_INFINITY)
		die(ERANGE, "mark commands: this hard limit must be unlimited:", name);
}

static void without_namespaces(uint64_t tag_base)
{
	S.no_namespaces = 1;
	S.tag_base = tag_base;
	S.proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (S.proc < 0)
		die(errno, "open", "/proc");
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		die(errno, "adopt orphans", "");
	/* After the end of the supervisor it still has to end the commands. */
	if (prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0)
		die(errno, "clear the parent death signal", "");
}

/* Prepares to find the processes of the session: by a pid namespace whose first process
   this is, or by marks that no other session has. */
static int own_processes(uint32_t first, struct reader *r)
{
	if (first == OP_NO_NAMESPACES) {
		uint64_t base = read_u64(r);
		if (base < TAG_BASE || base > TAG_BASE + (TAG_BASE >> 1))
			r->bad = 1;
		if (!r->bad)
			without_namespaces(base);
		return 1;
	}
	if (getpid() != 1)
		die(EINVAL, "start session init: it is not process 1", "");
	open_scan_proc();
	return 0;
}

void run_setup(struct reader *r)
{
	for (uint32_t i = 0;; i++) {
		uint32_t op = read_u32(r);
		if (i == 0 && own_processes(op, r) && !r->bad)
			continue;
		if (op == OP_END)
			break;
		if (!r->bad)
			run_op(op, r);
		if (r->bad) {
			char name[32];
			snprintf(name, sizeof name, "%u (operation %u)", i, op);
			die(EBADMSG, "read setup: malformed record", name);
		}
	}
	uint32_t flags = read_u32(r);
	if (r->bad || r->p != r->end || (flags & ~(END_DUMPABLE | END_INTERRUPTIBLE | END_BESIDE | END_UNJUDGED | END_TAG_RSS)))
		die(EBADMSG, "read setup: malformed end", "");
	S.dumpable = flags & END_DUMPABLE;
	S.interruptible = flags & END_INTERRUPTIBLE;
	S.beside = flags & END_BESIDE;
	S.unjudged = flags & END_UNJUDGED;
	S.tag_limit = flags & END_TAG_RSS ? RLIMIT_RSS : RLIMIT_RTTIME;
	check_tag_limit();
	if (S.root >= 0 || (!S.filter.data && !S.trace_filter.data))
		die(EBADMSG, "read setup: no new root or no filter", "");
	/* The change of the user cleared this. If the supervisor ended in between, the
	   control socket is closed. Without namespaces this process still has to end the commands,
	   one of which may have stopped it. */
	if (prctl(PR_SET_PDEATHSIG, S.no_namespaces ? SIGCONT : SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		die(errno, "set the parent death signal", "");
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
		die(errno, "open", "/dev/null");
	if (null > 2)
		close(null);
	start_forking_thread();
}
