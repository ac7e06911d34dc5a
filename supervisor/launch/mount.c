/* The new root: a tmpfs that is mounted on "/", filled, and made the root by pivot_root.
   See mount_setattr(2), open_tree(2), move_mount(2), pivot_root(2) NOTES. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef FSOPEN_CLOEXEC
#define FSOPEN_CLOEXEC 1
#define FSMOUNT_CLOEXEC 1
enum { FSCONFIG_SET_FLAG = 0, FSCONFIG_SET_STRING = 1, FSCONFIG_CMD_CREATE = 6 };
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif
#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 4
#define MOVE_MOUNT_T_EMPTY_PATH 0x40
#endif
#ifndef MOUNT_ATTR_RDONLY
#define MOUNT_ATTR_RDONLY 1
#define MOUNT_ATTR_NOSUID 2
#define MOUNT_ATTR_NODEV 4
#define MOUNT_ATTR_NOEXEC 8
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

struct attr { /* struct mount_attr */
	uint64_t set, clr, propagation, userns;
};

/* -- names beneath the new root -- */

static int open_beneath(const char *path, uint64_t flags)
{
	struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
	return (int)syscall(SYS_openat2, S.root, path, &how, sizeof how);
}

/* Opens the directory of path, and makes it with its parents if it is missing. *base
   is the last name. */
static int open_parent(const char *path, const char **base)
{
	char dir[PATH_MAX];
	size_t n = strlen(path);
	if (n < 2 || n >= sizeof dir || path[0] != '/' || path[n - 1] == '/')
		die(EINVAL, "mount target", path);
	memcpy(dir, path, n + 1);
	char *last = strrchr(dir, '/');
	*last = 0;
	*base = path + (last - dir) + 1;
	if (last == dir)
		return open_beneath("/", O_PATH | O_DIRECTORY);
	int fd = open_beneath(dir, O_PATH | O_DIRECTORY);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	const char *name;
	int parent = open_parent(dir, &name);
	if (parent < 0)
		return -1;
	int err = mkdirat(parent, name, 0755) < 0 ? errno : 0;
	close(parent);
	if (err) {
		errno = err;
		return -1;
	}
	return open_beneath(dir, O_PATH | O_DIRECTORY);
}

