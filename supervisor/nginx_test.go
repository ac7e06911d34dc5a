package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// nginxScript serves a request with workers, has them exchanged by a signal and
// ends them gracefully. The master names each worker the owner of its socket.
const nginxScript = `
import os, signal, subprocess, sys, time, urllib.request
work = os.getcwd()
open('nginx.conf', 'w').write('''
daemon off; master_process on; worker_processes 2;
error_log %(w)s/error.log notice; pid %(w)s/nginx.pid;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path %(w)s/t1; proxy_temp_path %(w)s/t2; fastcgi_temp_path %(w)s/t3; uwsgi_temp_path %(w)s/t4; scgi_temp_path %(w)s/t5;
  server { listen 127.0.0.1:8099; location / { return 200 "served by $pid\\n"; } }
}
''' % {'w': work})
p = subprocess.Popen(['nginx', '-p', work, '-c', work + '/nginx.conf'])
def get():
    for _ in range(6000):
        try: return urllib.request.urlopen('http://127.0.0.1:8099/', timeout=60).read().decode()
        except OSError: time.sleep(.02)
    return 'no answer'
first = get()
print(first.split()[0])
os.kill(p.pid, signal.SIGHUP)
for _ in range(6000):
    again = get()
    if again.startswith('served') and 'gracefully shutting down' in open('error.log').read() and again != first: break
    time.sleep(.02)
else: print('the workers stay:', again)
os.kill(p.pid, signal.SIGQUIT)
print(p.wait(120))
print(open('error.log').read().count('failed'))
`

// TestNginxServes under the shipped default policy, and under one that judges
// signals by process.
func TestNginxServes(t *testing.T) {
	testenv.Need(t, testenv.Program("nginx"), testenv.Program("python3"))
	pack, err := os.ReadFile("../packaging/policies/default.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"default": string(pack), "judged": withSignals(belowRules)} {
		t.Run(name, func(t *testing.T) {
			b := openBox(t, text)
			if err := os.WriteFile(filepath.Join(b.workspace, "nginx.py"), []byte(nginxScript), 0o644); err != nil {
				t.Fatal(err)
			}
			exit, out := b.run(t, "python3", "nginx.py")
			if exit.Code != 0 || out != "served\n0\n0\n" {
				log, _ := os.ReadFile(filepath.Join(b.workspace, "error.log"))
				t.Errorf("exit %+v, it printed:\n%s%s", exit, out, log)
			}
			for _, e := range b.events(t, func(e wire.Event) bool { return e.Decision == "deny" && e.Type != wire.EventFile }) {
				t.Errorf("denied: %+v", e)
			}
		})
	}
}
