package audit

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"agentsh/internal/wire"
)

// fill sets about every other field below v to something.
func fill(r *rand.Rand, v reflect.Value) {
	if r.IntN(2) == 0 {
		return
	}
	texts := []string{
		"plain",
		"a b",
		"\"quoted\" \\",
		"<tag> & more",
		"line\nfeed\x00\x7f",
		"\u00fc\u2028\u2029\U0001f600",
		"not \xff utf-8",
		"",
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(texts[r.IntN(len(texts))])
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(1000) - 500)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64N(200))
	case reflect.Float64:
		v.SetFloat(r.Float64())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(4), 8))
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(4) {
			name, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, name)
			fill(r, value)
			v.SetMapIndex(name, value)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<33), r.Int64N(1e9)).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
	default:
		panic("no value of type " + v.Type().String())
	}
}

func TestEventsAreWrittenAsTheLibraryWouldWriteThem(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var e wire.Event
		for i := range reflect.ValueOf(&e).Elem().NumField() {
			fill(r, reflect.ValueOf(&e).Elem().Field(i))
		}
		want, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := appendEvent(nil, &e)
		if err != nil || string(got) != string(want) {
			t.Fatalf("%v\n got %s\nwant %s", err, got, want)
		}
	}
	if _, err := appendEvent(nil, &wire.Event{Time: time.Date(12345, 1, 1, 0, 0, 0, 0, time.UTC)}); err == nil {
		t.Error("a year of five digits was written")
	}
}

func FuzzStringsAreWrittenAsTheLibraryWouldWriteThem(f *testing.F) {
	f.Add("plain")
	f.Add("\u2028 \xff <\x00\x7f")
	f.Fuzz(func(t *testing.T, s string) {
		want, err := json.Marshal(s)
		if got := appendString(nil, s); err != nil || string(got) != string(want) {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
	})
}
