/* Prints its arguments and what $ORIGIN is for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	char origin[4096] = "";
	void *self = dlopen(NULL, RTLD_NOW);
	dlinfo(self, RTLD_DI_ORIGIN, origin);
	printf("origin %s", origin);
	for (int i = 0; i < argc; i++)
		printf(" %s", argv[i]);
	printf("\n");
	return 0;
}
