package policy

import (
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// webPath is the path of an HTTP request with all its possible interpretations
// by servers, the readings. An allow rule must match every strict reading. A
// deny rule matches if it matches one reading of any kind, ignoring case.
type webPath struct {
	given    string // percent-decoded once, as in rules and messages
	lower    string // given in lower case
	readings []reading
	// unclear is set if the list of readings may be incomplete: the path is not
	// valid text, or it nests more encodings than servers decode.
	unclear bool
}

// reading is one interpretation of a path by a server.
type reading struct {
	text, lower string
	loose       bool // for deny rules only
}

const (
	readingsMost = 64 // of one path
	decodesMost  = 3  // percent-decodings of one path
)

// readPath lists the readings of the path of an HTTP request. target is as the
// client wrote it. Its query is ignored.
//
// The readings are all results of these steps, in any order and number:
//
//   - percent-decoding
//   - a backslash becomes a slash
//   - several slashes become one
//   - dot segments are resolved
//   - matrix parameters are removed, up to the next slash or up to the end
//   - an encoded ? or # ends the path
//   - compatibility characters of Unicode become ASCII
//
// Deny rules also check the path as written, and without dots, spaces and
// slashes at the end of segments.
//
// ok is false if target is not a path of a request.
func readPath(target string) (webPath, bool) {
	if at := strings.IndexAny(target, "?#"); at >= 0 {
		target = target[:at]
	}
	if target == "" {
		target = "/"
	}
	if target[0] != '/' {
		return webPath{}, false
	}
	if singleReading(target) {
		return webPath{given: target, lower: strings.ToLower(target)}, true
	}
	if _, err := url.PathUnescape(target); err != nil {
		return webPath{}, false
	}
	given, ok := decodePath(target)
	p := webPath{given: given, lower: strings.ToLower(given), unclear: !ok}
	if !p.unclear {
		p.expand(given, 1, false)
		p.expand(target, 0, true)
	}
	return p, true
}

// singleReading reports whether every server reads a path exactly as written.
func singleReading(path string) bool {
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c <= ' ' || c >= 0x7f || c == '%' || c == ';' || c == '\\':
			return false
		case c == '/' && i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.'):
			return false
		case c == '.' && (i+1 == len(path) || path[i+1] == '/'):
			return false
		}
	}
	return true
}

// decodePath decodes percent-encoding once. A percent sign that encodes nothing
// stays. It returns false if the result is not valid text.
func decodePath(path string) (string, bool) {
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] != '%' {
			out.WriteByte(path[i])
			continue
		}
		c, ok := hexByte(path[i+1:])
		switch {
		case ok:
			out.WriteByte(c)
			i += 2
		case i+5 < len(path) && path[i+1]|0x20 == 'u' && isHex(path[i+2:i+6]): // decoded by old versions of IIS
			return path, false
		default:
			out.WriteByte('%')
		}
	}
	decoded := out.String()
	if !utf8.ValidString(decoded) {
		return path, false
	}
	for i := 0; i < len(decoded); i++ {
		if c := decoded[i]; c < ' ' || c == 0x7f {
			return path, false
		}
	}
	return decoded, true
}

// hexByte parses two hexadecimal digits.
func hexByte(s string) (byte, bool) {
	if len(s) < 2 || !isHex(s[:2]) {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:2], 16, 8)
	return byte(n), err == nil
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// pending is a reading whose further readings are not computed yet.
type pending struct {
	text    string
	decodes int
}

// expand adds the readings that follow from one reading.
func (p *webPath) expand(from string, decodes int, loose bool) {
	known := map[string]bool{p.given: true}
	for _, r := range p.readings {
		known[r.text] = true
	}
	queue := []pending{{from, decodes}}
	add := func(text string, decodes int) {
		if text == "" || text[0] != '/' {
			text = "/" + text
		}
		if known[text] {
			return
		}
		known[text] = true
		queue = append(queue, pending{text, decodes})
		p.readings = append(p.readings, reading{text: text, lower: strings.ToLower(text), loose: loose})
	}
	add(from, decodes)
	if loose { // readings that follow from the strict ones by loose steps
		queue = append(queue, pending{p.given, 1})
		for _, r := range p.readings {
			queue = append(queue, pending{r.text, 1})
		}
	}
	for len(queue) > 0 && !p.unclear {
		at := queue[0]
		queue = queue[1:]
		if strings.Contains(at.text, "%") {
			decoded, ok := decodePath(at.text)
			p.unclear = !ok || decoded != at.text && at.decodes >= decodesMost
			add(decoded, at.decodes+1)
		}
		for _, step := range strictSteps {
			add(step(at.text), at.decodes)
		}
		if loose {
			add(trimSegments(at.text), at.decodes)
			add(strings.TrimRight(at.text, "/"), at.decodes)
		}
		p.unclear = p.unclear || len(p.readings) > readingsMost
	}
}

