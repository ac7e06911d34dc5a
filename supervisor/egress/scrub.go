package egress

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"strings"
)

// form is one encoding of a value, and the text of the same length that replaces
// it.
type form struct{ text, shown []byte }

// formsOf returns the encodings in which servers repeat a value: unchanged, escaped
// for URLs, JSON and HTML, in hex, and as a part of a longer text in base64.
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
	for _, text := range []string{url.QueryEscape(c.Value), url.PathEscape(c.Value), strings.ReplaceAll(url.QueryEscape(c.Value), "+",
		"%20")} {
		add(text)
		add(lowerEscapes(text))
	}
	for _, text := range jsonTexts(c.Value) {
		add(text)
		add(strings.ReplaceAll(text, "/", `\/`))
	}
	for _, quotes := range [][2]string{{"&#34;", "&#39;"}, {"&quot;", "&#x27;"}, {"&quot;", "&#39;"}, {"&quot;", "&#039;"}, {"&quot;",
		"&apos;"}, {`"`, "'"}} {
		add(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, quotes[0], "'", quotes[1]).Replace(c.Value))
	}
	add(hex.EncodeToString([]byte(c.Value)))
	add(strings.ToUpper(hex.EncodeToString([]byte(c.Value))))
	for before := range 3 {
		// Only the characters of base64 that do not depend on the neighbours.
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

// lowerEscapes writes percent-encodings in lower case, as some servers do.
func lowerEscapes(text string) string {
	b := []byte(text)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return string(b)
}

// jsonTexts returns a text as JSON libraries write it: with the special characters
// of HTML unchanged or escaped, and with = and ' escaped too.
func jsonTexts(value string) []string {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	quoted, err := json.Marshal(value)
	if err != nil || e.Encode(value) != nil {
		return nil // a string has no such error
	}
	inner := string(quoted[1 : len(quoted)-1])
	bare := strings.TrimSuffix(plain.String(), "\n")
	all := strings.NewReplacer("=", `\u003d`, "'", `\u0027`).Replace(inner)
	out := []string{inner, bare[1 : len(bare)-1], all}
	for _, text := range out {
		upper := strings.NewReplacer(`\u003c`, `\u003C`, `\u003d`, `\u003D`, `\u003e`, `\u003E`).Replace(text)
		out = append(out, upper, strings.ReplaceAll(upper, "+", `\u002B`))
	}
	return out
}

// clean returns a text without values.
func (s *secrets) clean(text string) string {
	if s.values == nil {
		return text
	}
	b := []byte(text)
	s.values.hide(b)
	return string(b)
}

// scrubbing removes values from an answer. Nil removes nothing.
type scrubbing struct {
	values func() *needles // those of now: a credential may be renewed during a long answer
	whole  bool            // the answer comes from an endpoint and must be complete
}

// encodingError says that an answer has an encoding that is not decoded.
type encodingError struct{ encoding string }

func (e *encodingError) Error() string {
	return fmt.Sprintf("the answer is encoded as %.40q and cannot be searched for credentials", e.encoding)
}

// answer scrubs the status, the headers, the body and the trailers of an answer.
func (s *scrubbing) answer(r *http.Response) error {
	if s == nil {
		return nil
	}
	r.Status = strconv.Itoa(r.StatusCode) + " " + http.StatusText(r.StatusCode) // a server words its own
	s.headers(r.Header)
	s.headers(r.Trailer)
	if s.whole &&
		(r.StatusCode == http.StatusPartialContent || strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/byteranges")) {
		return errPart
	}
	if r.Body == nil || r.Body == http.NoBody || r.Request.Method == http.MethodHead {
		return nil
	}
	if err := s.decode(r); err != nil {
		return err
	}
	clean := &scrubbed{src: r.Body, values: s.values, end: func() { s.headers(r.Trailer) }}
	if both, ok := r.Body.(io.ReadWriteCloser); ok && r.StatusCode == http.StatusSwitchingProtocols {
		r.Body = &scrubbedBoth{clean, both}
		return nil
	}
	r.Body = clean
	return nil
}

// errPart says that an endpoint answered with a part that was not asked for.
var errPart = errors.New("the answer is a part of a resource, in which a part of a credential could not be recognised")

// decode decompresses a body. The request did not ask for compression.
func (s *scrubbing) decode(r *http.Response) error {
	var open func(io.Reader) (io.Reader, error)
	switch encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
		return nil
	case "gzip", "x-gzip":
		open = func(in io.Reader) (io.Reader, error) { return gzip.NewReader(in) }
	case "deflate":
		open = func(in io.Reader) (io.Reader, error) { return zlib.NewReader(in) }
	default:
		return &encodingError{encoding}
	}
	r.Header.Del("Content-Encoding")
	r.Header.Del("Content-Length")
	r.ContentLength = -1
	r.Body = &unpacked{body: r.Body, open: open}
	return nil
}

// headers overwrites values. It drops a header that has one in its name.
func (s *scrubbing) headers(h http.Header) {
	needles := s.values()
	for name, values := range h {
		if needles.containsFold([]byte(name)) {
			delete(h, name)
			continue
		}
		for i, v := range values {
			b := []byte(v)
			needles.hide(b)
			values[i] = string(b)
		}
	}
}

// unpacked is a decompressed body.
type unpacked struct {
	body io.ReadCloser
	open func(io.Reader) (io.Reader, error)
	in   io.Reader
}

func (u *unpacked) Read(b []byte) (int, error) {
	if u.in == nil {
		var err error
		if u.in, err = u.open(u.body); err != nil {
			return 0, err
		}
	}
	return u.in.Read(b)
}

func (u *unpacked) Close() error { return u.body.Close() }

// scrubbedBoth is the connection after an upgrade. Bytes of the server are
// scrubbed.
type scrubbedBoth struct {
	io.Reader
	io.WriteCloser
}

// CloseWrite ends what goes to the server.
func (s *scrubbedBoth) CloseWrite() error {
	if w, ok := s.WriteCloser.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return s.Close()
}

// scrubbed is a body without values. Bytes are held back only while they may be the
// beginning of a value.
type scrubbed struct {
	src    io.ReadCloser
	values func() *needles
	end    func() // once, when all was read

	waiting []byte // read, and perhaps the beginning of a value
	ready   []byte // searched, but not returned yet: the reader's buffer was small
	err     error
}

func (s *scrubbed) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.ready) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		size := 2 * max(s.values().longest, len(s.waiting)) // what waits may be of longer values before
		if len(p) >= size {
			if n := s.fill(p); n > 0 {
				return n, nil
			}
			continue
		}
		buf := make([]byte, size)
		s.ready = buf[:s.fill(buf)]
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// fill reads into b, which is longer than waiting can be. It returns how many bytes
// of it can be returned to the reader.
func (s *scrubbed) fill(b []byte) int {
	rest := copy(b, s.waiting)
	n, err := s.src.Read(b[rest:])
	b = b[:rest+n]
	needles := s.values() // values may have come while this waited
	needles.hide(b)
	if err != nil {
		s.waiting, s.err = nil, err
		if s.end != nil && errors.Is(err, io.EOF) {
			s.end()
		}
		return len(b)
	}
	held := needles.partial(b)
	s.waiting = append(s.waiting[:0], b[len(b)-held:]...)
	return len(b) - held
}

func (s *scrubbed) Close() error { return s.src.Close() }
