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
for link in bin lib lib64; do mkdir -p "$root/usr/$link"; ln -s "usr/$link" "$root/$link"; done
for program in bash dash env cat id readlink; do
	cp /usr/bin/$program "$root/usr/bin/"
	for library in $(ldd /usr/bin/$program | grep -o '/[^ ]*'); do
		mkdir -p "$root/usr$(dirname "${library#/usr}")"
		cp -L "$library" "$root/usr${library#/usr}"
	done
done
ln -s dash "$root/usr/bin/sh"
cp "$agentsh" "$root/usr/bin/agentsh"
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
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestTheShellsOfAnImageAreHeld(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, agentsh := filepath.Join(dir, "root"), filepath.Join(dir, "agentsh")
	build := exec.Command("go", "build", "-tags=netgo,osusergo", "-ldflags=-linkmode external -extldflags \"-static\"", "-o", agentsh, "agentsh/cmd/agentsh")
	build.Env = append(build.Environ(), "CGO_ENABLED=1")
	for _, cmd := range []*exec.Cmd{
		build, exec.Command("bash", "-c", image, "bash", root, agentsh),
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
		{"shells inside are themselves", "", []string{"/bin/sh", "-c", "bash -c 'readlink /proc/$$/exe; sh -c \"readlink /proc/\\$\\$/exe\"; [ ! -e /usr/lib/agentsh/shells ] && echo hidden'"}, "/usr/bin/bash\n/usr/bin/sh\nhidden\n", 0},
		{"a login shell", "", []string{"/usr/bin/env", "-i", "/bin/bash", "-lc", "shopt -q login_shell && echo $0 is login"}, "/bin/bash is login\n", 0},
		{"the environment is filtered", "", []string{"/usr/bin/env", "-i", "A=b", "LD_PRELOAD=/x", "AGENTSH_Z=1", "/bin/sh", "-c", "echo $A-$LD_PRELOAD-$AGENTSH_Z-"}, "b---\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, code := runInImage(t, root, tt.stdin, tt.argv...); code != tt.code || !strings.Contains(got, tt.want) {
				t.Errorf("exit %d\n%s", code, got)
			}
		})
	}
	for _, name := range []string{"etc/agentsh/config.yaml", "etc/agentsh/policy.yaml", "usr/lib/agentsh/shells/usr-bin-bash", "usr/lib/agentsh/shells/manifest.json"} {
		t.Run("nothing runs without "+name, func(t *testing.T) {
			at := filepath.Join(root, name)
			if err := os.Rename(at, at+".away"); err != nil {
				t.Fatal(err)
			}
			for _, argv := range [][]string{{"/bin/bash", "-c", "echo $((6*7))"}, {"/usr/bin/env", "AGENTSH_CONFIG=/etc/policy.yaml", "AGENTSH_BYPASS=1", "/bin/bash", "-c", "echo $((6*7))"}} {
				if got, code := runInImage(t, root, "", argv...); code != 125 || strings.Contains(got, "42") {
					t.Errorf("%q: exit %d\n%s", argv, code, got)
				}
			}
			if err := os.Rename(at+".away", at); err != nil {
				t.Fatal(err)
			}
		})
	}
}
