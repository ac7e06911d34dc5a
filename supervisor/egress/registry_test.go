package egress

import (
	"runtime/debug"
	"testing"
)

// The setting of the collector is as before when the clients are gone, also of
// several proxies.
func TestTheCollectorIsSetWhileThereAreManyClients(t *testing.T) {
	before := debug.SetGCPercent(77)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	percent := func() int {
		n := debug.SetGCPercent(77)
		debug.SetGCPercent(n)
		return n
	}
	proxies := [2]*registry{newRegistry(), newRegistry()}
	clients := make([]*client, 2*manyClients)
	for i := range clients {
		clients[i] = &client{}
		if added, _ := proxies[i%2].addClient(clients[i], len(clients)); !added {
			t.Fatal("a client was refused")
		}
	}
	if n := percent(); n != manyPercent {
		t.Errorf("with many clients the heap may grow by %d %%", n)
	}
	for i, c := range clients {
		proxies[i%2].removeClient(c)
		proxies[i%2].removeClient(c)
	}
	if n := percent(); n != 77 {
		t.Errorf("without clients the heap may grow by %d %%", n)
	}
}
