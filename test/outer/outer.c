/* Runs a program below a seccomp listener of its own, as some container services do.
 *
 *   outer plain PROGRAM [ARG...]      notifies execve, kill and connect, and continues them
 *   outer listener PROGRAM [ARG...]   notifies what the listener of OpenShell 0.1 names
 *   outer whole PROGRAM [ARG...]      that, and refuses what OpenShell 0.1 refuses to a workload:
 *                                     ptrace, further filters, mounts, a change of the user
 *   outer older PROGRAM [ARG...]      has no listener, and refuses what OpenShell 0.0.30 to 0.0.111 refuse
 *   outer landlock1 PROGRAM [ARG...]  lets Landlock be that of Linux 5.13; landlock2: of 5.19
 *
 * The listener changes its answers by signals to this program. The program below it gets
 * SIGUSR2 then.
 *
 *   SIGUSR2   continue
 *   SIGUSR1   deny with EPERM
 *   SIGALRM   answer that the call succeeded, without making it
 *   SIGHUP    kill the caller, and answer nothing
 *   SIGQUIT   deny all but execve with EPERM
 *   SIGPWR    receive calls and never answer
 *   SIGVTALRM the same for all but execve
 *   SIGTERM   the listener ends: the kernel answers ENOSYS
 *
 * OUTER_UID is the user and group of the program and of this one; without it nothing changes. The exit
 * status is the program's, or 128 and its signal.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

static struct sock_filter program[1024];
static unsigned short length;
static volatile sig_atomic_t *answers; /* the signal that chose them; shared with the process that serves the listener */

static void statement(unsigned short code, unsigned k) { program[length++] = (struct sock_filter){ code, 0, 0, k }; }

/* Skips the next n instructions unless the value is k. */
static void unless(unsigned k, unsigned char n) { program[length++] = (struct sock_filter){ BPF_JMP | BPF_JEQ | BPF_K, 0, n, k }; }

static void load(size_t offset) { statement(BPF_LD | BPF_W | BPF_ABS, (unsigned)offset); }

static void answer(unsigned action) { statement(BPF_RET | BPF_K, action); }

static void each(const int *numbers, size_t n, unsigned action)
{
	for (size_t i = 0; i < n; i++) {
		unless((unsigned)numbers[i], 1);
		answer(action);
	}
}
#define EACH(list, action) each(list, sizeof list / sizeof list[0], action)

static int install(unsigned long flags)
{
	struct sock_fprog p = { length, program };
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p);
}

static const int plain[] = { SYS_execve, SYS_kill, SYS_connect };

static const int landlock[] = { SYS_landlock_create_ruleset };

static const int signals[] = { SYS_kill, SYS_connect };

static const int listener[] = { SYS_socket, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_sendto, SYS_sendmsg, SYS_sendmmsg,
	                        SYS_getpeername, SYS_setsockopt, SYS_kill, SYS_tkill, SYS_rt_sigqueueinfo, SYS_openat, SYS_openat2,
#ifdef SYS_open
	                        SYS_open,
#endif
};

static const int refused[] = { SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_open, SYS_pidfd_getfd,
	                       SYS_pidfd_send_signal, SYS_kcmp, SYS_tkill, SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root,
	                       SYS_chroot, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_move_mount, SYS_open_tree, SYS_bpf,
	                       SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_capset,
	                       SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid,
	                       SYS_setgroups, SYS_sethostname, SYS_setdomainname, SYS_setpriority, SYS_ioprio_set };

static void harden(void)
{
	length = 0;
	load(offsetof(struct seccomp_data, nr));
	EACH(refused, SECCOMP_RET_ERRNO | EPERM);
	unless(SYS_clone3, 1);
	answer(SECCOMP_RET_ERRNO | ENOSYS);
	unless(SYS_seccomp, 4);
	load(offsetof(struct seccomp_data, args[0]));
	unless(SECCOMP_SET_MODE_FILTER, 1);
	answer(SECCOMP_RET_ERRNO | EPERM);
	answer(SECCOMP_RET_ALLOW);
	unless(SYS_prctl, 4);
	load(offsetof(struct seccomp_data, args[0]));
	unless(PR_SET_SECCOMP, 1);
	answer(SECCOMP_RET_ERRNO | EPERM);
	answer(SECCOMP_RET_ALLOW);
	answer(SECCOMP_RET_ALLOW);
	if (install(0) < 0) {
		perror("outer: refuse calls");
		_exit(126);
	}
}

