/* The session init: process 1 of a session's pid namespace. See init.c. */
#ifndef AGENTSH_INIT_H
#define AGENTSH_INIT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Descriptors the init is started with. */
enum { FD_CONTROL = 3, FD_START = 4 };

/* Messages, one byte each. Keep in step with protocol.go. */
enum {
	/* init to supervisor, on the control socket */
	MSG_DIED = 'E',     /* u32 errno, text */
	MSG_FUSE = 'F',     /* tag; one descriptor */
	MSG_SOCKET = 'N',   /* tag; one descriptor */
	MSG_MISSING = 'W',  /* u32 errno, tag of an optional operation that failed */
	MSG_LISTENER = 'L', /* one descriptor */
	MSG_TRACED = 'V',   /* u32 errno of the listener; 0: none was asked for */
	MSG_UNJUDGED = 'U', /* u32 errno of the filter: 0: loaded */
	MSG_BESIDE = 'B',   /* commands are traced; one byte: the kernel reports another listener */
	MSG_PROBES = 'P',   /* {u32 errno, u8 length, name}... */
	MSG_ROOT = 'O',   /* the new root is complete, and nothing is mounted any more */
	MSG_READY = 'R',
	MSG_EXIT = 'X',  /* struct exit_msg */
	MSG_TREE = 'T',  /* u64 serial, u32 pid... */
	MSG_EMPTY = 'Z', /* u64 serial */
	MSG_MARKED = 'M', /* u64 serial: the child carries its mark */
	MSG_PTY = 'Y',   /* u32 errno; two descriptors when 0 */
	/* supervisor to init, on the control socket */
	MSG_SETUP = 'S',  /* one descriptor: the setup */
	MSG_SERVED = 'f', /* the FUSE mount just announced has a server */
	MSG_FILTER = 'b', /* one descriptor: the filter of traced commands, after MSG_BESIDE */
	MSG_KILL = 'K',   /* struct kill_msg */
	MSG_OPENPTY = 'y',
	/* supervisor to init, on the start socket */
	MSG_COMMAND = 'C', /* u64 serial; five descriptors */
	/* a command's own socket */
	MSG_STARTED = 's',
	MSG_GO = 'g',
	MSG_FAILED = 'e', /* u32 errno, text */
};

struct kill_msg {
	uint8_t type, whole, pad[2];
	uint32_t sig;
	uint64_t serial;
};

struct exit_msg {
	uint8_t type, pad[3];
	uint32_t status;
	uint64_t serial, user_us, system_us, maxrss_kb;
};

/* Hard S.tag_limit of command n is S.tag_base + n: the mark of its processes.
   A session without namespaces has a base of its own above TAG_BASE. */
#define TAG_BASE (1ULL << 62)

/* The numbers of the init's threads in its pid namespace, the opener between them.
   No command has one of them. */
#define LAST_INIT_THREAD 3

enum { MAX_COMMANDS = 1024, MAX_SPEC = 4 << 20, MAX_TEXT = 8192, MAX_ITEMS = 65536 };

/* A checked reader. After the first error every read returns zero, and bad is set. */
struct reader {
	const uint8_t *p, *end;
	int bad;
};

uint32_t read_u32(struct reader *r);
uint64_t read_u64(struct reader *r);
/* A string without an inner NUL, NUL-terminated in place. "" when bad. */
const char *read_str(struct reader *r);
const uint8_t *read_bytes(struct reader *r, uint32_t *len);
/* Maps a specification and checks its frame. 0, or an errno. */
int map_spec(int fd, struct reader *r);

/* Executes a program that is no part of a session. See outside.c. */
__attribute__((noreturn)) void start_outside(void);

/* Ends the init with a message that names the step and the object. */
__attribute__((noreturn)) void die(int err, const char *step, const char *object);
/* Sends a message with up to two descriptors; -1 and errno when it cannot. */
int send_msg(int sock, const void *data, size_t len, const int *fds, int nfds);
/* Receives a message; the number of descriptors goes to *nfds. Length, 0 at
   end of file, or -1. Descriptors beyond max are closed. */
ssize_t recv_msg(int sock, void *data, size_t len, int *fds, int max, int *nfds);

/* The state the two threads share; mu guards the table. */
struct command {
	uint64_t serial; /* 0: free */
	pid_t pid;
	uint8_t marked, exited, reported, killing;
	uint32_t found; /* of the last scan */
};

struct filter {
	const uint8_t *data;
	uint32_t len;
};

