package servers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

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
