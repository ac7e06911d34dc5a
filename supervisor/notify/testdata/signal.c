/* signal CALL NUMBER SIGNAL: sends by the named call and prints the errno's
 * name or ok. NUMBER is a process id, or self,
 * parent, child, grandchild; after ok comes the signal that ended the child. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int sig = atoi(argv[3]), child = 0;
	long number = atol(argv[2]), r = -1;
	if (!strcmp(argv[2], "self"))
		number = getpid();
	if (!strcmp(argv[2], "parent"))
		number = getppid();
	int hold[2], tell[2];
	char byte;
	if (pipe(hold) || pipe(tell))
		return 2;
	if (!strcmp(argv[2], "child") || !strcmp(argv[2], "grandchild")) {
		child = fork();
		if (child == 0) {
			if (argv[2][0] == 'g' && fork())
				_exit(wait(NULL) < 0);
			pid_t self = getpid();
			close(hold[1]);
			if (write(tell[1], &self, sizeof self) < 0)
				_exit(1);
			_exit(read(hold[0], &byte, 1)); /* ends with the parent */
		}
		pid_t pid;
		if (read(tell[0], &pid, sizeof pid) != sizeof pid)
			return 2;
		number = pid;
	}
	siginfo_t info = { .si_signo = sig, .si_code = SI_QUEUE };
	info.si_pid = getpid();
	if (!strcmp(argv[1], "kill"))
		r = syscall(SYS_kill, number, sig);
	else if (!strcmp(argv[1], "tkill"))
		r = syscall(SYS_tkill, number, sig);
	else if (!strcmp(argv[1], "tgkill"))
		r = syscall(SYS_tgkill, number, number, sig);
	else if (!strcmp(argv[1], "rt_sigqueueinfo"))
		r = syscall(SYS_rt_sigqueueinfo, number, sig, &info);
	else if (!strcmp(argv[1], "rt_tgsigqueueinfo"))
		r = syscall(SYS_rt_tgsigqueueinfo, number, number, sig, &info);
	else if (!strcmp(argv[1], "pidfd"))
		r = syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, number, 0), sig, NULL, 0);
	const char *result = r ? strerrorname_np(errno) : "ok";
	close(hold[1]);
	int status = 0;
	if (child)
		waitpid(child, &status, 0);
	if (WIFSIGNALED(status))
		printf("%s %d\n", result, WTERMSIG(status));
	else
		puts(result);
	return 0;
}
