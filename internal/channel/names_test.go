package channel

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"agentsh/internal/wire"
)

func TestTheNamesOfALargeCopyFollowItsRequest(t *testing.T) {
	if newNames(wire.CopyOut{Paths: wire.Names{"a"}, Names: wire.Names{"b"}, Deleted: wire.Names{"c"}}) != nil {
		t.Error("short lists do not stand in the request")
	}
	want := wire.CopyOut{
		Paths: wire.Names{"a", "\xff\n", strings.Repeat("p", maxInline)}, Names: wire.Names{"b/c", "\""}, Deleted: wire.Names{"gone", "gone 2"},
	}
	whole := func(r io.Reader) io.Reader { return r }
	for name, read := range map[string]func(io.Reader) io.Reader{"whole": whole, "bytes": iotest.OneByteReader} {
		var got wire.CopyOut
		small := want
		small.Paths = append(wire.Names{}, want.Paths...)
		small.Paths[2] = strings.Repeat("p", maxEntry/2) // an entry has a limit
		n := &names{lists: [3][]string{small.Paths, small.Names, small.Deleted}}
		if err := readNames(read(n), &got); err != nil || !reflect.DeepEqual(got, small) {
			t.Errorf("%s: %v %d %q %q", name, err, len(got.Paths), got.Names, got.Deleted)
		}
	}
	if newNames(want) == nil {
		t.Error("long lists stand in the request")
	}
}

func TestTheNamesOfACopyAreBounded(t *testing.T) {
	long, err := json.Marshal(wire.CopyName{Path: wire.Name(strings.Repeat("p", 2*maxEntry))})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		in  io.Reader
		req wire.CopyOut
	}{
		"a long name":         {bytes.NewReader(long), wire.CopyOut{}},
		"without an end":      {&repeat{[]byte(`{"name":"x"}`)}, wire.CopyOut{}},
		"names in two places": {strings.NewReader(`{"name":"x"}`), wire.CopyOut{Names: wire.Names{"y"}}},
		"cut off":             {strings.NewReader(`{"name":"x`), wire.CopyOut{}},
		"aborted":             {iotest.ErrReader(errAborted), wire.CopyOut{}},
	} {
		if err := readNames(tt.in, &tt.req); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// repeat is an endless reader of the same bytes.
type repeat struct{ text []byte }

func (r *repeat) Read(p []byte) (int, error) {
	n := 0
	for len(p)-n >= len(r.text) {
		n += copy(p[n:], r.text)
	}
	if n == 0 {
		n = copy(p, r.text[:1])
	}
	return n, nil
}
