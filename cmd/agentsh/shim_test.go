package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// image is a root with the machine's bash and dash, a few programs and a policy.
const image = `set -eu
root=$1; agentsh=$2
mkdir -p "$root"/usr/bin "$root"/usr/lib64 "$root"/etc "$root"/tmp "$root"/proc "$root"/dev "$root"/work
mkdir -p -m 1777 "$root"/var/tmp; chmod 1777 "$root"/var/tmp
for link in bin lib lib64; do mkdir -p "$root/usr/$link"; ln -s "usr/$link" "$root/$link"; done
for program in bash dash env cat id readlink mkfifo setpriv git; do
	cp /usr/bin/$program "$root/usr/bin/"
	for library in $(ldd /usr/bin/$program | grep -o '/[^ ]*'); do
		mkdir -p "$root/usr$(dirname "${library#/usr}")"
		cp -L "$library" "$root/usr${library#/usr}"
	done
done
ln -s dash "$root/usr/bin/sh"
cp "$agentsh" "$root/usr/bin/agentsh"
cp "$root/usr/bin/dash" "$root/usr/bin/dpkg"; cp "$root/usr/bin/dash" "$root/work/dpkg"; mkdir "$root/work/sub"
printf '#!/bin/sh\n{ echo >/etc/installed; } 2>/dev/null && echo installed || { echo not installed; exit 1; }\n' >"$root/work/postinst"
chmod 755 "$root/work/postinst"
printf '#!/bin/bash\nread -r line; echo "script $* $line"; exit 3\n' >"$root/work/script"
chmod 755 "$root/work/script"
cat >"$root/etc/policy.yaml" <<'EOF'
version: 1
name: image
command_rules:
  - {name: no-id, commands: [id], decision: deny, message: not here}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: work, paths: ['${WORKSPACE}', '${WORKSPACE}/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
EOF
`

// inImage starts programs of the image as a platform would: in its root and
// nothing else, in a mount namespace of its own.
const inImage = `set -e
mount --make-rprivate /
mount --bind "$1" "$1"; mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"
exec 2>&1
cd "$1/work"
root=$1; shift
exec chroot "$root" "$@"`

