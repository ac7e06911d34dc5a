package strictyaml

import (
	"slices"
	"strings"
	"testing"
)

// read parses a text and returns its root and problems.
func read(text string, d *Dialect) (*Node, []string) {
	var problems []string
	n := Parse("f.yaml", []byte(text), d, func(p Problem) { problems = append(problems, p.String()) })
	return n, problems
}

func TestWhatADialectDoesNotAcceptIsReportedWithItsPosition(t *testing.T) {
	d := &Dialect{MaxBytes: 100, MaxMarks: 20, MaxDepth: 3, MaxText: 10, Texts: Texts{Merge: Text{"no merge keys", "use extends"}}}
	for text, want := range map[string]string{
		"":                               "f.yaml:1:1: the file is empty",
		"a: b\n---\nc: d\n":              "f.yaml:2:1: not YAML: the file holds a second document",
		"a: \xff\n":                      "f.yaml:1:4: byte 0xff is not UTF-8 (save the file as UTF-8)",
		"a: \x1b\n":                      "f.yaml:1:4: control character U+001B: the file would not read as it looks (remove it)",
		"a:\n\tb: c\n":                   "f.yaml:2:1: a tab is not indentation (indent with spaces)",
		"a: [\n":                         "f.yaml:1:1: not YAML: did not find expected node content",
		"a: &x b\n":                      "f.yaml:1:4: anchors and aliases are not accepted (write the value out)",
		"<<: b\n":                        "f.yaml:1:1: no merge keys (use extends)",
		"a: !!str b\n":                   "f.yaml:1:4: the tag !!str is not accepted",
		"[[[[[]]]]]":                     "f.yaml:1:5: nested more than 3 levels deep",
		"a: bcdefghijklm\n":              "f.yaml:1:4: value is 12 bytes long, the most is 10",
		strings.Repeat("- ", 21) + "a\n": "f.yaml:1:1: the file has more than 20 entries",
		strings.Repeat("a", 101):         "f.yaml:1:1: the file is 101 bytes long, the most is 100",
		"a: !x b\nc: &y d\n":             "f.yaml:1:4: the tag !x is not accepted\nf.yaml:2:4: anchors and aliases are not accepted (write the value out)",
	} {
		n, problems := read(text, d)
		if got := strings.Join(problems, "\n"); n != nil || got != want {
			t.Errorf("%q: %v\n%s, want\n%s", text, n, got, want)
		}
	}
}

// A vertical tab is space to some and not to others.
func TestALineOfControlCharactersIsAnError(t *testing.T) {
	const want = "f.yaml:1:1: not YAML: control characters are not allowed"
	if n, problems := read(",\v", &Dialect{Controls: true}); n != nil || !slices.Equal(problems, []string{want}) {
		t.Errorf("%v %q, want %q", n, problems, want)
	}
}

func TestADialectAcceptsWhatItNames(t *testing.T) {
	d := &Dialect{Controls: true, CoreTags: true, Empty: true}
	for _, text := range []string{"", "# nothing\n", "a: !!str 1\n", "a: \u202e\n"} {
		if _, problems := read(text, d); problems != nil {
			t.Errorf("%q: %q", text, problems)
		}
	}
}

func TestMappingKeysAreKnownAndUnique(t *testing.T) {
	n, _ := read("colour: red\ncolor: blue\nsize: 1\nsize: 2\n[x]: 3\n", &Dialect{})
	var problems, values []string
	r := NewReader("f.yaml", &Dialect{}, func(p Problem) { problems = append(problems, p.String()) })
	value := func(v *Node) { values = append(values, v.Value) }
	r.Fields(n, "a shape", map[string]func(*Node){"color": value, "size": value})
	want := []string{
		`f.yaml:1:1: a shape has no key "colour" (did you mean "color"?)`,
		`f.yaml:4:1: key "size" is given twice (merge the two)`,
		`f.yaml:5:1: a shape has no key "" (one of: color, size)`,
	}
	if !slices.Equal(problems, want) || !slices.Equal(values, []string{"blue", "1"}) {
		t.Errorf("%q\n%q", problems, values)
	}
	problems = nil
	r.Keys(n, "names", nil, func(*Node) func(*Node) { return func(*Node) {} })
	if want := []string{`f.yaml:4:1: key "size" is given twice (merge the two)`, `f.yaml:5:1: names has no key ""`}; !slices.Equal(problems, want) {
		t.Errorf("%q", problems)
	}
	problems = nil
	if r.Fields(&Node{Kind: Scalar, Line: 3, Column: 2}, "a shape", nil) || problems[0] != "f.yaml:3:2: a shape must be a mapping of keys to values" {
		t.Errorf("%q", problems)
	}
}

func TestScalarsHaveTheTypesOfTheCoreSchema(t *testing.T) {
	for text, want := range map[string]Type{
		"a": String, "yes": String, "off": String, "1_000": String, "0b1": String, "2001-01-01": String, "'1'": String, `""`: String, "!!str 1": String,
		"~": Null, "null": Null, "NULL": Null, "true": Bool, "FALSE": Bool, "!!bool x": Bool,
		"1": Int, "-1": Int, "017": Int, "0o17": Int, "0xff": Int, "99999999999999999999": Int, "1.5": Float, "1e3": Float, ".inf": Float,
	} {
		n, problems := read("k: "+text+"\n", &Dialect{CoreTags: true})
		if problems != nil || TypeOf(n.Content[1]) != want {
			t.Errorf("%s: %v, want %v %q", text, TypeOf(n.Content[1]), want, problems)
		}
	}
}

