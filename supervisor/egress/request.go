package egress

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"agentsh/policy"
)

// meaning is a request as a server may understand it.
type meaning struct{ method, path string }

// Headers by which a client asks a server to take a request for another one.
// Frameworks read them with hyphens or underscores alike.
var (
	methodHeaders = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}
	pathHeaders   = []string{"X-Original-Url", "X-Rewrite-Url", "X-Original-Uri", "X-Rewrite-Uri"}
)

// meaningsMost is how many meanings one request may have.
const meaningsMost = 8

// meanings returns the request as it is written, then as its headers and its query
// override it. The caller records a refusal.
func meanings(r *http.Request) ([]meaning, *refusal) {
	if refused := wellFormed(r); refused != nil {
		return nil, refused
	}
	methods, paths := []string{r.Method}, []string{r.URL.EscapedPath()}
	for name, values := range r.Header {
		switch {
		case isOneOf(name, methodHeaders):
			methods = append(methods, values...)
		case isOneOf(name, pathHeaders):
			for _, v := range values {
				paths = append(paths, pathOf(v))
			}
		}
	}
	methods = append(methods, queryMethods(r.URL.RawQuery)...)
	if len(methods)*len(paths) > meaningsMost {
		return nil, malformed("the request asks to be read in more than "+strconv.Itoa(meaningsMost)+" ways", "send one method and one path")
	}
	var out []meaning
	for _, method := range methods {
		method = strings.ToUpper(strings.TrimSpace(method))
		if !policy.ValidMethod(method) {
			return nil, malformed(
				"the request asks to be read as a method that is none",
				"send the method in the request line, and no header or query parameter that overrides it",
			)
		}
		for _, path := range paths {
			out = append(out, meaning{method, path})
		}
	}
	return out, nil
}

// queryMethods returns the values of _method in a query. All servers end a pair at
// &, some also at a semicolon. Some keep an escape that encodes nothing, and read
// spaces, dots and brackets in a name as underscores.
func queryMethods(query string) []string {
	var out []string
	for pair := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		name = strings.TrimLeft(lenientUnescape(name), " ")
		name, _, _ = strings.Cut(name, "\x00")
		name = strings.TrimSuffix(strings.NewReplacer(".", "_", " ", "_", "[", "_").Replace(name), "_]")
		if strings.EqualFold(name, "_method") {
			out = append(out, lenientUnescape(value))
		}
	}
	return out
}

// lenientUnescape decodes a query. It keeps escapes that encode nothing.
func lenientUnescape(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '+':
			out.WriteByte(' ')
			continue
		case text[i] == '%' && i+2 < len(text):
			if c, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				out.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// wellFormed refuses requests that servers read in different ways, or that no rule
// can describe.
func wellFormed(r *http.Request) *refusal {
	switch {
	case !policy.ValidMethod(r.Method):
		return malformed("the method of the request is not a token in capital letters", "write the method in capital letters")
	case r.URL.Opaque != "" || !strings.HasPrefix(r.URL.Path,
		"/") && r.URL.Path != "" && (r.Method != http.MethodOptions || r.URL.Path != "*"):
		return malformed("the target of the request is no path", "begin the path with a slash")
	case strings.Contains(r.RequestURI, "#"):
		return malformed("the target of the request has a fragment", "leave the part from # on out")
	case r.URL.Scheme != "" && r.URL.Scheme != "http" && r.URL.Scheme != "https":
		return malformed("the target of the request is for another protocol than HTTP", "name a path, or a URL of http or https")
	case r.URL.Host != "" && r.Host != "" && !strings.EqualFold(r.URL.Host, r.Host):
		return malformed("the request names two hosts", "name one host")
	}
	for name := range r.Trailer {
		if isOneOf(name, methodHeaders) || isOneOf(name, pathHeaders) || isOneOf(name, []string{"Host"}) {
			return malformed("the request has "+name+" among its trailers", "send it as a header")
		}
	}
	return nil
}

// trailed is the body of a request with trailers. It drops trailers that were not
// announced, because they were not judged.
type trailed struct {
	io.ReadCloser
	trailer   http.Header
	announced []string
}

func newTrailed(r *http.Request) *trailed {
	return &trailed{r.Body, r.Trailer, slices.Collect(maps.Keys(r.Trailer))}
}

func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		maps.DeleteFunc(t.trailer, func(name string, _ []string) bool { return !slices.Contains(t.announced, name) })
	}
	return n, err
}

// isOneOf reports whether a header has one of the names. An underscore counts as a
// hyphen.
func isOneOf(name string, names []string) bool {
	name = strings.ReplaceAll(name, "_", "-")
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// pathOf is the path of a target that a header names.
func pathOf(target string) string {
	target = strings.TrimSpace(target)
	if strings.HasPrefix(target, "/") {
		return target
	}
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		return u.EscapedPath()
	}
	return "/" + target
}
