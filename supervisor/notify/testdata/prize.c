/* What the attack runs: compiled with CODE 0 as the allowed program and 42 as
 * the denied one. */
int main(int argc, char **argv)
{
	if (argc > 1 && argv[1][0] == 'e')
		return 43;
	return CODE;
}