static void become(const char *id)
{
	uid_t uid = (uid_t)atoi(id);
	if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0) {
		perror("outer: change the user");
		_exit(126);
	}
}

static const int refused_before[] = { SYS_memfd_create, SYS_ptrace, SYS_bpf, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_open,
	                              SYS_pidfd_getfd, SYS_pidfd_send_signal, SYS_io_uring_setup, SYS_mount, SYS_fsopen, SYS_fsconfig,
	                              SYS_fsmount, SYS_fspick, SYS_move_mount, SYS_open_tree, SYS_setns, SYS_umount2, SYS_pivot_root,
	                              SYS_userfaultfd, SYS_perf_event_open };

/* A call with some of the bits in an argument is refused. */
static void refuse_bits(int call, int argument, unsigned bits)
{
	unless((unsigned)call, 4);
	load(offsetof(struct seccomp_data, args) + 8 * (size_t)argument);
	program[length++] = (struct sock_filter){ BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits };
	answer(SECCOMP_RET_ERRNO | EPERM);
	load(offsetof(struct seccomp_data, nr));
}

/* A call with a value of its first argument is refused. */
static void refuse_value(int call, unsigned value)
{
	unless((unsigned)call, 4);
	load(offsetof(struct seccomp_data, args[0]));
	unless(value, 1);
	answer(SECCOMP_RET_ERRNO | EPERM);
	load(offsetof(struct seccomp_data, nr));
}

/* The program, below the filter of a workload of OpenShell 0.0.x. */
static int older_filter(char **argv)
{
	if (getenv("OUTER_UID"))
		become(getenv("OUTER_UID"));
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	load(offsetof(struct seccomp_data, nr));
	EACH(refused_before, SECCOMP_RET_ERRNO | EPERM);
	unless(SYS_clone3, 1);
	answer(SECCOMP_RET_ERRNO | ENOSYS);
	refuse_bits(SYS_execveat, 4, AT_EMPTY_PATH);
	refuse_bits(SYS_unshare, 0, CLONE_NEWUSER);
	refuse_bits(SYS_clone, 0, CLONE_NEWUSER);
	refuse_value(SYS_socket, AF_PACKET);
	refuse_value(SYS_socket, AF_BLUETOOTH);
	refuse_value(SYS_socket, AF_VSOCK);
	refuse_value(SYS_seccomp, SECCOMP_SET_MODE_FILTER);
	answer(SECCOMP_RET_ALLOW);
	if (install(0) < 0) {
		perror("outer: refuse calls");
		return 126;
	}
	execvp(argv[0], argv);
	perror("outer: exec");
	return 127;
}

/* A listener below this one is refused as by a kernel that has none. */
static void hide(void)
{
	length = 0;
	load(offsetof(struct seccomp_data, nr));
	unless(SYS_seccomp, 3);
	load(offsetof(struct seccomp_data, args[1]));
	program[length++] = (struct sock_filter){ BPF_JMP | BPF_JSET | BPF_K, 0, 1, SECCOMP_FILTER_FLAG_NEW_LISTENER };
	answer(SECCOMP_RET_ERRNO | EINVAL);
	answer(SECCOMP_RET_ALLOW);
	if (install(0) < 0) {
		perror("outer: hide the listener");
		_exit(126);
	}
}

