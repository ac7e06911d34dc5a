package sandbox

import "testing"

func TestTheLastMessageOfASupervisorIsReportedInFull(t *testing.T) {
	for _, tt := range []struct{ log, want string }{
		{"", ""},
		{"agentsh: first\nagentsh: open /dev/fuse: permission denied\n  degraded: [file_server] does without\nagentsh: hint: load it\n", "open /dev/fuse: permission denied; degraded: [file_server] does without"},
		{"panic: x\n", "panic: x"},
		{"panic: x\n1\n2\n3\n4\n5\n", "panic: x; 1; 2; 3"},
		{"agentsh: a\n\n", "a"},
	} {
		var log Tail
		if _, err := log.Write([]byte(tt.log)); err != nil {
			t.Fatal(err)
		}
		if got := log.LastMessage(); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.log, got, tt.want)
		}
	}
}
