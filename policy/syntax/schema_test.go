package syntax

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestSchemaNamesEveryKeyThatLoads(t *testing.T) {
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	properties := root["properties"].(map[string]any)
	for _, f := range fieldsOf(policyKeys) {
		_, there := properties[f.name]
		if there == (f.refused != "") {
			t.Errorf("%s: in the schema %v, refused %q", f.name, there, f.refused)
		}
		if there && f.doc == "" {
			t.Errorf("%s has no sentence", f.name)
		}
	}
	rule := properties["command_rules"].(map[string]any)["items"].(map[string]any)
	if rule["additionalProperties"] != false || !strings.Contains(fmt.Sprint(rule["required"]), "commands") {
		t.Errorf("%v", rule)
	}
}
