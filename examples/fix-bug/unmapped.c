/* Lets programs of a kernel without mapping of FUSE files work with such files: gVisor.
 *
 *   cc -O2 -fPIC -shared -o /usr/local/lib/unmapped.so unmapped.c
 *
 * A file that the kernel cannot map is read into memory instead, where the mapping is private
 * or cannot be written. env_inject: {LD_PRELOAD: /usr/local/lib/unmapped.so} in
 * /etc/agentsh/config.yaml gives it to every command. A program without a C library, such as
 * one of Go, does not use it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *map(void *at, size_t size, int prot, int flags, int fd, off_t from)
{
	return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, from);
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t from)
{
	void *p = map(at, size, prot, flags, fd, from);
	int shared = (flags & MAP_TYPE) != MAP_PRIVATE;
	if (p != MAP_FAILED || errno != ENOSYS || (shared && (prot & PROT_WRITE)))
		return p;
	flags = (flags & ~MAP_TYPE) | MAP_PRIVATE | MAP_ANONYMOUS;
	p = map(at, size, PROT_READ | PROT_WRITE, flags, -1, 0);
	for (size_t got = 0; p != MAP_FAILED && got < size;) {
		ssize_t n = pread(fd, (char *)p + got, size - got, from + (off_t)got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			int error = errno;
			munmap(p, size);
			errno = error;
			return MAP_FAILED;
		}
		if (n == 0)
			break;
		got += (size_t)n;
	}
	if (p != MAP_FAILED)
		mprotect(p, size, prot);
	return p;
}

void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t from) __attribute__((alias("mmap")));
