package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ordinary are uses of ordinary tools whose output and status must be the same in
// a session under the default pack as outside. differs is the reason of one that
// is not; a reason that no longer holds fails, too.
var ordinary = []struct{ script, differs string }{
	{script: `ls -l /etc >/dev/null`},
	{script: `ls -la / /dev /proc/self/ >/dev/null; ls -lad /tmp /var/tmp >/dev/null`}, // others remove files in /tmp
	{script: `df >/dev/null`},
	{script: `find /usr/lib -maxdepth 2 -not -path '/usr/lib/agentsh*' | wc -l`},
	{script: `find /etc -maxdepth 1 | wc -l`},
	{script: `du -s /usr/share/doc >/dev/null`},
	{script: `stat -c '%n %F %a' /etc/passwd /usr/bin /dev/null /dev/full`},
	{script: `stat -c '%n %F %s %a' /etc/shadow; cat /etc/shadow`},
	{script: `f=$(mktemp) && d=$(mktemp -d) && test -f "$f" -a -d "$d" && rm -r "$f" "$d"`},
	{script: `id -u >/dev/null; id >/dev/null`},
	{script: `ps -ef >/dev/null; ps -o comm= -p $$`},
	{script: `top -b -n1 >/dev/null; free >/dev/null; uptime >/dev/null; vmstat >/dev/null`},
	{script: `who; w >/dev/null`},
	{script: `lsof -p $$ >/dev/null 2>&1`},
	{script: `ip a | grep -c lo:`},
	{script: `getent passwd root; getent hosts localhost; getent group root; getent services ssh`},
	{script: `man -w ls`},
	{script: `tar -cf x.tar /etc/hostname; tar -tf x.tar`},
	{script: `printf 'a: b c\n\techo a\nb:\n\t@true\nc:\n\t@true\n' >Makefile; make -s -j2 a`},
	{script: `python3 -m venv --without-pip v && v/bin/python -c 'print(1)'; rm -rf v`},
	{script: `script -qc 'echo typed' /dev/null`},
	{
		script: `TMUX_TMPDIR=$PWD tmux -L x -f /dev/null new-session -d 'sleep 1000'; TMUX_TMPDIR=$PWD tmux -L x list-sessions -F ok; TMUX_TMPDIR=$PWD tmux -L x kill-server`,
	},
	{script: `flock lock echo locked; nice -n 5 nice; nohup echo hi 2>/dev/null; timeout 0.1 sleep 5; echo $?`},
	{script: `seq 3 | xargs -P2 -n1 true; date +%Z; uname -s; nproc; getconf PAGESIZE; tty; readlink -f /bin/sh`},
	{script: `touch a; ln -s a b; ln a c; cp -a a d; mv d e; chmod 600 e; stat -c %a e; mkfifo p; (echo x >p &); cat p`},
	{script: `pgrep -x nosuch; echo $?; sleep 0.1 & wait; echo $?; setsid -w true; chrt -p $$ >/dev/null; taskset -p $$ >/dev/null; ionice`},
	{script: `openssl rand -hex 1 | wc -c; perl -e 'print "ok\n"'; git init -q r && git -C r status --short`},
	{script: `mkdir /usr/lib; mkdir /etc; : >/usr/bin/nosuch/x; rm /etc/nosuch; mv /usr/nosuch /tmp/x`},
	{script: `ulimit -n >/dev/null; umask; command -v ls; command -V nosuch`},
	{script: `locale`},
	{`mount >/dev/null`, "the pack refuses mount, whatever its arguments"},
	{`ss -tln >/dev/null`, "netlink sockets are those of routes alone"},
	{`env -i /usr/bin/env`, "what env_inject holds is put back"},
	{`ls -d /run /home`, "what no rule allows is not there"},
	{`last >/dev/null`, "what no rule allows is not there"},
	{`unlink /usr/nosuch; rmdir /usr/nosuch`, "the kernel refuses a mount that is read-only before it looks a name up"},
}

// rowsScript runs the rows of ordinary, each in a directory of its own.
func rowsScript() string {
	var b strings.Builder
	for i, row := range ordinary {
		fmt.Fprintf(&b, "echo '### %d'; mkdir %d; (cd %d; eval %s) 2>&1; echo \"status $?\"\n", i, i, i, quoted(row.script))
	}
	return b.String()
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// rows splits the output of rowsScript.
func rows(out string) []string {
	parts := strings.Split(out, "### ")
	return parts[1:]
}

// TestOrdinaryToolsAreAsOutside compares what tools say in root's session and in a
// user's with what they say to the same user outside.
func TestOrdinaryToolsAreAsOutside(t *testing.T) {
	pack, err := filepath.Abs("../../packaging/policies/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(pack)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"root", "1000"} {
		t.Run(who, func(t *testing.T) {
			dir := workDir(t)
			as, uid := func(cmd *exec.Cmd) *exec.Cmd { return cmd }, "60700"
			if who != "root" {
				as, uid = asUser(t, dir), who
			}
			policy := filepath.Join(dir, "default.yaml")
			if err := os.WriteFile(policy, text, 0o644); err != nil {
				t.Fatal(err)
			}
			self, err := os.ReadFile("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			inside, outside := filepath.Join(dir, "agentsh"), t.TempDir()
			for _, err := range []error{os.WriteFile(inside, self, 0o755), os.Chmod(outside, 0o777), os.Chmod(filepath.Dir(outside), 0o755)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			script := rowsScript()
			native := exec.Command("bash", "-c", script)
			native.Path, native.Dir = "/bin/bash", outside
			native.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + outside, "LANG=C.UTF-8"}
			want, err := asUID(uid, native).Output()
			if err != nil {
				t.Fatal(err)
			}
			cmd := program(t, dir, "exec", "-p", policy, "-w", "work", "--", "/bin/bash", "-c", script)
			cmd.Path = inside
			cmd = as(cmd)
			var held strings.Builder
			cmd.Stdout, cmd.Stderr = &held, os.Stderr
			if code := runToEnd(t, cmd); code != 0 {
				t.Fatalf("exit status %d", code)
			}
			compareRows(t, rows(string(want)), rows(held.String()))
		})
	}
}

// compareRows holds that rows are alike but for those with a reason.
func compareRows(t *testing.T, native, held []string) {
	t.Helper()
	if len(native) != len(ordinary) || len(held) != len(ordinary) {
		t.Fatalf("%d and %d results of %d rows", len(native), len(held), len(ordinary))
	}
	for i, row := range ordinary {
		if row.differs != "" && strings.HasSuffix(strings.TrimSpace(native[i]), "status 127") {
			continue // the machine has no such program
		}
		if alike := native[i] == held[i]; alike != (row.differs == "") {
			t.Errorf("%s (differs: %q)\n%s\noutside\n%s", row.script, row.differs, held[i], native[i])
		}
	}
}