var strictSteps = []func(string) string{
	func(s string) string { return strings.ReplaceAll(s, `\`, "/") },
	mergeSlashes,
	resolveDots,
	cutParameters,
	func(s string) string { return cutAt(s, ";") },
	func(s string) string { return cutAt(s, "?#") },
	foldWidth,
}

func cutAt(s, any string) string {
	if at := strings.IndexAny(s, any); at >= 0 {
		return s[:at]
	}
	return s
}

func mergeSlashes(s string) string {
	for strings.Contains(s, "//") {
		s = strings.ReplaceAll(s, "//", "/")
	}
	return s
}

// resolveDots removes dot segments as in RFC 3986 section 5.2.4. Empty segments
// stay.
func resolveDots(s string) string {
	if !strings.Contains(s, "/.") {
		return s
	}
	segments := strings.Split(s[1:], "/")
	out := segments[:0]
	for i, segment := range segments {
		last := i == len(segments)-1
		switch {
		case segment == ".." && len(out) > 0:
			out = out[:len(out)-1]
		case segment != "." && segment != "..":
			out = append(out, segment)
			continue
		}
		if last {
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/")
}

// cutParameters removes matrix parameters: from a semicolon to the next slash.
func cutParameters(s string) string {
	if !strings.Contains(s, ";") {
		return s
	}
	segments := strings.Split(s, "/")
	for i, segment := range segments {
		segments[i] = cutAt(segment, ";")
	}
	return strings.Join(segments, "/")
}

// foldWidth replaces compatibility characters by ASCII, for example full-width
// ones.
func foldWidth(s string) string {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return norm.NFKC.String(s)
		}
	}
	return s
}

// trimSegments removes dots and spaces at the end of segments. Windows ignores
// them.
func trimSegments(s string) string {
	segments := strings.Split(s, "/")
	for i, segment := range segments {
		segments[i] = strings.TrimRight(segment, ". ")
	}
	return strings.Join(segments, "/")
}

// permitsPath reports whether an allow rule matches a path. Every strict
// reading must match one of the patterns.
func (m *NetworkSelector) permitsPath(p *webPath) bool {
	if p.unclear || !m.matchesPath(p.given) {
		return false
	}
	for i := range p.readings {
		if r := &p.readings[i]; !r.loose && !m.matchesPath(r.text) {
			return false
		}
	}
	return true
}

func (m *NetworkSelector) matchesPath(text string) bool {
	for _, g := range m.Paths {
		if g.Match(text) {
			return true
		}
	}
	return false
}

// refusesPath reports whether a deny rule matches a path. It also returns the
// matching reading, unless that is the path as given.
func (m *NetworkSelector) refusesPath(p *webPath) (string, bool) {
	switch {
	case p.unclear:
		return "", true
	case m.matchesFolded(p.given, p.lower):
		return "", true
	}
	if trimmed := strings.TrimSuffix(p.given, "/"); trimmed != "" && m.matchesFolded(trimmed, strings.TrimSuffix(p.lower, "/")) {
		return trimmed, true
	}
	for i := range p.readings {
		if r := &p.readings[i]; m.matchesFolded(r.text, r.lower) {
			return r.text, true
		}
	}
	return "", false
}

func (m *NetworkSelector) matchesFolded(text, lower string) bool {
	for _, g := range m.Paths {
		if g.Match(text) {
			return true
		}
	}
	for _, g := range m.LowerPaths {
		if g.Match(lower) {
			return true
		}
	}
	return false
}

// ValidMethod reports whether a method has the form that servers expect: a
// token (RFC 9110 section 5.6.2) without lower-case letters.
func ValidMethod(method string) bool {
	if method == "" || len(method) > 64 {
		return false
	}
	for i := 0; i < len(method); i++ {
		c := method[i]
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return true
}
