ONES = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
TENS = ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"]
HUNDREDS = ["", "C", "CC", "CCC", "CD", "D", "DC", "DCC", "DCCC", "CM"]


def roman(number):
    return "M" * (number // 1000) + HUNDREDS[number // 100 % 10] + TENS[number // 10 % 10] + ONES[number % 10]
