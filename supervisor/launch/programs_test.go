package launch_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"agentsh/internal/testenv"
	"agentsh/supervisor/launch"
)

// Ordinary work under the filter, on the machine's own programs.
var programs = []struct {
	needs  string
	script string
	want   string // last line
}{
	{
		"git",
		"git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git clone -q . ../c && git -C ../c log --format=%s",
		"first",
	},
	{"gcc", `printf 'int puts(const char*);int main(void){return puts("built")<0;}' > a.c && gcc -O2 -o a a.c && ./a`, "built"},
	{
		"go",
		"mkdir m && cd m && go mod init m >/dev/null 2>&1 && printf 'package main\nfunc main() { println(\"built\") }\n' > m.go && go build -o m . && ./m",
		"built",
	},
	{
		"node",
		`node -e 'const {execSync}=require("child_process");const {Worker}=require("worker_threads");new Worker("1",{eval:true}).on("exit",()=>console.log(execSync("echo child")+"node"))'`,
		"node",
	},
	{"npm", "npm --version >/dev/null && mkdir n && cd n && npm init -y >/dev/null && npm pkg get name", `"n"`},
	{"python3", `python3 -c 'import subprocess,threading,multiprocessing,socket,asyncio
def f(q): q.put(socket.socketpair() and 1)
q=multiprocessing.Queue(); p=multiprocessing.Process(target=f,args=(q,)); p.start(); q.get(); p.join()
async def g(): return await asyncio.create_subprocess_exec("/bin/true")
asyncio.run(g()); print(subprocess.check_output(["echo","python"],text=True))' | head -1`, "python"},
	{"make", "printf 'all: a b\\na b:\\n\\t@sleep 0; echo made\\n' > Makefile && make -s -j4", "made"},
	{"perl", `perl -e 'print join(",", map { 0+!system("true") } 1..3), "\n"'`, "1,1,1"},
	{"tar", "mkdir t && echo x > t/f && tar czf t.tgz t && tar tzf t.tgz | sort | tail -1", "t/f"},
	{"bash", `for i in {1..20}; do echo $i & done | sort -n | tail -1; wait; trap 'echo trapped' USR1; kill -USR1 $$`, "trapped"},
}

func TestOrdinaryProgramsRun(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	c := config(t)
	path := "/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin"
	c.Mounts = append(c.Mounts, launch.Mount{Kind: launch.Tmpfs, Target: "/home", Size: 1 << 30, Mode: 0o700})
	s := start(t, c)
	for _, p := range programs {
		t.Run(p.needs, func(t *testing.T) {
			testenv.Need(t, testenv.Program(p.needs))
			code, out := s.command(t, launch.Command{Path: "/bin/bash", Argv: []string{"bash", "-c", p.script}, Dir: "/home",
				Env: []string{"PATH=" + path, "HOME=/home", "GOCACHE=/home/.cache", "GOFLAGS=-mod=mod", "GOPROXY=off"}})
			lines := strings.Split(out, "\n")
			if code != 0 || lines[len(lines)-1] != p.want {
				t.Errorf("%d\n%s", code, out)
			}
		})
	}
}

// BenchmarkStart is one command in a running session, from the request to its
// exit status.
func BenchmarkStart(b *testing.B) {
	testenv.Need(b, testenv.Root, testenv.UserNotif)
	s := start(b, config(b))
	c := launch.Command{Path: "/bin/true", Argv: []string{"true"}, Dir: "/"}
	for b.Loop() {
		p, err := s.Start(context.Background(), c)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNative is the same without a session.
func BenchmarkNative(b *testing.B) {
	for b.Loop() {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSession is a whole session: set up, proven, closed.
func BenchmarkSession(b *testing.B) {
	testenv.Need(b, testenv.Root, testenv.UserNotif)
	c := config(b)
	for b.Loop() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		i, err := launch.NewInit(ctx, c, nil)
		cancel()
		if err != nil {
			b.Fatal(err)
		}
		i.Listener().Close()
		if err := i.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
