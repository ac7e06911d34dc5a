/* Runs a program where user namespaces are refused, as a machine does that has
   switched them off: clone and unshare with CLONE_NEWUSER fail. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)

int main(int argc, char **argv)
{
	struct sock_filter program[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
		RETURN(SECCOMP_RET_ERRNO | ENOSYS), /* its flags are in memory */
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unshare, 1, 0),
		RETURN(SECCOMP_RET_ALLOW),
		LOAD(args[0]),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWUSER, 0, 1),
		RETURN(SECCOMP_RET_ERRNO | EPERM),
		RETURN(SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { sizeof program / sizeof *program, program };
	if (argc < 2)
		return 2;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p) < 0) {
		perror("without");
		return 2;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 2;
}
