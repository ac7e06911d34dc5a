package layout

import "testing"

func TestBothProgramsFindOneStateDirectory(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		uid  int
		want State
	}{
		"a user":                      {map[string]string{"HOME": "/home/u"}, 1000, "/home/u/.local/state/agentsh"},
		"a user with XDG":             {map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "/s"}, 1000, "/s/agentsh"},
		"a user with relative XDG":    {map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "s"}, 1000, "/home/u/.local/state/agentsh"},
		"a user without HOME":         {nil, 1000, ""},
		"a user with a relative HOME": {map[string]string{"HOME": "u"}, 1000, ""},
		"root":                        {map[string]string{"HOME": "/root"}, 0, "/var/lib/agentsh"},
		"root with XDG":               {map[string]string{"XDG_STATE_HOME": "/s"}, 0, "/s/agentsh"},
		"root with relative XDG":      {map[string]string{"XDG_STATE_HOME": "s"}, 0, "/var/lib/agentsh"},
	} {
		got, err := FindState(func(n string) string { return tt.env[n] }, tt.uid)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestReservedPaths(t *testing.T) {
	for name, want := range map[string]bool{
		EnvFile: true, GeneratedEnv: true, EnvDir: true, Workspace: true, Sandbox: true, RuntimeDir + "/settings.json": true,
		Workspace + "/bin/claude": true, EnvDir + "/tool.env": false, Workspace + "/notes.txt": false, Workspace + "/.environment": false,
	} {
		if got := Reserved(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
