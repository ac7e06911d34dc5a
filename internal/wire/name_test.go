package wire

import (
	"encoding/json"
	"io/fs"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestANameIsTheSameAfterJSON(t *testing.T) {
	for name, encoded := range map[string]string{
		"":                   "",
		"plain/name":         "plain/name",
		"grüße":              "grüße",
		"a\xffb":             `a\xffb`,
		"\xc3":               `\xc3`,
		`back\slash`:         `back\slash`,
		`a\xffb`:             `a\x5cxffb`,
		`\\xff`:              `\\x5cxff`,
		`\x5cxff`:            `\x5cx5cxff`,
		`\x` + "\xff":        `\x\xff`,
		`\x4` + "\xff":       `\x4\xff`,
		`\xFF`:               `\xFF`,
		"\xff" + `x5c`:       `\xffx5c`,
		"\ufffd is no error": "\ufffd is no error",
		"line\nfeed":         "line\nfeed",
	} {
		if got := EncodeName(name); got != encoded {
			t.Errorf("%q is encoded as %q, want %q", name, got, encoded)
		}
		if got := DecodeName(encoded); got != name {
			t.Errorf("%q is decoded as %q, want %q", encoded, got, name)
		}
		in := Change{Path: Name(name), Kind: Renamed, From: Name(name)}
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out Change
		if err := json.Unmarshal(data, &out); err != nil || out != in {
			t.Errorf("%s is read as %+v, want %+v: %v", data, out, in, err)
		}
	}
}

func TestTheWordsOfACommandAreTheSameAfterJSON(t *testing.T) {
	for _, word := range []string{"plain", `printf \xff`, "a\xff", `\x41` + "\xff", "\xc3(", "\ufffd"} {
		in := ExecRequest{ID: "id", Argv: []string{"echo", word}, Program: "/" + word, Cwd: "/d/" + word, Env: []string{"A=" + word},
			Run: map[string]string{"AGENTSH_A": word}, TTY: &TTY{Rows: 1}, DeadlineMS: 5}
		for _, r := range []any{in, &in} {
			data, err := json.Marshal(r)
			if err != nil || !utf8.Valid(data) {
				t.Fatalf("%s %v", data, err)
			}
			var out ExecRequest
			if err := json.Unmarshal(data, &out); err != nil || !reflect.DeepEqual(out, in) {
				t.Errorf("%s is read as %+v: %v", data, out, err)
			}
			if utf8.ValidString(word) && strings.Contains(string(data), "encoded") {
				t.Errorf("older supervisors do not read %s", data)
			}
		}
		if in.Argv[1] != word || in.Run["AGENTSH_A"] != word {
			t.Error("the request was changed")
		}
	}
}

func TestAListOfNamesIsTheSameAfterJSON(t *testing.T) {
	data, err := json.Marshal(Manifest{Deleted: Names{"a\xff", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil || len(m.Deleted) != 2 || m.Deleted[0] != "a\xff" || m.Deleted[1] != "b" {
		t.Errorf("%s is read as %q: %v", data, m.Deleted, err)
	}
	if data, err := json.Marshal(Names(nil)); err != nil || string(data) != "null" {
		t.Errorf("no list is %s: %v", data, err)
	}
}

func TestAnEventNamesAnyFile(t *testing.T) {
	in := Event{
		Path: "/w/\xff", Called: "./\xff", Target: "/w/\xfe", Argv: Names{"rm", "\xff"}, Chain: Names{"/bin/\xff"},
		Process: &Process{Exe: "/bin/\xff", Cwd: "/\xff"},
	}
	data, err := json.Marshal(&in)
	if err != nil {
		t.Fatal(err)
	}
	var out Event
	if err := json.Unmarshal(data, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%s is read as %+v: %v", data, out, err)
	}
}

func TestAQuestionNamesAnyFile(t *testing.T) {
	in := Pending{ID: "1", Question: Question{
		Subject: "/bin/\xff", Argv: Names{"rm", "\xff"}, Cwd: "/\xff", Files: []QuestionFile{{Path: "/bin/\xff"}},
	}}
	data, err := json.Marshal(&in)
	if err != nil {
		t.Fatal(err)
	}
	var out Pending
	if err := json.Unmarshal(data, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%s is read as %+v: %v", data, out, err)
	}
}

func TestAPathOfNamesNeedsNoUTF8(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "a/b\xff": true, ".": true, "": false, "/a": false, "a/": false, "a//b": false, "./a": false, "a/..": false, "a\x00b": false,
	} {
		if IsNamePath(name) != want {
			t.Errorf("%q: %v, want %v", name, !want, want)
		}
	}
}

func FuzzEveryNameIsDecodedFromItsEncoding(f *testing.F) {
	f.Add("a\xff")
	f.Add(`\x5cxff`)
	f.Fuzz(func(t *testing.T, name string) {
		encoded := EncodeName(name)
		if !utf8.ValidString(encoded) {
			t.Errorf("%q is encoded as %q, which is not UTF-8", name, encoded)
		}
		if got := DecodeName(encoded); got != name {
			t.Errorf("%q is encoded as %q and decoded as %q", name, encoded, got)
		}
		if fs.ValidPath(name) && !IsNamePath(name) && !strings.Contains(name, "\x00") {
			t.Errorf("%q is a path of io/fs and none here", name)
		}
	})
}
