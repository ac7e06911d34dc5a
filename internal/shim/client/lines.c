/* The lines of a command's output that tell of a refusal. A program that prints the answer
 * of a refused request has shown the reason itself. The rules are those of
 * internal/foreground/shown.go. */
#define _GNU_SOURCE
#include "client.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "agentsh: denied: "
enum { PREFIX_LEN = sizeof PREFIX - 1, MAX_LINE = 4096, MAX_LINES = 1000 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static char *known[MAX_LINES];
static size_t count;

static int find(const char *line)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(known[i], line) == 0)
			return 1;
	return 0;
}

static void add(const char *line, size_t n)
{
	if (memchr(line, 0, n))
		return; /* no reason has a NUL */
	char *copy = strndup(line, n);
	if (!copy)
		return;
	pthread_mutex_lock(&mu);
	if (find(copy)) {
		free(copy);
	} else {
		if (count == MAX_LINES)
			for (; count > 0; count--)
				free(known[count - 1]);
		known[count++] = copy;
	}
	pthread_mutex_unlock(&mu);
}

static void begin(struct lines *l)
{
	l->len = 0;
	l->skip = l->back = 0;
}

/* Takes a part of a line. */
static void read_part(struct lines *l, const char *p, size_t n)
{
	if (n == 0)
		return;
	if (l->back)
		begin(l);
	l->back = p[n - 1] == '\r';
	const char *last = memrchr(p, '\r', n - 1);
	if (last) {
		l->len = 0;
		l->skip = 0;
		n -= (size_t)(last + 1 - p);
		p = last + 1;
	}
	if (l->skip)
		return;
	size_t room = MAX_LINE + 1 - l->len, taken = n < room ? n : room;
	memcpy(l->line + l->len, p, taken);
	l->len += taken;
	size_t prefix = l->len < PREFIX_LEN ? l->len : PREFIX_LEN;
	l->skip = l->len > MAX_LINE || memcmp(l->line, PREFIX, prefix) != 0;
}

void lines_read(struct lines *l, const char *p, size_t n)
{
	while (n > 0) {
		const char *end = memchr(p, '\n', n);
		size_t part = end ? (size_t)(end - p) : n;
		read_part(l, p, part);
		if (!end)
			return;
		if (!l->skip && l->len >= PREFIX_LEN)
			add(l->line, l->len - (l->line[l->len - 1] == '\r'));
		begin(l);
		p += part + 1;
		n -= part + 1;
	}
}

int lines_shown(const char *line, size_t n)
{
	char *copy = strndup(line, n);
	pthread_mutex_lock(&mu);
	int shown = copy && find(copy);
	pthread_mutex_unlock(&mu);
	free(copy);
	return shown;
}
