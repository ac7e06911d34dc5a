package socket

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

// maxFields bounds the fields of a file.
const maxFields = 8

// ReadPlace reads the key of a place from a file, and the lines after it: fields of the request that opens a WebSocket, as in
// "X-Blaxel-Preview-Token: TOKEN". A gateway before the place asks for them. They are secrets like the key.
func (a Address) ReadPlace(name string) (Address, *Key, error) {
	secret, more, err := readLines(name)
	if err != nil {
		return a, nil, err
	}
	key, err := NewKey(secret)
	if err != nil || more == "" {
		return a, key, err
	}
	h, err := parseFields(name, more)
	if err == nil {
		err = a.private()
	}
	return a.WithHeader(h), key, err
}

// parseFields reads fields, one in a line. Errors have no values.
func parseFields(name, lines string) (http.Header, error) {
	h := http.Header{}
	n := 1
	for line := range strings.SplitSeq(lines, "\n") {
		n++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		field, value, ok := strings.Cut(line, ":")
		field, value = textproto.CanonicalMIMEHeaderKey(field), strings.TrimSpace(value)
		wrong := func(why string) error { return fmt.Errorf("key: %s:%d: %s: write NAME: VALUE", name, n, why) }
		switch {
		case !ok || field == "" || value == "" || strings.Trim(strings.ToLower(field), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return nil, wrong("no field of a request")
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, wrong("the value has characters that are not ASCII")
		case field == "Host" || field == "Connection" || field == "Upgrade" || strings.HasPrefix(field, "Sec-Websocket-"):
			return nil, wrong("agentctl writes " + field + " itself")
		case h[field] != nil:
			return nil, wrong(field + " is there twice")
		}
		if h[field] = []string{value}; len(h) > maxFields {
			return nil, wrong("too many fields")
		}
	}
	return h, nil
}

// private rejects an address at which others on the way would see fields.
func (a Address) private() error {
	switch a.scheme {
	case "wss":
		return nil
	case "ws":
		u, err := url.Parse(a.text)
		if err != nil {
			return errors.New("the address of the place is no URL")
		}
		if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsLoopback() {
			return nil
		}
		return errors.New("the file of the key has fields of requests, which others would see on the way: write wss://HOST")
	}
	return fmt.Errorf("the file of the key has fields of requests, and only ws:// and wss:// have requests, not %s://", a.scheme)
}
