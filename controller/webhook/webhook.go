// Package webhook has a server of the operator answer questions of policies. Requests and answers
// are signed with one key, as Standard Webhooks (https://www.standardwebhooks.com) says: HMAC-SHA256
// over the id, the time and the body.
//
// Whatever is not a fresh answer with the right signature to the question that was asked allows
// nothing.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Headers of requests and answers.
const (
	headerID        = "Webhook-Id"
	headerTime      = "Webhook-Timestamp" // seconds since 1970
	headerSignature = "Webhook-Signature" // "v1," and the code in base64; there may be several, separated by spaces
)

// Types of bodies. They keep a request from being an answer.
const (
	typeRequest = "approval.request"
	typeAnswer  = "approval.answer"
)

// Bounds.
const (
	keyPrefix   = "whsec_"
	shortestKey = 24
	longestKey  = 64
	maxKeyFile  = 4 << 10
	maxAnswer   = 16 << 10
	maxName     = 100 // bytes of the name of who answered
	maxReason   = 400
	tolerance   = 5 * time.Minute // between the clocks of both sides
	connectTime = 10 * time.Second
	maxHeaders  = 64 << 10
	attemptTime = time.Minute // of one request: a connection that is dead is found out, and the server is asked again
)

// Sender asks a server. It is safe for concurrent use.
type Sender struct {
	url    string
	key    []byte
	client *http.Client
	most   time.Duration // for one request
	now    func() time.Time
	after  func(time.Duration) <-chan time.Time
}

// New returns a sender for a URL: https, or http for this machine. The key is in a file that others
// may not read.
func New(address, keyFile string) (*Sender, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Hostname() == "":
		return nil, fmt.Errorf("%.200q is no URL: write it as https://approvals.example.com/agents", address)
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("the URL of %s has a user or a fragment: the key alone tells who asks", u.Host)
	case u.Scheme != "https" && (u.Scheme != "http" || !isLocal(u.Hostname())):
		return nil, fmt.Errorf("%s://%s is not encrypted: write https, or the address of this machine", u.Scheme, u.Host)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	t, _ := http.DefaultTransport.(*http.Transport)
	t = t.Clone()
	t.TLSHandshakeTimeout, t.MaxConnsPerHost, t.MaxIdleConnsPerHost = connectTime, 32, 4
	t.MaxResponseHeaderBytes, t.DisableCompression = maxHeaders, true // what is signed is what was sent
	dialer := &net.Dialer{Timeout: connectTime}
	if u.Scheme == "http" {
		dialer.Control = onlyLocal
		t.Proxy = nil
	}
	t.DialContext = dialer.DialContext
	return &Sender{url: u.String(), key: key, most: attemptTime, now: time.Now, after: time.After, client: &http.Client{
		Transport: t,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // another server would not have been named by the operator
		},
	}}, nil
}

