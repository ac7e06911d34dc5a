import sys

from roman import roman

for number, want in [(1, "I"), (4, "IV"), (9, "IX"), (14, "XIV"), (40, "XL"), (90, "XC"), (400, "CD"), (1994, "MCMXCIV"), (3999, "MMMCMXCIX")]:
    got = roman(number)
    if got != want:
        sys.exit("roman(%d) is %s, not %s" % (number, got, want))
