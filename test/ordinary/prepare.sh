#!/bin/bash
# Make the fixture project of each stack below the directory DIR.
#
#   prepare.sh DIR POLICIES
set -euo pipefail
mkdir -p "$1"
cd "$1"
mkdir shell env-file identity discovery python node go rust cargo java c ruby

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

# The home of a stack is STACK.home. Its git has an identity, its project none; or it has the policy.
git -c init.defaultBranch=main init -q identity
mkdir identity.home
printf '[user]\n\tname = Grace Hopper\n\temail = grace@example.org\n[core]\n\teditor = nosuch\n' >identity.home/.gitconfig
cp -r shell/say.sh discovery/
mkdir -p discovery.home/.config/agentsh
printf 'version: 1\nname: own\nextends: [%s/agent-sandbox.yaml]\n' "$2" >discovery.home/.config/agentsh/policy.yaml
git -c init.defaultBranch=main init -q discovery

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
cat >python/test_server.py <<'END'
import http.server
import threading
import unittest
import urllib.request


class Server(unittest.TestCase):
    def test_answers(self):
        for host in "127.0.0.1", "localhost":
            with http.server.HTTPServer((host, 0), http.server.SimpleHTTPRequestHandler) as s:
                threading.Thread(target=s.handle_request).start()
                url = "http://%s:%d/calc.py" % (host, s.server_port)
                self.assertIn(b"def add", urllib.request.urlopen(url).read())
END

echo '{"name": "app", "version": "1.0.0", "scripts": {"test": "node --test", "hello": "node hello.js"}}' >node/package.json
echo 'console.log("hello")' >node/hello.js
echo "require('node:test')('adds', () => require('node:assert').equal(1 + 2, 3))" >node/add.test.js
mkdir node/lib && echo '{"name": "lib", "version": "1.0.0", "bin": "main.js"}' >node/lib/package.json
printf '#!/usr/bin/env node\nconsole.log("lib", process.argv[2])\n' >node/lib/main.js && chmod +x node/lib/main.js

printf 'module example.org/app\n\ngo 1.21\n' >go/go.mod
printf 'package main\n\nfunc add(a, b int) int { return a + b }\n\nfunc main() { println(add(1, 2)) }\n' >go/main.go
printf 'package main\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {\n\tif add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n' >go/main_test.go

printf 'fn main() {\n    println!("{}", 1 + 2);\n}\n' >rust/main.rs
printf '#[test]\nfn adds() {\n    assert_eq!(1 + 2, 3);\n}\n' >rust/tests.rs
mkdir cargo/src cargo/tests
printf '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n' >cargo/Cargo.toml
printf 'pub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n' >cargo/src/lib.rs
printf 'fn main() {\n    println!("{}", app::add(1, 2));\n}\n' >cargo/src/main.rs
printf '#[test]\nfn adds() {\n    assert_eq!(app::add(1, 2), 3);\n}\n' >cargo/tests/add.rs

printf 'public class Main {\n    public static void main(String[] a) {\n        System.out.println(1 + 2);\n    }\n}\n' >java/Main.java

cat >java/pom.xml <<'END'
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.example</groupId>
  <artifactId>app</artifactId>
  <version>1</version>
</project>
END

printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' >c/hello.c
printf 'all: hello\ntest: hello\n\t./hello | grep -q hello\nclean:\n\trm -f hello\n' >c/Makefile

printf 'cmake_minimum_required(VERSION 3.10)\nproject(hello C)\nenable_testing()\nadd_executable(hello hello.c)\nadd_test(NAME runs COMMAND hello)\n' >c/CMakeLists.txt

printf 'def add(a, b) = a + b\n' >ruby/calc.rb
printf "require_relative 'calc'\nexit(add(1, 2) == 3)\n" >ruby/test_calc.rb
printf 'task(:default) { puts 3 }\n' >ruby/Rakefile
cat >ruby/test_mini.rb <<'END'
require 'minitest/autorun'
require_relative 'calc'
class AddTest < Minitest::Test
  def test_add = assert_equal(3, add(1, 2))
end
END
printf "gem 'rake'\ngem 'minitest'\n" >ruby/Gemfile
