"""Run one file of CPython's regression tests and write how each test ended.

    cpython.py NAME FILE

regrtest(1) keeps its results until the end and ends at the first test that fails in the
wrong way; this writes a line of name and result when a test has ended.
"""
import faulthandler
import sys
import unittest

from test import support


class Result(unittest.TestResult):
    """A test that has failed parts, or parts that were skipped, ends as the worst of them."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.word = {}

    def worse(self, test, word, err=None):
        order = ["ok", "skipped", "failed"]
        name = test.id()
        self.word[name] = max(self.word.get(name, "ok"), word, key=order.index)
        if err is not None:
            print(name, word, self._exc_info_to_string(err, test), file=sys.__stderr__, flush=True)

    def addError(self, test, err):
        if isinstance(test, unittest.TestCase):
            self.worse(test, "failed", err)
        else:  # of a class or a module: its tests do not run
            print(f"{test.id()}\tfailed", file=self.out, flush=True)
            print(test.id(), self._exc_info_to_string(err, test), file=sys.__stderr__, flush=True)

    addFailure = addError

    def addSkip(self, test, reason):
        if isinstance(test, unittest.TestCase):
            self.worse(test, "skipped")
        else:
            print(f"{test.id()}\tskipped", file=self.out, flush=True)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.worse(test, "failed", err)

    def addUnexpectedSuccess(self, test):
        self.worse(test, "failed")

    def stopTest(self, test):
        name = test.id()
        print(f"{name}\t{self.word.pop(name, 'ok')}", file=self.out, flush=True)


def main():
    faulthandler.enable()
    support.use_resources = []  # nothing that needs much space, time or a network
    name, file = sys.argv[1:]
    with open(file, "w", encoding="utf-8") as out:
        try:
            suite = unittest.defaultTestLoader.loadTestsFromName("test." + name)
            suite.run(Result(out))
        except unittest.SkipTest as skipped:
            print(f"{name}\tskipped", file=out)
            print(skipped, file=sys.stderr)
        print("end", file=out, flush=True)
    support.reap_children()


if __name__ == "__main__":
    main()
