/* The request of a shell of a shared session, and of a command of a running one.
 *
 * The program begins here, before the C library: its start takes longer than all of this
 * (it asks the processor for its features, which a virtual machine answers slowly), and so
 * it runs while the supervisor starts the command. Then _start follows as always, and the
 * constructor of client.c has the answer. So nothing here may use the library: neither its
 * functions nor errno, and no table of addresses, which nobody has relocated yet.
 *
 * This does what a shell of a shared session usually needs. In every other case it returns
 * without a request, and the Go program does all of it: without a session, on a terminal,
 * below a package manager, with a manifest that the supervisor does not know. Of the command
 * line it knows 'agentsh exec --session NAME COMMAND' alone, without a terminal.
 *
 * It decides nothing. The supervisor compares the manifest and the program with what the
 * disk has, chooses directory and environment, and writes what is printed. No variable says
 * where the session of a shell is: PWD alone is read, as a name of the current directory. */
#define _GNU_SOURCE
#include "client.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define SHELLS "/usr/lib/agentsh/shells/"

struct early early;

#ifdef __GLIBC__ /* another library is not tried */

#include "bare.h"

#if defined(__x86_64__)
__asm__(".text\n"
	".globl agentshentry\n"
	".type agentshentry, @function\n"
	"agentshentry:\n"
	"	endbr64\n"
	"	mov %rsp, %rdi\n" /* argc, argv, envp */
	"	push %rdx\n"      /* what the loader wants to be called at the end */
	"	sub $8, %rsp\n"
	"	call agentsh_early\n"
	"	add $8, %rsp\n"
	"	pop %rdx\n"
	"	jmp _start\n"
	".size agentshentry, .-agentshentry\n");
#elif defined(__aarch64__)
__asm__(".text\n"
	".globl agentshentry\n"
	".type agentshentry, %function\n"
	"agentshentry:\n"
	"	stp x0, x30, [sp, #-16]!\n" /* x0: what the loader wants to be called at the end */
	"	add x0, sp, #16\n"          /* argc, argv, envp */
	"	bl agentsh_early\n"
	"	ldp x0, x30, [sp], #16\n"
	"	b _start\n"
	".size agentshentry, .-agentshentry\n");
#endif

/* -- what is installed, and who started this -- */

/* The last part of a path. */
static const char *base(const char *path)
{
	const char *name = path;
	for (const char *p = path; *p; p++)
		if (*p == '/')
			name = p + 1;
	return name;
}

static int is_shell(const char *argv0)
{
	static const char names[][5] = { "sh", "bash", "dash", "ash" };
	const char *name = base(argv0);
	if (*name == '-')
		name++;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (is(name, names[i]))
			return 1;
	return is(name, "rbash");
}

/* Reads a file of a process, or where its link leads; the number of bytes before the NUL,
   or an error. */
static long read_proc(long pid, const char *name, char *buf, size_t size, int link)
{
	char path[64];
	add(add(add_number(add(path, "/proc/"), (unsigned long)pid), "/"), name);
	long n;
	if (link) {
		n = read_link(path, buf, size - 1);
	} else {
		int fd = open_file(path, O_RDONLY);
		if (fd < 0)
			return fd;
		n = read_file(fd, buf, size - 1);
		close_file(fd);
	}
	if (n >= 0)
		buf[n] = 0;
	return n;
}

/* The parent that a line of /proc/PID/stat names; 0: none. */
static long parent_in(const char *line)
{
	const char *p = 0;
	for (const char *at = line; *at; at++)
		if (*at == ')')
			p = at;
	if (!p || p[1] != ' ' || !p[2] || p[3] != ' ')
		return 0;
	long pid = 0;
	for (p += 4; *p >= '0' && *p <= '9'; p++)
		pid = 10 * pid + (*p - '0');
	return pid;
}

/* Whether a package manager of root started this process. The list and the rule are those
   of packager.go. One that others could change counts here, and the Go program then looks at
   it again. */