func isLocal(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// onlyLocal refuses connections that leave this machine, whatever a name server says of localhost.
func onlyLocal(_, address string, _ syscall.RawConn) error {
	if at, err := netip.ParseAddrPort(address); err != nil || !at.Addr().IsLoopback() {
		return fmt.Errorf("%s is not this machine: write https", address)
	}
	return nil
}

// readKey reads a key: whsec_ and 24 to 64 bytes in base64.
func readKey(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is refused below
	if err != nil {
		return nil, fmt.Errorf("key of the webhook: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("key of the webhook: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o027 != 0 {
		return nil, fmt.Errorf("key of the webhook: %s may be read or written by others: chmod 600 %s", name, name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("key of the webhook: %w", err)
	}
	encoded, found := strings.CutPrefix(strings.TrimSpace(string(data)), keyPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !found || err != nil || len(key) < shortestKey || len(key) > longestKey {
		return nil, fmt.Errorf("key of the webhook: %s has no key of %d to %d bytes: echo \"%s$(head -c 32 /dev/urandom | base64)\" > %s",
			name, shortestKey, longestKey, keyPrefix, name)
	}
	return key, nil
}

// Run describes the run whose sandbox asks.
type Run struct {
	RunID   string            `json:"run_id"`
	Agent   string            `json:"agent"`
	Harness string            `json:"harness"`
	Repo    string            `json:"repo"`
	Batch   string            `json:"batch,omitempty"` // id
	Name    string            `json:"name,omitempty"`  // of the run in the batch
	Labels  map[string]string `json:"labels,omitempty"`
}

// request is the body of a request.
type request struct {
	Type     string        `json:"type"`
	Version  int           `json:"version"` // 1
	Run      Run           `json:"run"`
	Question wire.Question `json:"question"`
	Asked    time.Time     `json:"asked"`
	Ends     time.Time     `json:"ends"` // it is denied then
}

// answer is the body of an answer.
type answer struct {
	Type     string `json:"type"`
	Decision string `json:"decision"`         // allow or deny
	By       string `json:"by"`               // who decided
	Reason   string `json:"reason,omitempty"` // of a denial, for the agent
	// Always allows the same in the same run later too.
	Always bool `json:"always,omitempty"`
}

// Refusal is the error of an answer that allows nothing, and that another request would not make
// better.
type Refusal struct{ Reason string }

func (r *Refusal) Error() string { return r.Reason }

// Ask asks a question until there is an answer, or until ctx ends. A server that has not decided yet
// answers with status 202 and is asked again with the same id. So is one that is away. The error is
// a [*Refusal], or that of ctx with what was wrong last.
func (s *Sender) Ask(ctx context.Context, run Run, p wire.Pending) (wire.ApprovalAnswer, error) {
	none := wire.ApprovalAnswer{ID: p.ID}
	body, err := json.Marshal(request{Type: typeRequest, Version: 1, Run: run, Question: p.Question, Asked: p.Asked, Ends: p.Ends})
	if err != nil {
		return none, err
	}
	id := "msg_" + rand.Text()
	var last error
	for wait := time.Second; ; wait = min(2*wait, 15*time.Second) {
		got, again, err := s.once(ctx, id, body)
		switch {
		case err == nil && again == 0:
			return wire.ApprovalAnswer{ID: p.ID, Allow: got.Decision == "allow", Always: got.Always, By: got.By, Reason: got.Reason}, nil
		case errors.As(err, new(*Refusal)):
			return none, err
		case ctx.Err() != nil:
			return none, errors.Join(context.Cause(ctx), last)
		case err == nil:
			wait, last = again, nil
		default:
			last = err
		}
		select {
		case <-s.after(wait):
		case <-ctx.Done():
			return none, errors.Join(context.Cause(ctx), last)
		}
	}
}

// once sends a request. again is the time after which the server wants to be asked again; 0: it has
// decided.
func (s *Sender) once(ctx context.Context, id string, body []byte) (got answer, again time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.most, fmt.Errorf("it took more than %s", s.most))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return got, 0, &Refusal{err.Error()}
	}
	at := s.now()
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "agentctl")
	r.Header.Set(headerID, id)
	r.Header.Set(headerTime, strconv.FormatInt(at.Unix(), 10))
	r.Header.Set(headerSignature, "v1,"+s.sign(id, r.Header.Get(headerTime), body))
	res, err := s.client.Do(r)
	if err != nil {
		return got, 0, fmt.Errorf("the webhook does not answer: %w", withoutURL(err))
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return got, 0, fmt.Errorf("the webhook does not answer: %w", err)
	}
	switch code := res.StatusCode; {
	case code == http.StatusAccepted:
		return got, retryAfter(res.Header.Get("Retry-After")), nil
	case code == http.StatusTooManyRequests || code >= 500:
		return got, 0, fmt.Errorf("the webhook answers with status %d", code)
	case code != http.StatusOK:
		return got, 0, &Refusal{fmt.Sprintf("the webhook answers with status %d", code)}
	case len(data) > maxAnswer:
		return got, 0, &Refusal{"the answer of the webhook is too long"}
	}
	if err := s.verify(id, res.Header, data); err != nil {
		return got, 0, err
	}
	got, err = readAnswer(data)
	return got, 0, err
}

// retryAfter reads the seconds after which a server wants to be asked again, 1 to 60.
func retryAfter(value string) time.Duration {
	n, err := strconv.Atoi(value)
	if err != nil {
		n = 5
	}
	return time.Duration(min(max(n, 1), 60)) * time.Second
}

// withoutURL is an error of a request without the URL, whose path may be a secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// sign is the code of a body in base64.
func (s *Sender) sign(id, at string, body []byte) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// verify checks that an answer was signed with the key, for the request with an id, a short time ago.
func (s *Sender) verify(id string, h http.Header, body []byte) error {
	at := h.Get(headerTime)
	seconds, err := strconv.ParseInt(at, 10, 64)
	switch {
	case h.Get(headerID) != id:
		return &Refusal{"the answer of the webhook belongs to another question"}
	case err != nil:
		return &Refusal{"the answer of the webhook has no time"}
	}
	want := []byte(s.sign(id, at, body))
	signed := false
	for one := range strings.FieldsSeq(h.Get(headerSignature)) {
		if code, v1 := strings.CutPrefix(one, "v1,"); v1 && hmac.Equal([]byte(code), want) {
			signed = true
		}
	}
	if !signed {
		return &Refusal{"the answer of the webhook is not signed with the key"}
	}
	if age := s.now().Sub(time.Unix(seconds, 0)); age > tolerance || age < -tolerance {
		return &Refusal{"the answer of the webhook is from another time: check the clocks"}
	}
	return nil
}

// readAnswer reads the body of an answer strictly.
func readAnswer(data []byte) (a answer, err error) {
	bad := func(why string) error { return &Refusal{"the answer of the webhook " + why} }
	if !hasOnly(data, "type", "decision", "by", "reason", "always") || json.Unmarshal(data, &a) != nil {
		return answer{}, bad("is not one JSON object of type, decision, by, reason and always")
	}
	switch {
	case a.Type != typeAnswer:
		return answer{}, bad("has not the type " + typeAnswer)
	case a.Decision != "allow" && a.Decision != "deny":
		return answer{}, bad("has no decision: allow or deny")
	case a.By == "" || len(a.By) > maxName || text.Visible(a.By) != a.By:
		return answer{}, bad("does not say who decided")
	case len(a.Reason) > maxReason || text.Visible(a.Reason) != a.Reason:
		return answer{}, bad("has a reason that is too long or not plain text")
	case a.Always && a.Decision != "allow":
		return answer{}, bad("denies always: always is for allow")
	}
	return a, nil
}

// hasOnly reports whether data is one JSON object whose keys are among names, each of them once. Package
// json takes the last of two keys, and keys in capitals.
func hasOnly(data []byte, names ...string) bool {
	d := json.NewDecoder(bytes.NewReader(data))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return false
	}
	for d.More() {
		key, err := d.Token()
		i := slices.Index(names, fmt.Sprint(key))
		if err != nil || i < 0 {
			return false
		}
		names = slices.Delete(slices.Clone(names), i, i+1)
		if d.Decode(new(json.RawMessage)) != nil {
			return false
		}
	}
	if _, err := d.Token(); err != nil {
		return false
	}
	_, err := d.Token()
	return errors.Is(err, io.EOF)
}
