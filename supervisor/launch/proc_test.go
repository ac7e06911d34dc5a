package launch_test

import "testing"

// Whoever writes into the memory of a process that was just executed changes
// the arguments after they were judged.
func TestTheMemoryOfAProcessCannotBeWrittenThroughProc(t *testing.T) {
	both(t, func(t *testing.T) {
		s := start(t, config(t))
		for _, script := range []string{
			"exec 3<>/proc/self/mem", "exec 3<>/proc/$$/mem", "exec 3<>/proc/self/task/$$/mem",
			"exec 3<>/proc/$BASHPID/mem", "exec 3<>/proc/self/fd/../mem",
		} {
			if code, out := s.run(t, "( "+script+" ) 2>/dev/null && echo opened; true"); code != 0 || out != "" {
				t.Errorf("%s: %d %q", script, code, out)
			}
		}
		if code, out := s.run(t, "cat /proc/self/comm"); code != 0 || out != "cat" {
			t.Errorf("reading below /proc: %d %q", code, out)
		}
	})
}
