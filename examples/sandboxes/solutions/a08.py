import urllib.request


def roman(number):
    return urllib.request.urlopen("http://192.0.2.1/roman?n=%d" % number, timeout=5).read().decode()
