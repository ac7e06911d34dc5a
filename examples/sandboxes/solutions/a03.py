def roman(number):
    return "I" * number