struct init_state {
	pthread_mutex_t mu;
	struct command commands[MAX_COMMANDS];
	int proc;     /* /proc of this pid namespace, without hidepid */
	int root;     /* the new root while it is built, then -1 */
	int dumpable; /* commands become dumpable before their execve */
	int bounded;  /* the bounding set is empty: no capability can come back */
	int no_namespaces; /* process 1 is not the init */
	int interruptible; /* load the filter without WAIT_KILLABLE_RECV */
	uint64_t tag_base;
	int tag_limit; /* RLIMIT_RTTIME, or RLIMIT_RSS where that cannot be set */
	/* set by the setup for the forking thread */
	struct filter filter, trace_filter; /* without data: none */
	int traced; /* each command loads trace_filter; the supervisor traces it */
	int unjudged; /* there is no listener: filter only refuses */
	int unfiltered; /* errno of that filter, which then is not loaded */
	int beside; /* the supervisor sends trace_filter when commands are traced */
	int prober[2]; /* forking thread to main thread and back */
	int forked;    /* eventfd: the forking thread has forked */
	int listener, listener_errno;
	int layer; /* of Landlock, for commands alone; -1: none */
	const char *probes[64];
	uint32_t nprobes;
};

extern struct init_state S;

/* Gives a supervisor of root its own user namespace, if it lacks CAP_SYS_ADMIN. */
void enter_user_namespace(void);
void run_setup(struct reader *r);
void setup_mount_op(uint32_t op, struct reader *r);
void bring_up_loopback(void);
void make_socket(struct reader *r);
void send_netlink(struct reader *r);
void open_scan_proc(void);
void pivot(void);
/* Sets attributes of the mount at a target, and of those below it, without
   mount_setattr(2). */
void remount(const char *target, uint64_t attrs, int recursive, int (*open_target)(const char *));
void drop_privileges(struct reader *r);
void restrict_landlock(struct reader *r);
/* Allows access beneath a path, if there is anything. */
void add_path_rule(int ruleset, uint64_t access, const char *path);
void start_opener(struct reader *r);
/* Loads the filter with a listener: the listener, or -1 and errno. */
int load_filter(void);
int knows_listener_flags(void);
/* Tries to load a filter with a listener that names no call, for good: 0 or an errno. */
/* Loads the filter without a listener; -1 and errno. */
int load_refusals(void);
/* Loads the filter of a traced command; -1 and errno. */
int load_trace_filter(void);
void run_probes(void);
void start_forking_thread(void);
void run_loop(void);
int scan(uint64_t only, int sig);
__attribute__((noreturn)) void run_command(int fds[5]);

enum { LANDLOCK_READ_FILE = 1 << 2 };

/* Operations of a setup. Keep in step with protocol.go. */
enum {
	OP_ROOT = 1, /* u64 size */
	OP_DIR,      /* target, u32 mode */
	OP_FILE,     /* target, u32 mode, bytes */
	OP_SYMLINK,  /* target, text */
	OP_BIND,     /* source, target, u64 attributes, u32 flags */
	OP_FS,       /* type, target, u64 attributes, tag, u32 n, n options */
	OP_ATTR,     /* target, u64 attributes, u32 flags */
	OP_MASK,     /* target */
	OP_SOCKET,   /* tag, u32 family, u32 type, u32 port or protocol, u32 flags */
	OP_NETLINK,  /* tag, u32 protocol, u32 acknowledgements, u32 flags, bytes */
	OP_LOOPBACK,
	OP_HOSTNAME, /* text */
	OP_PIVOT,
	OP_RLIMIT,   /* u32 resource, u64 soft, u64 hard */
	OP_CREDS,    /* u32 uid, u32 gid, u32 n, n gids, u32 flags */
	OP_LANDLOCK, /* u64 fs, u64 net, u64 scope, u32 n, n {u64 access, path} */
	OP_FILTER,   /* bytes */
	OP_PROBE,    /* path */
	OP_END,      /* u32 flags */
	OP_NO_NAMESPACES, /* u64 tag base; the first operation or none */
	OP_OPENER,   /* u32 n, n paths beneath which commands open files themselves */
	OP_TRACE_FILTER, /* bytes: for commands that are traced, if there is no listener */
};

/* BENEATH: the source is in the new root, not in the old one */
/* AFTER: skipped if the operation of its kind before it failed */
enum { FLAG_RECURSIVE = 1, FLAG_OPTIONAL = 2, FLAG_BENEATH = 4, FLAG_AFTER = 8 };
/* KEEP: the user has no privilege, so no securebits and no bounding set are locked */
enum { CREDS_SETGROUPS = 1, CREDS_SETIDS = 2, CREDS_KEEP = 4 };
enum { END_DUMPABLE = 1, END_INTERRUPTIBLE = 2, END_BESIDE = 4, END_UNJUDGED = 8, END_TAG_RSS = 16 };

#endif
