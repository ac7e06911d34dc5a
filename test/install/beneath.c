// Runs a command as a place does that confines its sandboxes itself: as a user
// without capabilities and with no_new_privs, in a Landlock domain in which only
// three trees can be written, under a filter that refuses namespaces and mounts.
//   beneath COMMAND [ARG ...]
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { USER = 1000 };

static void die(const char *what)
{
	fprintf(stderr, "beneath: %s: %s\n", what, strerror(errno));
	exit(99);
}

static void allow(int ruleset, const char *path, unsigned long long access)
{
	struct landlock_path_beneath_attr beneath = {.allowed_access = access};

	beneath.parent_fd = open(path, O_PATH | O_CLOEXEC);
	if (beneath.parent_fd < 0)
		die(path);
	if (syscall(__NR_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) < 0)
		die("landlock_add_rule");
	close(beneath.parent_fd);
}

// The rights of ABI 1: what every kernel with Landlock knows.
static void landlock(void)
{
	const unsigned long long all = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
	const unsigned long long read = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
	struct landlock_ruleset_attr attr = {.handled_access_fs = all};
	int ruleset = syscall(__NR_landlock_create_ruleset, &attr, sizeof(attr.handled_access_fs), 0);

	if (ruleset < 0)
		die("landlock_create_ruleset");
	allow(ruleset, "/", read);
	allow(ruleset, "/sandbox", all);
	allow(ruleset, "/tmp", all);
	allow(ruleset, "/var/tmp", all);
	allow(ruleset, "/dev", read | LANDLOCK_ACCESS_FS_WRITE_FILE);
	if (syscall(__NR_landlock_restrict_self, ruleset, 0) < 0)
		die("landlock_restrict_self");
	close(ruleset);
}

#define REFUSE(number) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

static void filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		REFUSE(__NR_unshare),
		REFUSE(__NR_setns),
		REFUSE(__NR_mount),
		REFUSE(__NR_umount2),
		REFUSE(__NR_pivot_root),
		REFUSE(__NR_open_tree),
		REFUSE(__NR_fsopen),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0)
		die("seccomp");
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: beneath COMMAND [ARG ...]\n");
		return 99;
	}
	if (setgroups(0, NULL) < 0 || setresgid(USER, USER, USER) < 0 || setresuid(USER, USER, USER) < 0)
		die("become a user");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		die("no_new_privs");
	landlock();
	filter();
	execvp(argv[1], argv + 1);
	die(argv[1]);
}
