/* A user namespace for a supervisor that is root without CAP_SYS_ADMIN, as in containers.
 *
 * There it has every capability over the namespaces, mounts and processes of its sessions,
 * and none over the machine. Every id is itself. A process with threads cannot make one,
 * so this runs before the Go runtime, in the supervisor alone. A child tries first: where
 * a session could not be made in it either, nothing changes. See user_namespaces(7).
 */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAP_SIZE = 4096 };

/* Makes a map of all ids of this namespace to themselves. 0, or -1. */
static int identity(const char *file, char *map)
{
	unsigned inside, outside, count;
	size_t len = 0;
	FILE *f = fopen(file, "re");
	while (f && fscanf(f, "%u %u %u", &inside, &outside, &count) == 3 && len < MAP_SIZE - 64)
		len += (size_t)sprintf(map + len, "%u %u %u\n", inside, inside, count);
	if (f)
		fclose(f);
	return len ? 0 : -1;
}

static int write_map(pid_t pid, const char *name, const char *map)
{
	char file[64];
	snprintf(file, sizeof file, "/proc/%d/%s", (int)pid, name);
	int fd = open(file, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, map, strlen(map));
	if (fd >= 0)
		close(fd);
	return n == (ssize_t)strlen(map) ? 0 : -1;
}

/* Moves this process to a new user namespace. The maps are written by a child that
   stays in the old one. 0, or -1: then it may be in a namespace without maps. */
static int enter(void)
{
	static char uids[MAP_SIZE], gids[MAP_SIZE];
	int go[2], status;
	char byte = 0;
	pid_t self = getpid();
	if (identity("/proc/self/uid_map", uids) < 0 || identity("/proc/self/gid_map", gids) < 0 || pipe2(go, O_CLOEXEC) < 0)
		return -1;
	pid_t helper = fork();
	if (helper == 0) {
		close(go[1]);
		_exit(read(go[0], &byte, 1) == 1 && write_map(self, "uid_map", uids) == 0 && write_map(self, "gid_map", gids) == 0 ? 0 : 1);
	}
	int ok = helper > 0 && unshare(CLONE_NEWUSER) == 0 && write(go[1], &byte, 1) == 1;
	close(go[0]);
	close(go[1]); /* ends a helper that waits */
	if (helper > 0 && (waitpid(helper, &status, 0) != helper || status != 0))
		ok = 0;
	return ok ? 0 : -1;
}

/* Whether the parts of a session's root can be made in a new user namespace. */
static int works(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		if (enter() < 0 || unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
			_exit(1);
		pid_t first = fork(); /* of the new pid namespace: a procfs needs it */
		if (first == 0) {
			int fs = (int)syscall(SYS_fsopen, "proc", 1 /* FSOPEN_CLOEXEC */);
			_exit(fs >= 0 && syscall(SYS_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) == 0 &&
			      syscall(SYS_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, 0) >= 0 ? 0 : 1);
		}
		_exit(first > 0 && waitpid(first, &status, 0) == first && status == 0 ? 0 : 1);
	}
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

void enter_user_namespace(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	if (geteuid() != 0 || getuid() != 0 || syscall(SYS_capget, &head, caps) < 0 ||
	    (caps[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN)) || !works())
		return;
	if (enter() < 0) {
		static const char text[] = "agentsh: a user namespace that could be made a moment ago cannot be made: try again\n";
		ssize_t ignored = write(2, text, sizeof text - 1);
		(void)ignored;
		_exit(125);
	}
}