/* The program: it gets its filter first, and passes the listener to its parent. */
static void run(const char *mode, int sock, char **argv)
{
	if (getenv("OUTER_UID"))
		become(getenv("OUTER_UID"));
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	load(offsetof(struct seccomp_data, nr));
	if (strcmp(mode, "plain") == 0) {
		EACH(plain, SECCOMP_RET_USER_NOTIF);
	} else if (strncmp(mode, "landlock", 8) == 0) {
		EACH(landlock, SECCOMP_RET_USER_NOTIF);
	} else if (strcmp(mode, "hidden") == 0) {
		EACH(signals, SECCOMP_RET_USER_NOTIF);
	} else if (strcmp(mode, "some") == 0) { /* SIGUSR1 by kill alone */
		unless(SYS_kill, 4);
		load(offsetof(struct seccomp_data, args[1]));
		unless(SIGUSR1, 1);
		answer(SECCOMP_RET_USER_NOTIF);
		answer(SECCOMP_RET_ALLOW);
	} else {
		EACH(listener, SECCOMP_RET_USER_NOTIF);
	}
	answer(SECCOMP_RET_ALLOW);
	int fd = install(SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
	if (fd < 0) {
		perror("outer: listener");
		_exit(126);
	}
	/* sendmsg may be notified: the number goes by write, the parent takes the descriptor */
	if (write(sock, &fd, sizeof fd) != sizeof fd || read(sock, &fd, 1) != 1)
		_exit(126);
	close(fd);
	if (strcmp(mode, "whole") == 0)
		harden();
	if (strcmp(mode, "hidden") == 0)
		hide();
	close(sock);
	execvp(argv[0], argv);
	perror("outer: exec");
	_exit(127);
}

static pid_t server, below;

static void change(int sig)
{
	*answers = sig;
	if (sig == SIGTERM)
		kill(server, SIGKILL);
	kill(below, SIGUSR2);
}

static int version; /* of Landlock; 0: the kernel's */

/* Answers for an older Landlock: see landlock_create_ruleset(2). */
static void older(const struct seccomp_notif *n, struct seccomp_notif_resp *r)
{
	const unsigned long long refer = 1 << 13;
	unsigned long long attr[8] = { 0 };
	size_t size = n->data.args[1];
	struct iovec here = { attr, size < sizeof attr ? size : sizeof attr }, there = { (void *)n->data.args[0], here.iov_len };
	int queried = n->data.args[2] != 0;
	if (!queried && process_vm_readv((pid_t)n->pid, &here, 1, &there, 1, 0) != (ssize_t)here.iov_len)
		r->error = -EFAULT;
	else if (!queried && (attr[1] || attr[2]))
		r->error = -E2BIG;
	else if (!queried && attr[0] >= (version == 1 ? refer : 2 * refer))
		r->error = -EINVAL;
	else if (queried)
		r->val = version;
	else
		return;
	r->flags = 0;
}

static void serve(int fd)
{
	for (;;) {
		struct seccomp_notif n;
		memset(&n, 0, sizeof n);
		if (ioctl(fd, SECCOMP_IOCTL_NOTIF_RECV, &n) < 0) {
			if (errno == EINTR || errno == ENOENT)
				continue;
			return;
		}
		struct seccomp_notif_resp r = { .id = n.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
		if (n.data.nr == SYS_landlock_create_ruleset)
			older(&n, &r);
		int how = *answers, exec = n.data.nr == SYS_execve || n.data.nr == SYS_execveat;
		switch (exec && (how == SIGQUIT || how == SIGVTALRM) ? SIGUSR2 : how) {
		case SIGUSR1:
		case SIGQUIT:
			r.flags = 0;
			r.error = -EPERM;
			break;
		case SIGALRM:
			r.flags = 0;
			break;
		case SIGHUP:
			kill((pid_t)n.pid, SIGKILL);
			continue;
		case SIGPWR:
		case SIGVTALRM:
			continue;
		}
		ioctl(fd, SECCOMP_IOCTL_NOTIF_SEND, &r);
	}
}

int main(int argc, char **argv)
{
	int sock[2], fd;
	if (argc < 3) {
		fprintf(stderr, "usage: outer plain|listener|hidden|some|whole|older|landlock1|landlock2 PROGRAM [ARG...]\n");
		return 126;
	}
	if (strcmp(argv[1], "older") == 0)
		return older_filter(argv + 2);
	if (strncmp(argv[1], "landlock", 8) == 0)
		version = argv[1][8] - '0';
	answers = mmap(NULL, sizeof *answers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (answers == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) < 0)
		return 126;
	pid_t pid = fork();
	if (pid == 0)
		run(argv[1], sock[1], argv + 2);
	close(sock[1]);
	if (read(sock[0], &fd, sizeof fd) != sizeof fd)
		return 126;
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	int notify = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	if (notify < 0) {
		perror("outer: take the listener");
		kill(pid, SIGKILL);
		return 126;
	}
	const char *user = getenv("OUTER_UID");
	if (user) /* the program may change the answers */
		become(user);
	server = fork();
	if (server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pidfd);
		serve(notify);
		_exit(0);
	}
	close(notify);
	static const int changes[] = { SIGUSR1, SIGUSR2, SIGALRM, SIGHUP, SIGQUIT, SIGPWR, SIGVTALRM, SIGTERM };
	struct sigaction a = { .sa_handler = change };
	for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
		sigaction(changes[i], &a, NULL);
	below = pid;
	char go = (char)fd;
	if (write(sock[0], &go, 1) != 1)
		return 126;
	int status;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	kill(server, SIGKILL);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
