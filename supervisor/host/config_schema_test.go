package host

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"agentsh/supervisor/probe"
)

func TestTheSchemaOfTheConfigurationHasItsKeys(t *testing.T) {
	var schema struct {
		Properties map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal(ConfigSchema, &schema); err != nil {
		t.Fatal(err)
	}
	known := func(text string) string {
		_, err := parseConfig("c.yaml", []byte(text))
		if err == nil {
			t.Fatalf("%s loads", text)
		}
		_, list, _ := strings.Cut(err.Error(), `"zzzzzzzzz" (one of: `)
		list, _, _ = strings.Cut(list, ")")
		return list
	}
	if got, want := strings.Join(slices.Sorted(maps.Keys(schema.Properties)), ", "), known("zzzzzzzzz: 1\n"); got != want {
		t.Errorf("the schema has %s, the reader %s", got, want)
	}
	for name, p := range schema.Properties {
		if len(p.Properties) == 0 {
			continue
		}
		if got, want := strings.Join(slices.Sorted(maps.Keys(p.Properties)), ", "), known(name+": {zzzzzzzzz: 1}\n"); got != want {
			t.Errorf("%s: the schema has %s, the reader %s", name, got, want)
		}
	}
}

func TestTheSchemaOfTheConfigurationHasEveryName(t *testing.T) {
	type names struct{ Enum []string }
	var schema struct {
		Properties struct {
			Require struct{ Items names }
		}
		Defs struct {
			Degraded struct {
				AnyOf []struct{ Items names }
			}
		} `json:"$defs"`
	}
	if err := json.Unmarshal(ConfigSchema, &schema); err != nil {
		t.Fatal(err)
	}
	if got, want := schema.Properties.Require.Items.Enum, probe.Requirements(); !slices.Equal(got, want) {
		t.Errorf("require: the schema has %q, the reader %q", got, want)
	}
	if got, want := schema.Defs.Degraded.AnyOf[1].Items.Enum, append(probe.Mechanisms(), probe.AnyMechanism); !slices.Equal(got, want) {
		t.Errorf("degraded: the schema has %q, the reader %q", got, want)
	}
}
