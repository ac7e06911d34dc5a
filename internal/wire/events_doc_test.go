package wire

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page of events lists exactly the fields of each object, in their order.
func TestThePageOfEventsListsEveryField(t *testing.T) {
	page, err := os.ReadFile("../../doc/events.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| .+ \\|$")
	sections := map[string]string{}
	for _, s := range strings.Split(string(page), "\n## ")[1:] {
		title, body, _ := strings.Cut(s, "\n")
		sections[title] = body
	}
	for title, object := range map[string]reflect.Type{
		"An event": reflect.TypeFor[Event](), "Process": reflect.TypeFor[Process](), "Rule": reflect.TypeFor[RuleAt](),
		"Exit": reflect.TypeFor[Exit](), "Output": reflect.TypeFor[OutputEnd](), "Net": reflect.TypeFor[Net](),
	} {
		var listed, fields []string
		for _, m := range row.FindAllStringSubmatch(sections[title], -1) {
			listed = append(listed, m[1])
		}
		for i := range object.NumField() {
			name, _, _ := strings.Cut(object.Field(i).Tag.Get("json"), ",")
			if name != "mark" && name != "-" { // inside the supervisor or a client only
				fields = append(fields, name)
			}
		}
		if !slices.Equal(listed, fields) {
			t.Errorf("%s: the page lists\n%q, the fields are\n%q", title, listed, fields)
		}
		delete(sections, title)
	}
	for title := range sections {
		t.Errorf("the section %s is about no object", title)
	}
}