static int below_packager(void)
{
	static const char packagers[][20] = {
		"/usr/bin/dpkg", "/usr/bin/apt-get", "/usr/bin/apt", "/usr/bin/aptitude", "/usr/bin/rpm", "/usr/bin/microdnf",
		"/sbin/apk", "/usr/sbin/apk", "/usr/bin/apk", "/usr/bin/pacman", "/usr/bin/zypper",
	};
	static char text[4096];
	if (call(__NR_geteuid, 0, 0, 0, 0, 0) != 0 || call(__NR_getuid, 0, 0, 0, 0, 0) != 0)
		return 0;
	long pid = call(__NR_getppid, 0, 0, 0, 0, 0);
	for (int i = 0; i < 64 && pid >= 1; i++) {
		if (read_proc(pid, "exe", text, sizeof text, 1) > 0)
			for (size_t k = 0; k < sizeof packagers / sizeof *packagers; k++)
				if (is(text, packagers[k]))
					return 1;
		if (read_proc(pid, "stat", text, sizeof text, 0) <= 0)
			return 0;
		pid = parent_in(text);
	}
	return 0;
}

/* -- the session -- */

static char exe[4096], here[4096]; /* here "": the directory was removed */
static uint8_t header[HEADER_SIZE];

static void put_file(uint8_t *p, const struct stat *st)
{
	uint64_t v[5] = {
		st->st_dev, st->st_ino, (uint64_t)st->st_size,
		(uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec,
		(uint64_t)st->st_ctim.tv_sec * 1000000000 + (uint64_t)st->st_ctim.tv_nsec,
	};
	copy(p, v, sizeof v);
}

/* Whether a path is a directory of a user that nobody else can enter. */
static int is_private(const char *path, uid_t user)
{
	struct stat st;
	return status(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) && st.st_uid == user && (st.st_mode & 0777) == 0700;
}

/* The directory of the session: /run is root's, and /var/tmp is sticky. Returns the path's
   end, or 0. */
static char *find_directory(char *path, uid_t user)
{
	char *end = path;
	if (user != 0) {
		end = add_number(add(path, "/var/tmp/agentsh-"), user);
		if (!is_private(path, user))
			return 0;
	}
	end = add(end, "/run/agentsh");
	if (!is_private(path, user))
		return 0;
	end = add(end, "/shim");
	return is_private(path, user) ? end : 0;
}

static int read_key(const char *path, uid_t user, uint8_t key[KEY_SIZE])
{
	struct stat st;
	int fd = open_file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -1;
	int ok = status(fd, "", &st, AT_EMPTY_PATH) == 0 && S_ISREG(st.st_mode) && st.st_uid == user && read_file(fd, key, KEY_SIZE) == KEY_SIZE;
	close_file(fd);
	return ok ? 0 : -1;
}

static int dial(const char *path, uid_t user)
{
	static struct sockaddr_un to = { .sun_family = AF_UNIX };
	long limit[2] = { SEND_LIMIT / 1000, 0 };
	struct ucred peer;
	socklen_t len = sizeof peer;
	add(to.sun_path, path);
	int sock = (int)call(__NR_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 0, 0);
	if (sock < 0)
		return -1;
	if (call(__NR_setsockopt, sock, SOL_SOCKET, SO_SNDTIMEO, (long)limit, sizeof limit) < 0 ||
	    call(__NR_connect, sock, (long)&to, sizeof to, 0, 0) < 0 ||
	    call(__NR_getsockopt, sock, SOL_SOCKET, SO_PEERCRED, (long)&peer, (long)&len) < 0 || peer.uid != user) {
		close_file(sock);
		return -1;
	}
	return sock;
}

/* Connects to a session whose directory a path names; -1: the Go program does. */
static int open_directory(char *path, char *end, uid_t user)
{
	add(end, "/shells.key");
	if (read_key(path, user, header + 12) < 0)
		return -1;
	add(end, "/shells");
	return dial(path, user);
}

/* Connects to the session that the shells of this user share; -1: the Go program does. */
static int open_shared(void)
{
	char path[96];
	struct stat st;
	uid_t user = (uid_t)call(__NR_geteuid, 0, 0, 0, 0, 0);
	if (status(AT_FDCWD, SHELLS "manifest.json", &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return -1;
	put_file(header + 12 + KEY_SIZE, &st);
	if (status(AT_FDCWD, "/proc/self/exe", &st, 0) < 0)
		return -1;
	put_file(header + 12 + KEY_SIZE + FILE_SIZE, &st);
	char *end = find_directory(path, user);
	return end ? open_directory(path, end, user) : -1;
}

/* The rule of the names of sessions. */
static int is_session(const char *name)
{
	size_t n = 0;
	for (; name[n]; n++)
		if (!(name[n] >= 'a' && name[n] <= 'z') && !(name[n] >= '0' && name[n] <= '9') && (n == 0 || (name[n] != '-' && name[n] != '_')))
			return 0;
	return n > 0 && n <= 32;
}

/* Connects to a session of this user by its name; -1: the Go program does. The rule of
   statedir.Runtime says where it is. */
static int open_named(const char *name, char **envp)
{
	char path[108];
	uid_t user = (uid_t)call(__NR_geteuid, 0, 0, 0, 0, 0);
	const char *runtime = user == 0 ? "/run" : "";
	for (char **e = envp; *e; e++)
		if (begins(*e, "XDG_RUNTIME_DIR=")) {
			if ((*e)[16])
				runtime = *e + 16;
			break;
		}
	if (*runtime != '/' || !is_session(name) || length(runtime) + length("/agentsh/") + length(name) + length("/shells.key") >= sizeof path)
		return -1;
	char *end = add(add(path, runtime), "/agentsh");
	if (!is_private(path, user))
		return -1;
	end = add(add(end, "/"), name);
	return is_private(path, user) ? open_directory(path, end, user) : -1;
}

/* The command of 'agentsh exec --session NAME COMMAND', and the name; 0: another command line. */
static char **named_command(char **argv, const char **name)
{
	if (!is(base(argv[0]), "agentsh") || !argv[1] || !is(argv[1], "exec") || !argv[2])
		return 0;
	char **rest = argv + 3;
	if (begins(argv[2], "--session="))
		*name = argv[2] + 10;
	else if ((is(argv[2], "--session") || is(argv[2], "-s")) && argv[3])
		*name = *rest++;
	else
		return 0;
	if (*rest && is(*rest, "--"))
		rest++;
	else if (*rest && **rest == '-')
		return 0; /* another flag */
	return *rest && **rest ? rest : 0;
}

/* -- the request -- */

/* Whether a name has no part that path.Clean would change. */
static int is_clean(const char *path)
{
	if (is(path, "/"))
		return 1;
	while (*path) {
		if (*path++ != '/')
			return 0;
		size_t n = 0;
		for (; path[n] && path[n] != '/'; n++)
			PLAIN_LOOP;
		if (n == 0 || (n == 1 && path[0] == '.') || (n == 2 && path[0] == '.' && path[1] == '.'))
			return 0;
		path += n;
	}
	return 1;
}

/* The rule of paths.Here. */
static void find_here(char **envp)
{
	struct stat now, named;
	for (char **e = envp; *e; e++)
		if (begins(*e, "PWD=")) {
			const char *pwd = *e + 4;
			if (pwd[0] == '/' && length(pwd) < sizeof here && is_clean(pwd) && status(AT_FDCWD, ".", &now, 0) == 0 &&
			    status(AT_FDCWD, pwd, &named, 0) == 0 && now.st_dev == named.st_dev && now.st_ino == named.st_ino) {
				add(here, pwd);
				return;
			}
			break;
		}
	if (call(__NR_getcwd, (long)here, sizeof here, 0, 0, 0) < 0 || here[0] != '/')
		here[0] = 0;
}

/* The body of the request, in parts. */
static struct {
	int sock, failed;
	size_t len; /* of the part, with its kind */
	char part[1 + PART_SIZE];
} out;

static int send_part(const void *data, size_t n)
{
	long sent;
	do
		sent = call(__NR_sendto, out.sock, (long)data, (long)n, MSG_NOSIGNAL, 0);
	while (sent == -4); /* EINTR */
	return sent == (long)n ? 0 : -1;
}

static void flush(void)
{
	if (out.len > 1 && !out.failed)
		out.failed = send_part(out.part, out.len) < 0;
	out.part[0] = 'r';
	out.len = 1;
}

static void put(const void *data, size_t n)
{
	for (const char *p = data; n > 0 && !out.failed;) {
		size_t k = sizeof out.part - out.len < n ? sizeof out.part - out.len : n;
		copy(out.part + out.len, p, k);
		out.len += k;
		p += k;
		n -= k;
		if (out.len == sizeof out.part)
			flush();
	}
}

/* Adds the sizes of words; their number. */
static uint32_t measure(char **words, size_t *size)
{
	uint32_t n = 0;
	for (; words[n] && *size <= MAX_BODY; n++)
		*size += length(words[n]) + 1;
	return n;
}

/* Sends the request; -1: it did not arrive, so nothing was begun. */
static int send_request(int sock, char **argv, char **envp)
{
	size_t size = 8 + length(exe) + 1 + length(here) + 1;
	uint32_t count[2] = { measure(argv, &size), measure(envp, &size) }, head[2] = { 0, PROTOCOL };
	if (size > MAX_BODY)
		return -1; /* the Go program says so */
	head[0] = (uint32_t)size;
	header[0] = 'R';
	copy(header + 4, head, sizeof head);
	out.sock = sock;
	if (send_part(header, sizeof header) < 0)
		return -1;
	flush(); /* begins a part */
	put(count, sizeof count);
	put(exe, length(exe) + 1);
	put(here, length(here) + 1);
	for (; *argv; argv++)
		put(*argv, length(*argv) + 1);
	for (; *envp; envp++)
		put(*envp, length(*envp) + 1);
	flush();
	return out.failed ? -1 : 0;
}

/* -- the start -- */

/* The command's end and the socket must not have the number of a standard stream. A closed
   output gets one that can only be read: each write to it fails with EBADF, as before. */
static int occupy_streams(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (call(__NR_fcntl, fd, F_GETFD, 0, 0, 0) < 0 && call(__NR_openat, AT_FDCWD, (long)"/dev/null", O_RDONLY, 0, 0) != fd)
			return -1;
	return 0;
}

static int is_terminal(int fd)
{
	char settings[256];
	return call(__NR_ioctl, fd, TCGETS, (long)settings, 0, 0) == 0;
}

/* The signals that are passed to the command, without those that this process was started
   with as ignored: see nohup(1). */
static uint64_t passed_signals(void)
{
	static const int all[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	uint64_t set = 0;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		long action[8]; /* the kernel's: the handler is first */
		if (call(__NR_rt_sigaction, all[i], 0, (long)action, sizeof set, 0) == 0 && action[0] != (long)SIG_IGN)
			set |= (uint64_t)1 << (all[i] - 1);
	}
	return set;
}

/* Sends a request with the words of argv and envp. */
static void request(char **argv, char **envp, char **variables)
{
	find_here(envp);
	early.passed = passed_signals();
	call(__NR_rt_sigprocmask, SIG_BLOCK, (long)&early.passed, (long)&early.mask, sizeof early.mask, 0);
	if (send_request(early.sock, argv, variables) == 0)
		early.sent = 1;
	else
		call(__NR_rt_sigprocmask, SIG_SETMASK, (long)&early.mask, 0, sizeof early.mask, 0);
}

/* Whether a terminal is there on which the policy's questions could be asked. */
static int has_terminal(void)
{
	int fd = open_file("/dev/tty", O_RDWR | O_NOCTTY);
	if (fd >= 0)
		close_file(fd);
	return fd >= 0;
}

__attribute__((used, visibility("hidden"))) void agentsh_early(long *stack)
{
	long argc = stack[0];
	char **argv = (char **)(stack + 1), **envp = argv + argc + 1, **command = 0, *none[] = { 0 };
	const char *name = 0;
	if (argc < 1 || !argv[0][0])
		return;
	int shell = is_shell(argv[0]);
	if (!shell && !(command = named_command(argv, &name)))
		return;
	long n = read_link("/proc/self/exe", exe, sizeof exe);
	if (n <= 0 || n >= (long)sizeof exe - 1 || (!shell && !is(base(exe), "agentsh")))
		return;
	if (occupy_streams() < 0 || (is_terminal(0) && is_terminal(1)) || (!shell && has_terminal()))
		return;
	early.sock = shell ? open_shared() : open_named(name, envp);
	if (early.sock < 0)
		return;
	if (!shell) {
		exe[0] = 0; /* no shim */
		request(command, envp, none);
	} else if (!below_packager()) { /* the supervisor prepares itself while this looks on */
		request(argv, envp, envp);
	}
	if (!early.sent)
		close_file(early.sock);
}
#else
__asm__(".text\n.globl agentshentry\nagentshentry:\n"
#if defined(__x86_64__)
	"jmp _start\n"
#else
	"b _start\n"
#endif
);
#endif