func TestValuesAreReadStrictly(t *testing.T) {
	n, _ := read("{t: a, n: 5, big: 99999999999999999999, hex: 0x5, yes: yes, on: true, time: 90s, never: 0s, list: [a, b], none: ~}\n", &Dialect{})
	var problems []string
	r := NewReader("f.yaml", &Dialect{}, func(p Problem) { problems = append(problems, p.Message) })
	at := func(key string) *Node { return Value(n, key) }
	ok := func(_ any, ok bool) bool { return ok }
	for name, read := range map[string]bool{
		"text": ok(r.Text(at("t"))), "a number as text": ok(r.Text(at("n"))), "number": ok(r.Int(at("n"), 1, 9)), "bool": ok(r.Bool(at("on"))),
		"duration": ok(r.Duration(at("time"))), "word": ok(r.Word(at("t"), "letter", []string{"a"})), "list": r.Items(at("list"), func(*Node) {}),
	} {
		if !read {
			t.Errorf("%s is not read", name)
		}
	}
	if problems != nil {
		t.Fatalf("%q", problems)
	}
	r.Text(at("none"))
	r.Text(at("list"))
	r.Int(at("t"), 1, 9)
	r.Int(at("n"), 1, 4)
	r.Int(at("big"), 1, 9)
	r.Int(at("hex"), 1, 9)
	r.Bool(at("yes"))
	r.Duration(at("never"))
	r.Word(at("t"), "letter", []string{"b"})
	r.Items(at("t"), nil)
	want := []string{
		"must be text", "must be text", "must be a whole number", "5 is out of range, 1 to 4", `"99999999999999999999" is not a whole number that fits`,
		`"0x5" is not a whole number that fits`, "must be true or false", `"0s" is not a length of time above zero`, `unknown letter "a"`, "must be a list",
	}
	if !slices.Equal(problems, want) {
		t.Errorf("%q", problems)
	}
}

func TestTheNearestNameIsSuggested(t *testing.T) {
	words := []string{"command_rules", "file_rules", "env"}
	for s, want := range map[string]string{
		"comand_rules": `did you mean "command_rules"?`, "FILE_RULES": `did you mean "file_rules"?`, "fiel_rules": `did you mean "file_rules"?`,
		"nev": `did you mean "env"?`, "quite different": "one of: command_rules, file_rules, env",
	} {
		if got := DidYouMean(s, words); got != want {
			t.Errorf("%s: %s, want %s", s, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a: b\n", "\xef\xbb\xbfa: b\r\n", "a: &a [*a]\n", "? - : -\n", "a:\n\tb\n", "--- a\n--- b\n", "!!map {}\n"} {
		f.Add([]byte(seed))
	}
	d := &Dialect{MaxBytes: 1 << 16, MaxMarks: 1000, MaxDepth: 12, MaxText: 1000}
	f.Fuzz(func(t *testing.T, data []byte) {
		problems := 0
		n := Parse("f.yaml", data, d, func(p Problem) {
			problems++
			if p.Line < 1 || p.Column < 1 || p.Message == "" || strings.Contains(p.Message, "%!") {
				t.Fatalf("%+v", p)
			}
		})
		if (n == nil) != (problems > 0) {
			t.Fatalf("%v with %d problems", n, problems)
		}
	})
}

func TestAliasesAreReplacedByTheirValues(t *testing.T) {
	const text = `a: &a {x: 1, y: &y [p, q]}
b: *a
c: {<<: *a, x: 2}
d: {<<: [{x: 3, z: 4}, *a]}
e: *y
`
	n, problems := read(text, &Dialect{Anchors: true, MaxDepth: 4})
	if problems != nil {
		t.Fatal(problems)
	}
	got, err := Marshal(n)
	const want = `a: {x: 1, y: [p, q]}
b: {x: 1, y: [p, q]}
c: {x: 2, y: [p, q]}
d: {x: 3, z: 4, y: [p, q]}
e: [p, q]
`
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s, want\n%s", err, got, want)
	}
	if b := Value(n, "b"); b.Line != 1 || b.Column != 4 {
		t.Errorf("an alias stands at %d:%d, want the place of its anchor", b.Line, b.Column)
	}
}

func TestAliasesAreBounded(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x]\n")
	for i := '1'; i <= '9'; i++ {
		bomb.WriteString("a" + string(i) + ": &a" + string(i) + " [" + strings.Repeat("*a"+string(i-1)+", ", 9) + "]\n")
	}
	for text, want := range map[string]string{
		bomb.String():            "aliases make the file larger than 100000 entries (write fewer of them)",
		"a: &a [*a]\n":           "f.yaml:1:8: the alias a stands within its own anchor (write the value out)",
		"a: &a {b: {c: *a}}\n":   "f.yaml:1:15: the alias a stands within its own anchor (write the value out)",
		"a: &a {<<: *a}\n":       "f.yaml:1:12: the alias a stands within its own anchor (write the value out)",
		"a: &a x\nb: {<<: *a}\n": "f.yaml:1:4: a merge key names a mapping, or a list of mappings",
		"a: {<<: [{b: c}, d]}\n": "f.yaml:1:18: a merge key names a mapping, or a list of mappings",
		"a: *b\n":                "unknown anchor 'b' referenced",
		"a: &a [[[[[[b]]]]]]\nb: [[[[[[*a]]]]]]\n": "nested more than 12 levels deep",
	} {
		n, problems := read(text, &Dialect{Anchors: true, MaxDepth: 12})
		if got := strings.Join(problems, "\n"); n != nil || !strings.Contains(got, want) {
			t.Errorf("%.40q: %v\n%s, want\n%s", text, n, got, want)
		}
	}
}
