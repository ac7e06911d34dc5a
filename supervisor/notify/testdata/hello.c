/* Prints its arguments after the first, or as asked: nothing for "quiet", how
 * many for "count", the environment for "env". */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv, char **env)
{
	if (argc > 1 && !strcmp(argv[1], "quiet"))
		return 0;
	if (argc > 1 && !strcmp(argv[1], "count"))
		return printf("%d\n", argc) < 0;
	if (argc > 1 && !strcmp(argv[1], "env")) {
		for (; *env; env++)
			puts(*env);
		return 0;
	}
	for (int i = 1; i < argc; i++)
		printf("%s%s", argv[i], i + 1 < argc ? " " : "");
	puts(argc > 1 ? "" : "nothing");
	return 0;
}