// runInImage runs a program of an image and returns its output and exit code.
func runInImage(t *testing.T, root, stdin string, argv ...string) (string, int) {
	t.Helper()
	cmd := exec.Command("unshare", append([]string{"-m", "bash", "-c", inImage, "bash", root}, argv...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // directories of this machine are not in the image
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// shimmedImage is an image whose shells are shims, and its root.
func shimmedImage(t *testing.T) string {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, agentsh := filepath.Join(dir, "root"), filepath.Join(dir, "agentsh")
	for _, cmd := range []*exec.Cmd{
		exec.Command("cp", testenv.Agentsh(t), agentsh), exec.Command("bash", "-c", image, "bash", root, agentsh),
		exec.Command(agentsh, "shim", "install", "--root", root, "--policy", filepath.Join(root, "etc/policy.yaml")),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd.Path, err, out)
		}
	}
	config := filepath.Join(root, "etc/agentsh/config.yaml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, append(text, "sandbox: {workspace: /work}\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestTheShellsOfAnImageAreConfined(t *testing.T) {
	root := shimmedImage(t)
	tests := []struct {
		name, stdin string
		argv        []string
		want        string
		code        int
	}{
		{"sh -c with arguments", "", []string{"/bin/sh", "-c", "echo $0 $1; exit 7", "zero", "one"}, "zero one\n", 7},
		{"a denied program", "", []string{"/bin/sh", "-c", "id"}, "agentsh: denied: id (rule no-id", 126},
		{"standard input is a script", "echo from stdin; exit 4", []string{"/bin/bash"}, "from stdin\n", 4},
		{"a script by its first line", "word\n", []string{"/work/script", "a"}, "script a word\n", 3},
		{
			"shells inside are themselves",
			"",
			[]string{
				"/bin/sh",
				"-c",
				"bash -c 'readlink /proc/$$/exe; sh -c \"readlink /proc/\\$\\$/exe\"; [ ! -e /usr/lib/agentsh/shells ] && echo hidden'",
			},
			"/usr/bin/bash\n/usr/bin/sh\nhidden\n",
			0,
		},
		{
			"a login shell",
			"",
			[]string{"/usr/bin/env", "-i", "/bin/bash", "-lc", "shopt -q login_shell && echo $0 is login"},
			"/bin/bash is login\n",
			0,
		},
		{"the session's home", "", []string{"/usr/bin/env", "HOME=/root", "/bin/sh", "-c", "echo home $HOME"}, "home /home/sandbox\n", 0},
		{"a home in the workspace", "", []string{"/usr/bin/env", "HOME=/work", "/bin/sh", "-c", "cd; pwd"}, "/work\n", 0},
		{
			"a directory outside the workspace",
			"",
			[]string{"/usr/bin/env", "-C", "/usr", "/bin/sh", "-c", "pwd"},
			"agentsh: note: /usr is not in the workspace /work: the shell starts in /work\n/work\n",
			0,
		},
		{"a directory of the workspace", "", []string{"/usr/bin/env", "-C", "/work/sub", "/bin/sh", "-c", "pwd"}, "/work/sub\n", 0},
		{"the script of a package", "", []string{"/usr/bin/dpkg", "-c", "/work/postinst; exit $?"}, "installed\n", 0},
		{"a shell of a package's script", "", []string{"/usr/bin/dpkg", "-c", "/bin/bash -c '/bin/sh -c /work/postinst; exit $?'; exit $?"},
			"installed\n", 0},
		{"what another program of that name starts", "", []string{"/work/dpkg", "-c", "/bin/sh -c /work/postinst; exit $?"},
			"not installed\n", 1},
		{
			"the environment is filtered",
			"",
			[]string{"/usr/bin/env", "-i", "A=b", "LD_PRELOAD=/x", "AGENTSH_Z=1", "/bin/sh", "-c", "echo $A-$LD_PRELOAD-$AGENTSH_Z-"},
			"b---\n",
			0,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, code := runInImage(t, root, tt.stdin, tt.argv...); code != tt.code || !strings.Contains(got, tt.want) {
				t.Errorf("exit %d\n%s", code, got)
			}
		})
	}
	for _, name := range []string{"etc/agentsh/config.yaml", "etc/agentsh/policy.yaml", "usr/lib/agentsh/shells/usr-bin-bash",
		"usr/lib/agentsh/shells/manifest.json"} {
		t.Run("nothing runs without "+name, func(t *testing.T) {
			at := filepath.Join(root, name)
			if err := os.Rename(at, at+".away"); err != nil {
				t.Fatal(err)
			}
			for _, argv := range [][]string{{"/bin/bash", "-c", "echo $((6*7))"}, {"/usr/bin/env", "AGENTSH_CONFIG=/etc/policy.yaml",
				"AGENTSH_BYPASS=1", "/bin/bash", "-c", "echo $((6*7))"}} {
				if got, code := runInImage(t, root, "", argv...); code != 125 || strings.Contains(got, "42") {
					t.Errorf("%q: exit %d\n%s", argv, code, got)
				}
			}
			if err := os.Rename(at+".away", at); err != nil {
				t.Fatal(err)
			}
		})
	}
	shareASession(t, root)
}

// escapes is a script that says how it is held: the refusal of id, whose status
// is 126, and the real shell's own name.
const escapes = `id; echo held $? $((6*7))`

// TestNothingMakesAShimAnUnconfinedShell starts the shells of an image in every
// way that a platform or a caller inside the image has.
func TestNothingMakesAShimAnUnconfinedShell(t *testing.T) {
	root := shimmedImage(t)
	const startup = "echo startup ran; id; echo startup held $?\n"
	for name, text := range map[string]string{"startup": startup, "escapes": escapes + "\n"} {
		if err := os.WriteFile(filepath.Join(root, "work", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := func(argv ...string) []string { return append([]string{"/usr/bin/env"}, argv...) }
	named := func(argv0 string, argv ...string) []string {
		// Only a shell of the image could set argv[0], and those are shims.
		return append([]string{"/usr/lib/agentsh/start", argv0}, argv...)
	}
	start := exec.Command("gcc", "-static", "-o", filepath.Join(root, "usr/lib/agentsh/start"), "-xc", "-")
	start.Stdin = strings.NewReader(`#include <unistd.h>
int main(int c, char **v) { execv(v[2], (char *[]){v[1], v[3], v[4], NULL}); return 99; }`)
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, code := runInImage(t, root, "", named("", "/bin/bash", "-c", escapes)...); code != 125 || strings.Contains(got, "42") {
		t.Errorf("an empty name: exit %d\n%s", code, got)
	}
	tests := []struct {
		name, stdin string
		argv        []string
	}{
		{"no variable at all", "", env("-i", "/bin/sh", "-c", escapes)},
		{"BASH_ENV", "", env("BASH_ENV=/work/startup", "/bin/bash", "-c", escapes)},
		{"ENV", "", env("ENV=/work/startup", "/bin/sh", "-i", "-c", escapes)},
		{
			"SHELLOPTS and BASHOPTS",
			"",
			env("SHELLOPTS=privileged:posix", "BASHOPTS=expand_aliases", "BASH_FUNC_id%%=() { echo forged; }", "/bin/bash", "-c", escapes),
		},
		{"a loader's variables", "", env("LD_PRELOAD=/work/startup", "LD_LIBRARY_PATH=/work", "/bin/bash", "-c", escapes)},
		{
			"variables of agentsh",
			"",
			env(
				"AGENTSH_CONFIG=/work/none",
				"AGENTSH_POLICY=/work/none",
				"AGENTSH_SESSION=one",
				"AGENTSH_SHIM=0",
				"AGENTSH_IN_SESSION=1",
				"AGENTSH_BYPASS=1",
				"/bin/sh",
				"-c",
				escapes,
			),
		},
		{"a directory for what is temporary, in the workspace", "", env("TMPDIR=/work", "/bin/sh", "-c", escapes)},
		{"directories of others", "", env("HOME=/work", "XDG_STATE_HOME=/work", "XDG_CONFIG_HOME=/work", "/bin/sh", "-c", escapes)},
		{"variables of Go", "", env("GODEBUG=execerrdot=0", "GOTRACEBACK=crash", "GOGC=1", "GOMAXPROCS=1", "/bin/sh", "-c", escapes)},
		{"a login sh", "", named("-sh", "/bin/sh", "-c", escapes)},
		{"a login bash", "", named("-bash", "/bin/bash", "-c", escapes)},
		{"sh by its name alone", "", named("sh", "/bin/sh", "-c", escapes)},
		{"a restricted shell's name", "", named("rbash", "/bin/bash", "-c", escapes)},
		{"the name of agentsh", "", named("agentsh", "/bin/bash", "-c", escapes)},
		{"another name", "", named("python3", "/usr/bin/sh", "-c", escapes)},
		{"a script on standard input", escapes + "\n", []string{"/bin/sh"}},
		{"-s with arguments", escapes + "\n", []string{"/bin/bash", "-s", "a"}},
		{"nested shells", "", []string{"/bin/sh", "-c", "/bin/bash -c '/bin/sh /work/escapes'"}},
		{"a nested shell without variables", "", []string{"/bin/sh", "-c", `env -i /bin/bash -c '` + escapes + `'`}},
		{"a nested shell by another name", "", []string{"/bin/bash", "-c", `(exec -a -sh /bin/sh -c '` + escapes + `')`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := runInImage(t, root, tt.stdin, tt.argv...)
			if !strings.Contains(got, "agentsh: denied: id (rule no-id") || !strings.Contains(got, "held 126 42\n") ||
				strings.Contains(got, "uid=") ||
				strings.Contains(got, "startup held 0") {
				t.Errorf("not held:\n%s", got)
			}
		})
	}
}

// TestAShimThatCannotOpenASessionRunsNothing takes away or spoils what it needs,
// with every variable that a caller might hope to help with.
func TestAShimThatCannotOpenASessionRunsNothing(t *testing.T) {
	root := shimmedImage(t)
	spoil := map[string]func(t *testing.T, at string){
		"missing": func(t *testing.T, at string) {
			if err := os.Remove(at); err != nil {
				t.Fatal(err)
			}
		},
		"empty": func(t *testing.T, at string) {
			if err := os.WriteFile(at, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"unreadable": func(t *testing.T, at string) { // a directory: root reads every file
			if err := os.Remove(at); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(at, 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"garbage": func(t *testing.T, at string) {
			if err := os.WriteFile(at, []byte("\x00{{: policy"), 0o644); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, name := range []string{"etc/agentsh/config.yaml", "etc/agentsh/policy.yaml", "usr/lib/agentsh/shells/manifest.json"} {
		for how, f := range spoil {
			t.Run(how+" "+name, func(t *testing.T) {
				at := filepath.Join(root, name)
				kept, err := os.ReadFile(at)
				if err != nil {
					t.Fatal(err)
				}
				f(t, at)
				for _, argv := range [][]string{
					{"/bin/sh", "-c", "echo $((6*7))"}, {"/usr/bin/env", "-i", "/bin/bash", "-lc", "echo $((6*7))"},
					{"/usr/bin/env", "BASH_ENV=/work/script", "AGENTSH_CONFIG=/etc/policy.yaml", "AGENTSH_POLICY=/etc/policy.yaml", "/bin/bash", "-c",
						"echo $((6*7))"},
				} {
					if got, code := runInImage(t, root, "", argv...); code != 125 || strings.Contains(got, "42") || !strings.Contains(got, "agentsh: ") {
						t.Errorf("%q: exit %d\n%s", argv, code, got)
					}
				}
				if err := os.RemoveAll(at); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, kept, 0o644); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	if got, code := runInImage(t, root, "", "/usr/bin/env", "-C", "/work", "/bin/sh", "-c", "echo $((6*7))"); code != 0 || got != "42\n" {
		t.Errorf("put back: exit %d\n%s", code, got)
	}
}
