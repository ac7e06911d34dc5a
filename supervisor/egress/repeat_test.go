package egress

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func TestABodyIsReadAgainFromItsBeginning(t *testing.T) {
	r, _ := http.NewRequest("PUT", "http://a.test/", iotest.OneByteReader(strings.NewReader("the whole body")))
	body := makeRepeatable(r)
	first := make([]byte, 4)
	_, _ = io.ReadFull(r.Body, first)
	second, err := r.GetBody()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadFull(r.Body, first) // it was in the middle of a piece
	if b, err := io.ReadAll(second); string(b) != "the whole body" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	body.release()
	if _, err := r.GetBody(); !errors.Is(err, errNotAgain) {
		t.Error("it is sent again after an answer")
	}
}
