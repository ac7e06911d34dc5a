package egress

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// form is one way a value is written, and what is shown in its place, which is
// as long.
type form struct{ text, shown []byte }

// formsOf are the ways in which servers repeat a value: as it is, escaped for
// URLs, JSON and HTML, in hex, and as a part of something in base64.
func formsOf(c Credential) []form {
	var out []form
	add := func(text string) {
		if len(text) < shortestValue || slices.ContainsFunc(out, func(f form) bool { return string(f.text) == text }) {
			return
		}
		shown := bytes.Repeat([]byte("*"), len(text))
		if text == c.Value && len(text) == len(c.Placeholder) {
			shown = []byte(c.Placeholder)
		}
		out = append(out, form{[]byte(text), shown})
	}
	add(c.Value)
	add(url.QueryEscape(c.Value))
	add(url.PathEscape(c.Value))
	if quoted, err := json.Marshal(c.Value); err == nil {
		inner := string(quoted[1 : len(quoted)-1])
		add(inner)
		add(strings.ReplaceAll(inner, "/", `\/`))
	}
	add(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(c.Value))
	add(hex.EncodeToString([]byte(c.Value)))
	add(strings.ToUpper(hex.EncodeToString([]byte(c.Value))))
	for before := range 3 {
		// Of base64 only those characters that no neighbour has a part in.
		padded := append(make([]byte, before), c.Value...)
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString(padded)
			from := (before*8 + 5) / 6
			to := len(padded) * 8 / 6
			add(text[from:to])
		}
	}
	return out
}

// clean is a text without values.
func (s *secrets) clean(text string) string {
	b := []byte(text)
	for _, one := range s.list {
		hide(b, one.forms)
	}
	return string(b)
}

// hide writes over the values in b.
func hide(b []byte, forms []form) {
	for _, f := range forms {
		for at := 0; ; {
			i := bytes.Index(b[at:], f.text)
			if i < 0 {
				break
			}
			copy(b[at+i:], f.shown)
			at += i + len(f.text)
		}
	}
}

// held is how many bytes at the end of b may be the beginning of a value.
func held(b []byte, forms []form) int {
	most := 0
	for _, f := range forms {
		for n := min(len(f.text)-1, len(b)); n > most; n-- {
			if bytes.Equal(b[len(b)-n:], f.text[:n]) {
				most = n
				break
			}
		}
	}
	return most
}

// scrubbing keeps values out of an answer. Nil keeps nothing out.
type scrubbing struct{ secrets []*secret }

// encodingError says that an answer cannot be read.
type encodingError struct{ encoding string }

func (e *encodingError) Error() string {
	return fmt.Sprintf("the answer is encoded as %.40q and cannot be searched for credentials", e.encoding)
}

// answer has the headers, the body and the trailers of an answer scrubbed.
func (s *scrubbing) answer(r *http.Response) error {
	if s == nil {
		return nil
	}
	var forms []form
	for _, one := range s.secrets {
		forms = append(forms, one.forms...)
	}
	hideHeaders(r.Header, forms)
	switch encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); {
	case encoding == "" || encoding == "identity" || r.Body == nil || r.Body == http.NoBody || r.Request.Method == http.MethodHead:
	case encoding == "gzip" || encoding == "x-gzip":
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		r.ContentLength = -1
		r.Body = &unzipped{body: r.Body}
	default:
		return &encodingError{encoding}
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	clean := &scrubbed{src: r.Body, forms: forms, end: func() { hideHeaders(r.Trailer, forms) }}
	if both, ok := r.Body.(io.ReadWriteCloser); ok && r.StatusCode == http.StatusSwitchingProtocols {
		r.Body = struct {
			io.Reader
			io.WriteCloser
		}{clean, both}
		return nil
	}
	r.Body = clean
	return nil
}

// hideHeaders writes over values; a header that has one in its name is dropped.
func hideHeaders(h http.Header, forms []form) {
	for name, values := range h {
		lower := []byte(strings.ToLower(name))
		if slices.ContainsFunc(forms, func(f form) bool { return bytes.Contains(lower, bytes.ToLower(f.text)) }) {
			delete(h, name)
			continue
		}
		for i, v := range values {
			b := []byte(v)
			hide(b, forms)
			values[i] = string(b)
		}
	}
}

// unzipped is a body that was sent compressed though nobody asked for it.
type unzipped struct {
	body io.ReadCloser
	zip  *gzip.Reader
}

func (u *unzipped) Read(b []byte) (int, error) {
	if u.zip == nil {
		var err error
		if u.zip, err = gzip.NewReader(u.body); err != nil {
			return 0, err
		}
	}
	return u.zip.Read(b)
}

func (u *unzipped) Close() error { return u.body.Close() }

// scrubBuffer is how much of an answer is looked at together, in bytes.
const scrubBuffer = 8 << 10

// scrubbed is a body without values. Bytes wait only while they may be the
// beginning of one.
type scrubbed struct {
	src   io.ReadCloser
	forms []form
	end   func() // once, when all was read

	buf       []byte
	from, to  int // looked at and not given out yet
	err       error
	allocated bool
}

func (s *scrubbed) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for s.from == s.to {
		if s.err != nil {
			return 0, s.err
		}
		s.fill()
	}
	n := copy(p, s.buf[s.from:s.to])
	s.from += n
	return n, nil
}

// fill reads on: what was held back comes first.
func (s *scrubbed) fill() {
	if !s.allocated {
		longest := 0
		for _, f := range s.forms {
			longest = max(longest, len(f.text))
		}
		s.buf, s.allocated = make([]byte, 0, scrubBuffer+longest), true
	}
	rest := copy(s.buf[:cap(s.buf)], s.buf[s.to:])
	n, err := s.src.Read(s.buf[rest:cap(s.buf)])
	s.buf = s.buf[:rest+n]
	hide(s.buf, s.forms)
	s.from, s.to = 0, len(s.buf)
	if err != nil {
		s.err = err
		if s.end != nil && errors.Is(err, io.EOF) {
			s.end()
		}
		return
	}
	s.to -= held(s.buf, s.forms)
}

func (s *scrubbed) Close() error { return s.src.Close() }
