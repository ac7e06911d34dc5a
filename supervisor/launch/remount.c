/* Attributes of mounts on kernels before mount_setattr(2), Linux 5.12: each mount
   is remounted once it is attached. See mount(2), MS_REMOUNT with MS_BIND. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The attributes have the numbers of the flags of mount(2) and statvfs(3). */
enum { SAME_BITS = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC };

static void remount_one(int fd, const char *target, uint64_t attrs)
{
	char name[40];
	struct statvfs st;
	snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
	/* attributes that are set must stay: they may be locked */
	if (fstatvfs(fd, &st) < 0 ||
	    mount(NULL, name, NULL, MS_REMOUNT | MS_BIND | (st.f_flag & SAME_BITS) | (attrs & SAME_BITS), NULL) < 0)
		die(errno, "set mount attributes of", target);
}

/* The id of the mount of a file; -1: the kernel does not tell it. A process that is not
   dumpable may not read /proc/self/fdinfo in a user namespace. See statx(2), Linux 5.8. */
static int mount_id(int fd)
{
	struct statx st;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &st) < 0 || !(st.stx_mask & STATX_MNT_ID))
		return -1;
	return (int)st.stx_mnt_id;
}

/* Undoes the octal escapes of a mountinfo field in place. */
static void unescape(char *s)
{
	char *to = s;
	for (; *s; s++)
		if (s[0] == '\\' && s[1] && s[2] && s[3]) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	*to = 0;
}

enum { MAX_MOUNTS = 4096 };

/* Remounts the mounts below id. A mount that was moved may come before its parent in the
   list, so the list is read until it has no new one. */
static void remount_below(int id, uint64_t attrs, int (*open_target)(const char *))
{
	static int known[MAX_MOUNTS];
	char line[2 * PATH_MAX + 256], name[PATH_MAX + 1];
	int n = 1, before;
	known[0] = id;
	do {
		before = n;
		FILE *f = fopen("/proc/self/mountinfo", "re");
		if (!f)
			die(errno, "open", "/proc/self/mountinfo");
		while (fgets(line, sizeof line, f)) {
			int self, parent, is_new = 1, below = 0;
			if (sscanf(line, "%d %d %*s %*s %4096s", &self, &parent, name) != 3)
				continue;
			for (int i = 0; i < n; i++) {
				is_new &= known[i] != self;
				below |= known[i] == parent;
			}
			if (!is_new || !below)
				continue;
			if (n == MAX_MOUNTS)
				die(E2BIG, "set mount attributes: too many mounts below one", name);
			known[n++] = self;
			unescape(name);
			int fd = open_target(name);
			if (fd < 0)
				die(errno, "open mount", name);
			remount_one(fd, name, attrs);
			close(fd);
		}
		fclose(f);
	} while (n > before);
}

void remount(const char *target, uint64_t attrs, int recursive, int (*open_target)(const char *))
{
	int fd = open_target(target);
	if (fd < 0)
		die(errno, "open mount", target);
	remount_one(fd, target, attrs);
	int id = mount_id(fd);
	close(fd);
	if (!recursive)
		return;
	if (id < 0)
		die(ENOENT, "find the mount of", target);
	remount_below(id, attrs, open_target);
}
