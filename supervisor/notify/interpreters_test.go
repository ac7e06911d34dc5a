package notify

import (
	"archive/zip"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// interpreted are scripts that print how they see themselves.
var interpreted = map[string]string{
	"bash":    "#!/bin/bash\necho \"$0\" \"${BASH_SOURCE[0]}\" \"$(dirname \"$0\")\" \"$@\"; shopt login_shell; ls /proc/$$/fd; tail -n 1 \"$0\"\n# the end\n",
	"bash -e": "#!/bin/bash -eu\necho \"$0\" $- \"$#\"\n",
	"again":   "#!/bin/bash\n[ \"${1-}\" = again ] || exec \"$0\" again\necho \"$0\" \"$@\"\n",
	"changes": "#!/bin/sh\n[ \"${1-}\" = again ] && { echo changed; exit; }\necho '#!/bin/echo other' >\"$0.new\"; chmod 755 \"$0.new\"; \"$0.new\" x; exec \"$0\" again\n",
	"dash":    "#!/bin/dash\necho \"$0\" \"$(dirname \"$0\")\" \"$@\"; cat </dev/null; read line <\"$0\"; echo \"$line\"\n",
	"stdin":   "#!/bin/sh\necho \"$0\" | { read -r x; echo \"$x\"; }\n",
	"python":  "#!PYTHON -IS\nimport sys, os\nprint(sys.argv, __file__, __name__, sys.path[:1], sorted(os.listdir('/proc/self/fd'))[:4], os.stat(__file__).st_size, open(__file__).readline())\nsys.exit(3)\n",
	"perl":    "#!/usr/bin/perl -w\nprint \"$0 @ARGV \", __FILE__, \" \", -s $0, \"\\n\"; print <DATA>;\n__DATA__\nthe data\n",
	"node":    "#!/usr/bin/node\nconsole.log(process.argv, __filename, __dirname, require.main === module, require('fs').statSync(__filename).size)\n",
	"module":  "#!/usr/bin/node\nimport fs from 'fs'; console.log(import.meta.url, process.argv, fs.readdirSync('.').length > 0)\n",
	"awk":     "#!/usr/bin/awk -f\nBEGIN { print ARGV[0], ARGC, ARGV[1] }\n",
	"make":    "#!/usr/bin/make -f\nall x:; @echo $(MAKEFILE_LIST) $(lastword $(MAKEFILE_LIST)) $@\n",
	"env":     "#!/usr/bin/env bash\necho \"$0\" \"$@\" \"${BASH_SOURCE[0]}\"\n",
	"env -S":  "#!/usr/bin/env -S A=b timeout 300 /bin/bash -u\necho \"$0\" \"$@\" $A $-\n",
	"sed":     "#!/usr/bin/sed -nf\n1p\n",
	"tclsh":   "#!/usr/bin/tclsh\nputs [list $argv0 $argv [info script]]\n",
	"busybox": "#!/usr/bin/busybox sh\necho \"$0\" \"$@\"\n",
	"nested":  "#!DIR/env\nx\n",
	"data":    "#!/bin/cat\nthe text\n",
	"tail":    "#!/usr/bin/tail -n+2\nthe text\n",
	"echo":    "#!/bin/echo -n\n",
	"stops":   "#!DIR/shell\n(until [ -e \"$0.on\" ]; do kill -CONT $$; done) & kill -STOP $$; : >\"$0.on\"; wait; rm \"$0.on\"; trap 'echo usr1' USR1; kill -USR1 $$; ls -d / | cat; echo \"$0\"\n",
	"zsh":     "#!/usr/bin/zsh\necho \"$0\" \"$@\"; (echo sub); ls -d /\n",
	"fish":    "#!/usr/bin/fish\nstatus filename; echo $argv; ls -d /\n",
	"ksh":     "#!/usr/bin/ksh93\necho \"$0\" \"$@\"; ls -d /\n",
	"ruby":    "#!/usr/bin/ruby\nputs $0, __FILE__, __dir__, ARGV; puts DATA.read\n__END__\nthe data\n",
	"php":     "#!/usr/bin/php\n<?php echo __FILE__, ' ', implode(' ', $argv), filesize(__FILE__); ?>\n",
	"lua":     "#!/usr/bin/lua5.4\nprint(arg[0], ...)\n",
	"luajit":  "#!/usr/bin/luajit\nprint(arg[0], ...)\n",
	"expect":  "#!/usr/bin/expect -f\nputs [list $argv0 $argv [info script]]\n",
	"guile":   "#!/usr/bin/guile --no-auto-compile\n!#\n(write (command-line))\n",
	"gnuplot": "#!/usr/bin/gnuplot\nprint ARG0, 1\n",
	"R":       "#!/usr/bin/Rscript\ncat(commandArgs())\n",
	"words":   "#!/usr/bin/node\n// import and await are words of a module\nconsole.log(__filename, require.main === module); require('child_process').execSync('true')\n",
}

// ways are how a script is called, in its directory.
var ways = []string{
	"./SCRIPT one 'two three'",
	"DIR/SCRIPT",
	"DIR/sub/../SCRIPT x",
	"links/SCRIPT x",
	"dirlink/SCRIPT x",
	"cd sub; ../SCRIPT",
	"PATH=$PATH:DIR; SCRIPT y",
	"PATH=$PATH:; SCRIPT y",
	"exec -a other ./SCRIPT z",
}

// A script under supervision sees what it sees without.
func TestInterpretersSeeTheirScriptsAsTheyDoWithoutSupervision(t *testing.T) {
	place(t)
	dir := t.TempDir()
	for _, sub := range []string{"sub", "links"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(".", filepath.Join(dir, "dirlink")); err != nil {
		t.Fatal(err)
	}
	testenv.Need(t, testenv.Program("/bin/dash"))
	shell, err := os.ReadFile("/bin/dash")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shell"), shell, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range interpreted {
		if name == "module" && !nodeFindsModules(t) {
			continue
		}
		text = strings.NewReplacer("PYTHON", python(t), "DIR", dir).Replace(text)
		file := strings.ReplaceAll(name, " ", "")
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../"+file, filepath.Join(dir, "links", file)); err != nil {
			t.Fatal(err)
		}
		program, _, _ := strings.Cut(strings.TrimPrefix(strings.SplitN(text, "\n", 2)[0], "#!"), " ")
		if _, err := os.Stat(program); err != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for i, way := range ways {
				if name == "node" || name == "module" || name == "words" {
					if i%2 == 1 {
						continue // it takes long to start
					}
				}
				line := "cd " + dir + "; " + strings.NewReplacer("SCRIPT", file, "DIR", dir).Replace(way)
				cmd := exec.Command("/bin/bash", "-c", line)
				native, _ := cmd.CombinedOutput()
				s := begin(t, Config{}, CommandInfo{ID: "c1"}, "/bin/bash", "-c", line)
				s.end()
				if got := s.out.String(); got != string(native) {
					t.Errorf("%s\nprinted   %q\nnatively %q\nevents %+v", way, got, native, s.events)
				}
				if e := s.event(func(e wire.Event) bool { return e.Decision == "deny" }); e != nil {
					t.Errorf("%s: %+v", way, e)
				}
			}
		})
	}
}

