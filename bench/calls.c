/* calls pwrite N | create N: small writes to one file, or N files of 100 bytes
 * made and removed, in the working directory. Prints the nanoseconds in all. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char data[100];

static int make(const char *name)
{
	int fd = open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	return fd < 0 || write(fd, data, sizeof data) != sizeof data || close(fd);
}

static int create(int n)
{
	char name[32];
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof name, "many%d", i);
		if (make(name))
			return 1;
	}
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof name, "many%d", i);
		if (unlink(name))
			return 1;
	}
	return 0;
}

static int writes(int n)
{
	int fd = open("small", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	if (fd < 0)
		return 1;
	for (int i = 0; i < n; i++)
		if (pwrite(fd, data, sizeof data, (off_t)(i % 1000) * 100) != sizeof data)
			return 1;
	return close(fd) || unlink("small");
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int n = atoi(argv[2]);
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	if (strcmp(argv[1], "pwrite") ? create(n) : writes(n))
		return 1;
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%lld\n", (b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec);
	return 0;
}
