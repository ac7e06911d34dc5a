/* What stands in for the C library before it starts: system calls, strings and files. */
#ifndef AGENTSH_BARE_H
#define AGENTSH_BARE_H

#include <asm/unistd.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>

#if defined(__x86_64__)
static long call(long n, long a, long b, long c, long d, long e)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = 0;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static long call(long n, long a, long b, long c, long d, long e)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = 0;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#endif

/* The empty asm keeps the compiler from making a call of the library's function out of a loop. */
#define PLAIN_LOOP __asm__ volatile("")

static size_t length(const char *s)
{
	size_t n = 0;
	for (; s[n]; n++)
		PLAIN_LOOP;
	return n;
}

static void copy(void *to, const void *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		PLAIN_LOOP;
		((char *)to)[i] = ((const char *)from)[i];
	}
}

static int is(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		PLAIN_LOOP;
	return *a == *b;
}

static int begins(const char *s, const char *with)
{
	for (; *with && *s == *with; s++, with++)
		PLAIN_LOOP;
	return !*with;
}

/* Appends to a path that has room; its new end. */
static char *add(char *end, const char *s)
{
	size_t n = length(s);
	copy(end, s, n + 1);
	return end + n;
}

static char *add_number(char *end, unsigned long v)
{
	char digits[24];
	size_t i = sizeof digits - 1;
	digits[i] = 0;
	do
		digits[--i] = (char)('0' + v % 10);
	while (v /= 10);
	return add(end, digits + i);
}

static int open_file(const char *path, int flags) { return (int)call(__NR_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0, 0); }
static void close_file(int fd) { call(__NR_close, fd, 0, 0, 0, 0); }
static long read_file(int fd, void *buf, size_t n) { return call(__NR_read, fd, (long)buf, (long)n, 0, 0); }
static long read_link(const char *path, char *buf, size_t n) { return call(__NR_readlinkat, AT_FDCWD, (long)path, (long)buf, (long)n, 0); }
static long status(int fd, const char *path, struct stat *st, int flags) { return call(__NR_newfstatat, fd, (long)path, (long)st, flags, 0); }

#endif
