package egress

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// Credential is a secret. The session has only its placeholder.
type Credential struct {
	Name        string // shown in events and refusals
	Placeholder string // what the session holds: 16 or more letters, digits, - and _
	Value       string // the secret, 8 bytes or more; in no event, error or answer
	// Endpoints are the hosts that may get the value: a name or
	// *.name, with :port unless that is 443.
	Endpoints []string
	// Exactly one of Header, Query and Path names the position of the placeholder.
	Header string // the only header
	Query  string // the only query parameter
	Path   bool   // the path of the request's target
}

// secret is a credential prepared for searches.
type secret struct {
	Credential
	mark      []byte // the placeholder
	endpoints []endpoint
	forms     []form // encodings of the value that are searched for
	former    []form // of values before
}

// endpoint is a host that may get a value.
type endpoint struct {
	name string
	addr policy.Host
	tail bool // names below name
	port uint16
}

// secrets are the credentials of a session.
type secrets struct {
	list    []*secret
	longest int      // of the placeholders
	values  *needles // searched for in answers; nil without credentials
}

const (
	shortestMark  = 16
	shortestValue = wire.ShortestCredential
)

func newSecrets(list []Credential) (secrets, error) {
	var s secrets
	for _, c := range list {
		one, err := newSecret(c)
		if err != nil {
			return secrets{}, fmt.Errorf("credential %s: %w", c.Name, err)
		}
		for _, other := range s.list {
			if strings.Contains(one.Placeholder, other.Placeholder) || strings.Contains(other.Placeholder, one.Placeholder) {
				return secrets{}, fmt.Errorf("credentials %s and %s: their placeholders cannot be told apart", other.Name, one.Name)
			}
		}
		s.list = append(s.list, one)
		s.longest = max(s.longest, len(one.mark))
	}
	s.search()
	return s, nil
}

// search prepares the search for values.
func (s *secrets) search() {
	var all []form
	for _, one := range s.list {
		all = append(append(all, one.forms...), one.former...)
	}
	if len(all) > 0 {
		s.values = newNeedles(all)
	}
}

// maxFormer bounds the encodings of former values of one credential that are searched for.
const maxFormer = 1000

// renewed are the credentials with new values. The former ones are searched for in answers as before:
// a server may still repeat them.
func (s *secrets) renewed(values []wire.CredentialValue) (*secrets, error) {
	out := &secrets{list: slices.Clone(s.list), longest: s.longest}
	for _, v := range values {
		i := slices.IndexFunc(out.list, func(one *secret) bool { return one.Name == v.Name })
		if i < 0 {
			return nil, fmt.Errorf("credential %.64q: the session has none of this name", v.Name)
		}
		old := out.list[i]
		c := old.Credential
		if c.Value == v.Value {
			continue
		}
		c.Value = v.Value
		one, err := newSecret(c)
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", c.Name, err)
		}
		one.former = slices.Concat(old.forms, old.former)
		one.former = one.former[:min(len(one.former), maxFormer)]
		out.list[i] = one
	}
	out.search()
	return out, nil
}

// Renew replaces the values of credentials, for all requests that come later. If one of them is not
// sound, nothing changes. Errors have no values.
func (p *Proxy) Renew(values []wire.CredentialValue) error {
	p.renewing.Lock()
	defer p.renewing.Unlock()
	next, err := p.judge.secrets().renewed(values)
	if err != nil {
		return err
	}
	p.judge.hidden.Store(next)
	return nil
}

