def roman(number):
    while True:
        pass
