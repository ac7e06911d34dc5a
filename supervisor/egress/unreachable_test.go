package egress

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"agentsh/internal/wire"
)

const twoAbsent = "network_rules:\n  - {name: absent, domains: [nowhere.test, down.test], decision: audit}\n"

// TestWhatCannotBeReachedSaysWhy: the status line of CONNECT has the reason, as most clients
// print no more of it, and one event has it too.
func TestWhatCannotBeReachedSaysWhy(t *testing.T) {
	for host, reason := range map[string]string{
		"nowhere.test": "look up nowhere.test: the name has no address",
		"down.test":    "connect to down.test:443: connect 192.0.2.7:443: refused",
	} {
		for _, via := range []string{"connect", "http", "socks"} {
			t.Run(host+" by "+via, func(t *testing.T) {
				w := newWorld(t, twoAbsent, nil)
				w.place("", "192.0.2.7", 1, "down.test")
				client := w.client(false)
				switch via {
				case "connect":
					conn := w.raw()
					fmt.Fprintf(conn, "CONNECT %s:443 HTTP/1.1\r\nHost: x\r\n\r\n", host)
					answer := make([]byte, 4096)
					n, _ := conn.Read(answer)
					status, _, _ := strings.Cut(string(answer[:n]), "\r\n")
					if status != "HTTP/1.1 502 Bad Gateway: "+reason {
						t.Errorf("the answer is %q", status)
					}
				case "http":
					code, body := w.get(client, "http://"+host+":443/")
					if code != http.StatusBadGateway || !strings.Contains(body, reason[strings.LastIndex(reason, ": "):]) {
						t.Errorf("%d %q", code, body)
					}
				case "socks":
					through := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "socks5h", Host: w.proxy})}
					if res, err := (&http.Client{Transport: through}).Get("http://" + host + ":443/"); err == nil {
						_ = res.Body.Close()
						t.Error("reached")
					}
				}
				var found []wire.Event
				for _, e := range w.finishedAfter(client) {
					if e.Op == wire.OpUnreachable {
						found = append(found, e)
					}
				}
				if len(found) != 1 {
					t.Fatalf("events are %+v", found)
				}
				e := found[0]
				if e.Target != net.JoinHostPort(host, "443") || e.Phase != "end" || e.Decision != "audit" || e.Rule == nil || e.Rule.Name != "absent" ||
					e.Net.Via != via || !strings.Contains(e.Message, reason[strings.LastIndex(reason, ": ")+2:]) {
					t.Errorf("the event is %+v with %+v", e, e.Net)
				}
			})
		}
	}
}