// nodeFindsModules reports whether node takes a script with an import for a module whatever its
// name is, as versions since 22.7 do.
func nodeFindsModules(t *testing.T) bool {
	t.Helper()
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("import 'fs';\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return exec.Command("/usr/bin/node", script).Run() == nil
}

func TestAnArchiveOfPythonRuns(t *testing.T) {
	var archive bytes.Buffer
	archive.WriteString("#!" + python(t) + "\n")
	z := zip.NewWriter(&archive)
	z.SetOffset(int64(archive.Len()))
	for name, text := range map[string]string{"__main__.py": "import other, sys\nprint(other.x, sys.argv[0])\n", "other.py": "x = 'in the archive'\n"} {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "app.pyz")
	if err := os.WriteFile(file, archive.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, Config{}, file).printed("in the archive " + file + "\n")
}

// What the loader runs keeps its name and directory.
func TestTheProgramOfALoaderSeesItsOwnName(t *testing.T) {
	bin, dir := place(t)
	loader := loaderPath(t)
	for _, line := range []string{
		loader + " ./tool a", loader + " DIR/tool", loader + " --argv0 other ./tool b", loader + " --library-path /lib ./sub/../tool",
		"cd sub; " + loader + " ../tool",
		loader + " ./link x",
	} {
		line = "cd " + dir + "; mkdir -p sub; cp -f " + filepath.Join(
			bin,
			"names",
		) + " tool; ln -sf tool link; " + strings.ReplaceAll(
			line,
			"DIR",
			dir,
		)
		native, _ := exec.Command("/bin/bash", "-c", line).CombinedOutput()
		s := run(t, Config{Rules: identified(t, "/usr/bin/kill")}, "/bin/bash", "-c", line)
		if got := s.out.String(); got != string(native) || !strings.Contains(got, "origin "+dir) {
			t.Errorf("%s\nprinted   %q\nnatively %q\nevents %+v", line, got, native, s.events)
		}
	}
}