/* Opens the mount point target, and makes it if it is missing. */
static int open_target(const char *target, int is_dir)
{
	int fd = open_beneath(target, O_PATH);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	const char *base;
	int parent = open_parent(target, &base);
	if (parent < 0)
		return -1;
	int err = 0;
	if (is_dir) {
		if (mkdirat(parent, base, 0755) < 0)
			err = errno;
	} else {
		int f = openat(parent, base, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
		if (f < 0)
			err = errno;
		else
			close(f);
	}
	close(parent);
	if (err) {
		errno = err;
		return -1;
	}
	return open_beneath(target, O_PATH);
}

static void attach(int mnt, const char *target, int is_dir)
{
	int to = open_target(target, is_dir);
	if (to < 0)
		die(errno, "make mount point", target);
	if (syscall(SYS_move_mount, mnt, "", to, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
		die(errno, "mount", target);
	close(to);
	close(mnt);
}

static int set_attr(int mnt, uint64_t attrs, int recursive)
{
	struct attr a = { .set = attrs };
	return (int)syscall(SYS_mount_setattr, mnt, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0), &a, sizeof a);
}

static int open_mounted(const char *target)
{
	return open_beneath(target, O_PATH);
}

/* Sets the attributes of a mount and attaches it, in the other order if the kernel
   needs that. */
static void attach_with(int mnt, uint64_t attrs, int recursive, const char *target, int is_dir)
{
	int late = 0;
	if (set_attr(mnt, attrs, recursive) < 0) {
		late = errno == ENOSYS;
		if (!late)
			die(errno, "set mount attributes of", target);
	}
	attach(mnt, target, is_dir);
	if (late)
		remount(target, attrs, recursive, open_mounted);
}

/* -- file systems -- */

/* What begins the path of a layer in the new root: launch.InRoot. That root is mounted over
   the one that paths of the init begin at, so it has no path but its descriptor's. */
#define IN_ROOT "@root/"

/* The value of an option. buf is for one with IN_ROOT. */
static const char *option_value(const char *value, char *buf, size_t size)
{
	if (strncmp(value, IN_ROOT, strlen(IN_ROOT)) != 0)
		return value;
	int n = snprintf(buf, size, "/proc/self/fd/%d/%s", S.root, value + strlen(IN_ROOT));
	if (n < 0 || (size_t)n >= size)
		die(ENAMETOOLONG, "mount option", value);
	return buf;
}

/* A file system context with its options ("name" or "name=value"). */
static int configure(const char *type, const char *target, const char *const *options, uint32_t n)
{
	int fs = (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
	if (fs < 0)
		die(errno, "open file system", type);
	for (uint32_t i = 0; i < n; i++) {
		char key[64], value[PATH_MAX];
		const char *eq = strchr(options[i], '=');
		size_t len = eq ? (size_t)(eq - options[i]) : strlen(options[i]);
		if (len == 0 || len >= sizeof key)
			die(EINVAL, "mount option", options[i]);
		memcpy(key, options[i], len);
		key[len] = 0;
		if (syscall(SYS_fsconfig, fs, eq ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, key,
		            eq ? option_value(eq + 1, value, sizeof value) : NULL, 0) < 0)
			die(errno, "mount option", options[i]);
	}
	if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0) {
		char what[PATH_MAX + 64];
		snprintf(what, sizeof what, "%s for %s", type, target);
		die(errno, "create file system", what);
	}
	return fs;
}

static int make_fs(const char *type, const char *target, uint64_t attrs, const char *const *options, uint32_t n)
{
	int fs = configure(type, target, options, n);
	int mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, (unsigned)attrs);
	if (mnt < 0)
		die(errno, "mount", target);
	close(fs);
	return mnt;
}

/* Sends the descriptor of a FUSE mount to the supervisor and waits until it has a
   server: later operations may open files below it. */
static void announce_fuse(int dev, const char *tag)
{
	char msg[1 + 256];
	int n = snprintf(msg, sizeof msg, "%c%s", MSG_FUSE, tag);
	if (n < 1 || n >= (int)sizeof msg || send_msg(FD_CONTROL, msg, (size_t)n, &dev, 1) < 0)
		die(errno, "hand over FUSE mount", tag);
	close(dev);
	uint8_t type = 0;
	int nfds;
	ssize_t got = recv_msg(FD_CONTROL, &type, 1, NULL, 0, &nfds);
	if (got == 0)
		_exit(125);
	if (got != 1 || type != MSG_SERVED)
		die(got < 0 ? errno : EBADMSG, "wait for the server of", tag);
}

/* Mounts FUSE by mount(2). Where move_mount(2) asks the server for the root, it waits for
   one that is not there yet, or is refused the root of a path that is denied. */
static void mount_fuse(const char *target, int is_dir, uint64_t attrs, const char *const *options, uint32_t n)
{
	char data[4096] = "", name[40];
	const char *source = "";
	size_t len = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (strncmp(options[i], "source=", 7) == 0) {
			source = options[i] + 7;
			continue;
		}
		len += (size_t)snprintf(data + len, sizeof data - len, "%s%s", len ? "," : "", options[i]);
		if (len >= sizeof data)
			die(E2BIG, "mount options of", target);
	}
	int to = open_target(target, is_dir);
	if (to < 0)
		die(errno, "make mount point", target);
	snprintf(name, sizeof name, "/proc/self/fd/%d", to);
	if (mount(source, name, "fuse", attrs, data) < 0)
		die(errno, "mount FUSE at", target);
	close(to);
}

