#!/bin/bash
# Make the fixture project of each stack below the directory DIR.
#
#   prepare.sh DIR
set -euo pipefail
mkdir -p "$1"
cd "$1"
mkdir shell env-file python node go rust java c ruby

git -c init.defaultBranch=main init -q shell
cd shell
git config user.name Ada && git config user.email ada@example.org
mkdir dir 'dir with space'
printf 'b\na\nc\n' >letters && printf 'one\n' >dir/one && printf 'two\n' >'dir with space/two'
printf '{"name": "x", "n": [1, 2]}\n' >data.json
# shellcheck disable=SC2016 # the script expands
printf '#!/bin/sh\necho "$1"\n' >say.sh && chmod +x say.sh
git add . && git commit -q -m first
cd ..

echo 'SECRET=1' >env-file/.env
echo "require('node:test')('adds', () => require('node:assert').equal(1 + 2, 3))" >env-file/add.test.js

cat >python/calc.py <<'END'
def add(a, b):
    return a + b
END
cat >python/test_calc.py <<'END'
import unittest
from calc import add


class Add(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
END

echo '{"name": "app", "version": "1.0.0", "scripts": {"test": "node --test", "hello": "node hello.js"}}' >node/package.json
echo 'console.log("hello")' >node/hello.js
echo "require('node:test')('adds', () => require('node:assert').equal(1 + 2, 3))" >node/add.test.js
mkdir node/lib && echo '{"name": "lib", "version": "1.0.0"}' >node/lib/package.json

printf 'module example.org/app\n\ngo 1.21\n' >go/go.mod
printf 'package main\n\nfunc add(a, b int) int { return a + b }\n\nfunc main() { println(add(1, 2)) }\n' >go/main.go
printf 'package main\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n\tif add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n' >go/main_test.go

printf 'fn main() {\n    println!("{}", 1 + 2);\n}\n' >rust/main.rs
printf '#[test]\nfn adds() {\n    assert_eq!(1 + 2, 3);\n}\n' >rust/tests.rs

printf 'public class Main {\n    public static void main(String[] a) {\n        System.out.println(1 + 2);\n    }\n}\n' >java/Main.java

printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' >c/hello.c
printf 'all: hello\ntest: hello\n\t./hello | grep -q hello\nclean:\n\trm -f hello\n' >c/Makefile

printf 'def add(a, b) = a + b\n' >ruby/calc.rb
printf "require_relative 'calc'\nexit(add(1, 2) == 3)\n" >ruby/test_calc.rb
printf 'task(:default) { puts 3 }\n' >ruby/Rakefile