func newSecret(c Credential) (*secret, error) {
	switch {
	case c.Name == "":
		return nil, errors.New("it has no name")
	case len(c.Placeholder) < shortestMark || strings.Trim(c.Placeholder,
		"-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "":
		return nil, fmt.Errorf("a placeholder is %d or more letters, digits, - and _", shortestMark)
	case len(c.Value) < shortestValue:
		return nil, fmt.Errorf("a value of less than %d bytes cannot be told from other text", shortestValue)
	case strings.ContainsFunc(c.Value, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return nil, errors.New("the value has control characters")
	case strings.Contains(c.Value, c.Placeholder):
		return nil, errors.New("the value holds its placeholder")
	case c.positions() == 0:
		return nil, errors.New("it has no place: name the header or the query parameter that it goes to, or let it stand in the path")
	case c.positions() > 1:
		return nil, errors.New("it has more than one place: name one of a header, a query parameter and the path")
	case len(c.Endpoints) == 0:
		return nil, errors.New("it has no endpoints")
	}
	s := &secret{Credential: c, mark: []byte(c.Placeholder), forms: formsOf(c)}
	for _, text := range c.Endpoints {
		e, err := parseEndpoint(text)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", text, err)
		}
		s.endpoints = append(s.endpoints, e)
	}
	return s, nil
}

// positions counts the positions that are given.
func (c *Credential) positions() int {
	n := 0
	for _, given := range []bool{c.Header != "", c.Query != "", c.Path} {
		if given {
			n++
		}
	}
	return n
}

func parseEndpoint(text string) (endpoint, error) {
	rest, tail := strings.CutPrefix(text, "*.")
	to, err := parseDestination(rest, "443")
	if err != nil {
		return endpoint{}, err
	}
	if tail && to.host.Name() == "" {
		return endpoint{}, errors.New("no names are below an address")
	}
	return endpoint{name: to.host.Name(), addr: to.host, tail: tail, port: to.port}, nil
}

func (s *secret) at(host policy.Host, port uint16) bool {
	for _, e := range s.endpoints {
		if e.port != port {
			continue
		}
		if e.tail && strings.HasSuffix(host.Name(), "."+e.name) || !e.tail && host == e.addr {
			return true
		}
	}
	return false
}

// May reports whether the value may be sent to host:port. Without a port it is 443.
func (c Credential) May(address string) bool {
	s, err := newSecret(c)
	if err != nil {
		return false
	}
	to, err := parseDestination(address, "443")
	return err == nil && s.at(to.host, to.port)
}

// endpoint reports whether a credential may be sent to a destination.
func (s *secrets) endpoint(to destination) bool {
	for _, one := range s.list {
		if one.at(to.host, to.port) {
			return true
		}
	}
	return false
}

// in finds a placeholder in a text.
func (s *secrets) in(text []byte) *secret {
	for _, one := range s.list {
		if bytes.Contains(text, one.mark) {
			return one
		}
	}
	return nil
}

// inName finds a placeholder in a name in lower case.
func (s *secrets) inName(name string) *secret {
	for _, one := range s.list {
		if strings.Contains(name, strings.ToLower(one.Placeholder)) {
			return one
		}
	}
	return nil
}

// misplaced is the refusal of a placeholder in another position than its own.
func (s *secret) misplaced(where string) *refusal {
	place := "the path of a request"
	switch {
	case s.Header != "":
		place = "the header " + s.Header
	case s.Query != "":
		place = "the query parameter " + s.Query
	}
	return against("credential "+s.Name, "the placeholder of the credential "+s.Name+" stands in "+where,
		"it may stand in "+place+" over TLS to "+strings.Join(s.Endpoints, ", "))
}

// ready replaces placeholders in a request by their values. It refuses placeholders
// in other positions.
func (x *exchange) ready(r *http.Request) *refusal {
	all := x.f.client.p.judge.secrets()
	if len(all.list) == 0 {
		return nil
	}
	host, _ := policy.ParseHost(x.route.serverName()) // it is one
	var here []*secret
	for _, s := range all.list {
		if x.f.secured && s.at(host, x.f.to.port) {
			here = append(here, s)
		}
	}
	swap := func(text, where string, in func(*secret) bool, encode func(string) string) (string, *refusal) {
		for _, s := range here {
			if in(s) && strings.Contains(text, s.Placeholder) {
				text = strings.ReplaceAll(text, s.Placeholder, encode(s.Value))
			}
		}
		if s := all.in([]byte(text)); s != nil {
			return "", s.misplaced(where + " to " + x.route.shown())
		}
		return text, nil
	}
	if refused := all.swapHeaders(r.Header, swap); refused != nil {
		return refused
	}
	if refused := swapURL(r.URL, swap); refused != nil {
		return refused
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &watchedBody{ReadCloser: r.Body, x: x, finder: finder{secrets: all}}
	}
	x.scrub = &scrubbing{values: x.f.client.p.judge.values, whole: len(here) > 0}
	// The answer must be readable, and that of an endpoint complete: a part of it
	// could hold a part of a value.
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Del("Sec-Websocket-Extensions")
	if x.scrub.whole {
		r.Header.Del("Range")
		r.Header.Del("If-Range")
	}
	return nil
}

// swapper replaces placeholders in one text; in reports whether the text is the
// position of a credential.
type swapper func(text, where string, in func(*secret) bool, encode func(string) string) (string, *refusal)

func plainText(s string) string { return s }

func (s *secrets) swapHeaders(h http.Header, swap swapper) *refusal {
	for name, values := range h {
		if one := s.inName(strings.ToLower(name)); one != nil {
			return one.misplaced("the name of a header")
		}
		in := func(one *secret) bool {
			return one.Header != "" && strings.EqualFold(one.Header, name)
		}
		for i, value := range values {
			var refused *refusal
			if values[i], refused = swapBasic(value, name, in, swap); refused != nil {
				return refused
			}
			if values[i], refused = swap(values[i], "the header "+name, in, plainText); refused != nil {
				return refused
			}
		}
	}
	return nil
}

// swapBasic replaces placeholders inside basic authentication, RFC 7617.
func swapBasic(value, name string, in func(*secret) bool, swap swapper) (string, *refusal) {
	scheme, encoded, found := strings.Cut(value, " ")
	if !found || !strings.EqualFold(scheme, "basic") {
		return value, nil
	}
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return value, nil
	}
	swapped, refused := swap(string(pair), "the header "+name, in, plainText)
	if refused != nil || swapped == string(pair) {
		return value, refused
	}
	return scheme + " " + base64.StdEncoding.EncodeToString([]byte(swapped)), nil
}

func swapURL(u *url.URL, swap swapper) *refusal {
	inPath := func(s *secret) bool { return s.Path }
	path, refused := swap(u.EscapedPath(), "the path of a request", inPath, url.PathEscape)
	if refused != nil {
		return refused
	}
	if path != u.EscapedPath() {
		plain, err := url.PathUnescape(path)
		if err != nil {
			return against("request", "the path of the request is malformed", "")
		}
		u.Path, u.RawPath = plain, path
	}
	if u.RawQuery == "" {
		return nil
	}
	pairs := strings.Split(u.RawQuery, "&")
	for i, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		in := func(s *secret) bool { return s.Query != "" && s.Query == name }
		if pairs[i], refused = swap(pair, "the query of a request", in, url.QueryEscape); refused != nil {
			return refused
		}
	}
	u.RawQuery = strings.Join(pairs, "&")
	return nil
}