static void op_fs(struct reader *r)
{
	const char *options[32];
	char fd_option[32];
	const char *type = read_str(r), *target = read_str(r);
	uint64_t attrs = read_u64(r);
	const char *tag = read_str(r);
	uint32_t n = read_u32(r);
	if (n >= 32) {
		r->bad = 1;
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		options[i] = read_str(r);
	if (r->bad)
		return;
	int is_dir = 1;
	for (uint32_t i = 0; i < n; i++)
		if (strcmp(options[i], "rootmode=100000") == 0)
			is_dir = 0; /* a single file can only be mounted on a file */
	int dev = -1;
	if (tag[0]) {
		/* opened here: the kernel requires that the opener is in the user
		   namespace of the mount */
		dev = open("/dev/fuse", O_RDWR | O_CLOEXEC);
		if (dev < 0)
			die(errno, "open", "/dev/fuse");
		snprintf(fd_option, sizeof fd_option, "fd=%d", dev);
		options[n++] = fd_option;
	}
	if (dev < 0) {
		attach(make_fs(type, target, attrs, options, n), target, is_dir);
		return;
	}
	mount_fuse(target, is_dir, attrs, options, n);
	announce_fuse(dev, tag);
}

/* -- the other operations -- */

static void op_root(struct reader *r)
{
	char size[40];
	uint64_t bytes = read_u64(r);
	if (r->bad || S.root >= 0) {
		r->bad = 1;
		return;
	}
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		die(errno, "make mounts private", "/");
	snprintf(size, sizeof size, "size=%llu", (unsigned long long)bytes);
	const char *options[] = { size, "mode=0755" };
	int mnt = make_fs("tmpfs", "/", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, options, 2);
	if (syscall(SYS_move_mount, mnt, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0)
		die(errno, "mount", "the new root");
	S.root = mnt;
}

static void op_dir(struct reader *r)
{
	const char *target = read_str(r);
	uint32_t mode = read_u32(r);
	if (r->bad)
		return;
	int fd = open_target(target, 1);
	if (fd < 0)
		die(errno, "make directory", target);
	close(fd);
	fd = open_beneath(target, O_RDONLY | O_DIRECTORY);
	if (fd < 0 || fchmod(fd, mode) < 0)
		die(errno, "make directory", target);
	close(fd);
}

static void op_file(struct reader *r)
{
	const char *target = read_str(r), *base;
	uint32_t mode = read_u32(r), len;
	const uint8_t *data = read_bytes(r, &len);
	if (r->bad)
		return;
	int parent = open_parent(target, &base);
	int fd = parent < 0 ? -1 : openat(parent, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, data, len) != (ssize_t)len || fchmod(fd, mode) < 0)
		die(errno, "make file", target);
	close(fd);
	close(parent);
}

static void op_symlink(struct reader *r)
{
	const char *target = read_str(r), *text = read_str(r), *base;
	if (r->bad)
		return;
	int parent = open_parent(target, &base);
	if (parent < 0 || symlinkat(text, parent, base) < 0)
		die(errno, "make symbolic link", target);
	close(parent);
}

/* Mounts a file on a file, and closes it. mount(2) does it everywhere: kernels that take
   directories alone have open_tree(2), too. The attributes come before the next
   operation, and no command runs yet. */
static void bind_file(int from, const char *target, uint64_t attrs)
{
	char source[40], name[40];
	int to = open_target(target, 0);
	if (to < 0)
		die(errno, "make mount point", target);
	snprintf(source, sizeof source, "/proc/self/fd/%d", from);
	snprintf(name, sizeof name, "/proc/self/fd/%d", to);
	if (mount(source, name, NULL, MS_BIND, NULL) < 0)
		die(errno, "mount", target);
	close(to);
	close(from);
	if ((to = open_mounted(target)) < 0)
		die(errno, "open mount", target);
	if (set_attr(to, attrs, 0) < 0) {
		if (errno != ENOSYS)
			die(errno, "set mount attributes of", target);
		remount(target, attrs, 0, open_mounted);
	}
	close(to);
}

static void op_bind(struct reader *r)
{
	const char *source = read_str(r), *target = read_str(r);
	uint64_t attrs = read_u64(r);
	uint32_t flags = read_u32(r);
	if (r->bad)
		return;
	int rec = flags & FLAG_RECURSIVE;
	int from = flags & FLAG_BENEATH ? open_beneath(source, O_PATH) : open(source, O_PATH | O_CLOEXEC);
	struct stat st;
	if (from >= 0 && fstat(from, &st) == 0 && !S_ISDIR(st.st_mode)) {
		bind_file(from, target, attrs);
		return;
	}
	int mnt = from < 0 ? -1 : (int)syscall(SYS_open_tree, from, "",
	                 OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | (rec ? AT_RECURSIVE : 0));
	if (mnt < 0) {
		if (errno == ENOENT && (flags & FLAG_OPTIONAL))
			return;
		die(errno, "open mount source", source);
	}
	close(from);
	attach_with(mnt, attrs, rec, target, 1);
}

static void op_attr(struct reader *r)
{
	const char *target = read_str(r);
	uint64_t attrs = read_u64(r);
	uint32_t flags = read_u32(r);
	if (r->bad)
		return;
	int fd = open_beneath(target, O_PATH);
	if (fd < 0) {
		if (errno == ENOENT && (flags & FLAG_OPTIONAL))
			return;
		die(errno, "open mount", target);
	}
	if (set_attr(fd, attrs, flags & FLAG_RECURSIVE) < 0) {
		if (errno != ENOSYS)
			die(errno, "set mount attributes of", target);
		remount(target, attrs, flags & FLAG_RECURSIVE, open_mounted);
	}
	close(fd);
}

/* Covers a directory with an empty one, and a file with /dev/null on a mount without devices, so that it cannot be opened. */
static void op_mask(struct reader *r)
{
	const char *target = read_str(r);
	struct stat st;
	if (r->bad)
		return;
	int fd = open_beneath(target, O_PATH);
	if (fd < 0 && errno == ENOENT)
		return;
	if (fd < 0 || fstat(fd, &st) < 0)
		die(errno, "mask", target);
	close(fd);
	const uint64_t attrs = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV;
	if (S_ISDIR(st.st_mode)) {
		const char *options[] = { "size=4096", "mode=0555" };
		attach(make_fs("tmpfs", target, attrs, options, 2), target, 1);
		return;
	}
	int null = open("/dev/null", O_PATH | O_CLOEXEC);
	if (null < 0)
		die(errno, "mask", target);
	bind_file(null, target, attrs);
}

void setup_mount_op(uint32_t op, struct reader *r)
{
	if (op != OP_ROOT && S.root < 0) {
		r->bad = 1;
		return;
	}
	switch (op) {
	case OP_ROOT:
		op_root(r);
		return;
	case OP_DIR:
		op_dir(r);
		return;
	case OP_FILE:
		op_file(r);
		return;
	case OP_SYMLINK:
		op_symlink(r);
		return;
	case OP_BIND:
		op_bind(r);
		return;
	case OP_FS:
		op_fs(r);
		return;
	case OP_ATTR:
		op_attr(r);
		return;
	case OP_MASK:
		op_mask(r);
		return;
	default:
		r->bad = 1;
	}
}

/* Opens a procfs of the pid namespace for the init. It is not attached, so commands
   cannot reach it and it needs no hidepid. */
void open_scan_proc(void)
{
	int mnt = make_fs("proc", "/proc", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, NULL, 0);
	S.proc = openat(mnt, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (S.proc < 0)
		die(errno, "open", "/proc of the session");
	close(mnt);
}

void pivot(void)
{
	if (S.root < 0 || fchdir(S.root) < 0)
		die(S.root < 0 ? EBADMSG : errno, "enter", "the new root");
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		die(errno, "change to", "the new root");
	if (umount2(".", MNT_DETACH) < 0)
		die(errno, "unmount", "the old root");
	if (chdir("/") < 0)
		die(errno, "enter", "the new root");
	close(S.root);
	S.root = -1;
}
