package servers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/mcpfilter"
)

// TestALineOfTheLogThatTheFilterDoesNotWriteIsLeftOut has an agent write lines into the log. Deep lists take
// their depth squared when they are shown.
func TestALineOfTheLogThatTheFilterDoesNotWriteIsLeftOut(t *testing.T) {
	deep := `{"name":"read","x":` + strings.Repeat("[", 5000) + strings.Repeat("0,", 1000) + `0` + strings.Repeat("]", 5000) + `}`
	long := `{"name":"read","x":"` + strings.Repeat("x", 1<<20) + `"}`
	line := func(tool, definition string) string {
		return fmt.Sprintf(`{"server":"s","tool":%q,"reason":"r","sha256":"0","definition":%s}`, tool, definition) + "\n"
	}
	var log strings.Builder
	for _, one := range []string{
		line("read", deep), line("read", long), line("write", `{"name":"read"}`), line("read", `0`), "{}\n", "{\n",
		`{"server":"s","tool":"read"}` + "\n", line("read", `{"name":"read", "b":2,"a":1}`),
	} {
		log.WriteString(one)
	}
	entries := ReadLog([]byte(log.String()))
	if len(entries) != 1 || string(entries[0].Definition) != `{"a":1,"b":2,"name":"read"}` {
		t.Fatalf("%d entries: %.200s", len(entries), entries)
	}
	pins := map[string]mcpfilter.Pins{"s": {Tools: map[string]mcpfilter.Pin{"read": {Definition: json.RawMessage(`{"a":1,"name":"read"}`)}}}}
	if got := (Plan{pins: pins}).Changed(entries[0]); !strings.Contains(got, `+   "b": 2,`) {
		t.Error(got)
	}
}

// TestADifferenceTakesTimeByItsLines compares two of the largest definitions, which have no line in common.
func TestADifferenceTakesTimeByItsLines(t *testing.T) {
	definition := func(first int) json.RawMessage {
		var b strings.Builder
		b.WriteString(`{"name":"read","x":[0`)
		for i := first; b.Len() < 1<<20-20; i += 2 {
			fmt.Fprintf(&b, ",%d", i)
		}
		return json.RawMessage(b.String() + `]}`)
	}
	const allowed = 5 * time.Second // of this process; comparing each line with each one takes minutes
	before, after := definition(1_000_000), definition(1_000_001)
	start := processorTime(t)
	got := Difference(before, after)
	if took := processorTime(t) - start; took > allowed {
		t.Errorf("it took %s", took)
	}
	if !strings.HasPrefix(got, "-     1000000,\n-     1000002,\n") || !strings.HasSuffix(got, " more lines") {
		t.Errorf("%.200s", got)
	}
	same := Difference(json.RawMessage(`{"a":[1,1,2]}`), json.RawMessage(`{"a":[1,2,2]}`))
	if same != "-     1,\n+     2," {
		t.Error(same)
	}
}

// processorTime is what this process has used of the processors.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano())
}
