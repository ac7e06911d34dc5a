package blaxel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/lazy"
	"agentsh/internal/text"
)

// defaultURL is the address of Blaxel's control plane.
const defaultURL = "https://api.blaxel.ai/v0"

// apiVersion is the version of the interface that requests ask for.
const apiVersion = "2026-04-28"

// Times of requests.
const (
	requestTime = 60 * time.Second
	retryWait   = time.Second
	// createTime is the time for a virtual machine to be there. A gateway before the control plane gives up
	// after 60 seconds, while the control plane goes on for up to 300.
	createTime = 5 * time.Minute
)

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 20

// api speaks to Blaxel. Its control plane is at base; each sandbox has an address of its own.
type api struct {
	base, workspace, key string
	hosts                []string // of sandboxes, see sandboxURL
	http                 *http.Client
}

func newAPI(base, workspace, key, hosts string) (*api, error) {
	if err := private(base); err != nil {
		return nil, fmt.Errorf("BL_API_URL: %w", err)
	}
	for name, value := range map[string]string{"the key": key, "the workspace": workspace} {
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, fmt.Errorf("%s has blanks or characters that are not ASCII", name)
		}
	}
	named, err := parseHosts(hosts)
	if err != nil {
		return nil, err
	}
	return &api{strings.TrimSuffix(base, "/"), workspace, key, named, &http.Client{
		// The key is for the host that was asked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// private rejects an address that would show the key to others on the way.
func private(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "":
		return errors.New("no URL")
	case u.Scheme == "https":
		return nil
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%.200s: write https://HOST; http:// is for loopback addresses alone", address)
}

// readKey reads the API key from a file of this user.
func readKey(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block
	if err != nil {
		return "", fmt.Errorf("key of Blaxel: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("key of Blaxel: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("key of Blaxel: %s is not a file of its owner alone: chmod 600 %s", name, name)
	}
	data, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if key := strings.TrimSpace(string(data)); err == nil && key != "" {
		return key, nil
	}
	return "", errors.Join(fmt.Errorf("key of Blaxel: %s is empty", name), err)
}

// header are the fields that authenticate a request.
func (a *api) header() http.Header {
	return http.Header{
		"X-Blaxel-Authorization": {"Bearer " + a.key},
		"X-Blaxel-Workspace":     {a.workspace},
		"Blaxel-Version":         {apiVersion},
		"User-Agent":             {"agentctl"},
	}
}

// answer is the error of a request that was answered.
type answer struct {
	status        int
	code, message string
}

func (e *answer) Error() string {
	out := fmt.Sprintf("Blaxel answers %d", e.status)
	if e.code != "" {
		out += " " + e.code
	}
	if e.message != "" {
		out += ": " + e.message
	}
	return out
}

// passes reports whether the same request may be answered otherwise.
func (e *answer) passes() bool { return e.status >= 500 || e.status == http.StatusTooManyRequests }

// kernelWord matches what a refusal of extraArgs says.
var kernelWord = lazy.Regexp(`(?i)extra.?args|landlock`)

// refusesKernel reports whether the kernel was refused that a request asked for in extraArgs.
func (e *answer) refusesKernel() bool {
	return e.status/100 == 4 && kernelWord().MatchString(e.code+" "+e.message)
}

// statusOf is the status of the answer in an error; 0: none.
func statusOf(err error) int {
	var a *answer
	if errors.As(err, &a) {
		return a.status
	}
	return 0
}

// call sends a request with a body of JSON, or none, and reads the answer into out, if that is not nil.
func (a *api) call(ctx context.Context, method, address string, in, out any) error {
	var b body
	if in != nil {
		var err error
		if b.data, err = json.Marshal(in); err != nil {
			return err
		}
		b.kind = "application/json"
	}
	return a.send(ctx, method, address, b, out)
}

// body is the body of a request; zero: none.
type body struct {
	kind string // its media type
	data []byte
}

func (a *api) send(ctx context.Context, method, address string, b body, out any) error {
	_, err := a.exchange(ctx, method, address, b, out)
	return err
}

// exchange is send. It returns the header of the answer too.
func (a *api) exchange(ctx context.Context, method, address string, b body, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(b.data))
	if err != nil {
		return nil, err
	}
	req.Header = a.header()
	if b.kind != "" {
		req.Header.Set("Content-Type", b.kind)
	}
	res, err := a.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask Blaxel: %w", err)
	}
	data, err := readAll(res)
	if isJunk(err) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("ask Blaxel: %w", err)
	}
	if res.StatusCode/100 != 2 {
		return nil, failure(res.StatusCode, data)
	}
	if out == nil {
		return res.Header, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, &junk{err}
	}
	return res.Header, nil
}

// readAll reads and closes the body of an answer.
func readAll(res *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if len(data) > maxAnswer {
		err = &junk{fmt.Errorf("it has more than %d MiB", maxAnswer>>20)}
	}
	return data, errors.Join(err, res.Body.Close())
}

// junk is the error of an answer that says success and cannot be read. Asking again would not help: the request was carried out.
type junk struct{ err error }

func (e *junk) Error() string {
	return fmt.Sprintf("the answer of Blaxel is not what its interface describes (%v): is BL_API_URL right, or a proxy in between?", e.err)
}

func (e *junk) Unwrap() error { return e.err }

// isJunk reports whether an answer could not be read.
func isJunk(err error) bool {
	var j *junk
	return errors.As(err, &j)
}

// maxSaid bounds what is shown of an answer, in characters.
const maxSaid = 300

// failure is the error of an answer. The control plane and the API of a sandbox name its parts differently,
// and a gateway before them answers with a page.
func failure(status int, data []byte) error {
	var said struct {
		Code    any    `json:"code"`
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	e := &answer{status: status}
	if json.Unmarshal(data, &said) == nil {
		code, _ := said.Code.(string)
		e.code = text.Short(cmp.Or(code, said.Error), maxSaid)
		e.message = text.Short(said.Message, maxSaid)
	}
	return e
}

// again calls do until it succeeds, fails for good, or ctx ends.
func again(ctx context.Context, do func() error) error {
	for {
		err := do()
		var a *answer
		if err == nil || isJunk(err) || errors.As(err, &a) && !a.passes() || !pause(ctx, retryWait) {
			return err
		}
	}
}

func pause(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a *api) address(name string) string {
	out := a.base + "/sandboxes"
	if name != "" {
		out += "/" + url.PathEscape(name)
	}
	return out
}

// check asks for a page of sandboxes: the key must be good for the workspace.
func (a *api) check(ctx context.Context) error {
	err := a.call(ctx, http.MethodGet, a.address("")+"?limit=1", nil, nil)
	var said *answer
	if err != nil && !isJunk(err) && !errors.As(err, &said) {
		return &sandbox.End{
			Kind: sandbox.EndUnreachable, Text: "list sandboxes: " + err.Error(), Err: err,
			Hint: "does 'curl -I " + a.base + "' reach it from here? BL_API_URL names another address",
		}
	}
	return a.explain("list sandboxes", err)
}

func (a *api) get(ctx context.Context, name string) (r record, err error) {
	err = a.call(ctx, http.MethodGet, a.address(name), nil, &r)
	return r, err
}

// remove deletes a sandbox. One that is gone is no error. A conflict is none if the record says
// that the sandbox is being deleted.
func (a *api) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	err := again(ctx, func() error { return a.call(ctx, http.MethodDelete, a.address(name), nil, nil) })
	status := statusOf(err)
	if status == http.StatusConflict {
		if r, failed := a.get(ctx, name); failed == nil && r.gone() || statusOf(failed) == http.StatusNotFound {
			return nil
		}
	}
	if status == http.StatusNotFound {
		return nil
	}
	return a.explain("delete "+name, err)
}

// explain says what an answer means for a run.
func (a *api) explain(what string, err error) error {
	var said *answer
	if !errors.As(err, &said) {
		if err == nil {
			return nil
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	end := &sandbox.End{Kind: sandbox.EndRefused, Text: what + ": " + said.Error(), Err: err}
	about := strings.ToLower(said.code + " " + said.message)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(about, w) {
				return true
			}
		}
		return false
	}
	switch {
	case said.refusesKernel():
		end.Hint = "the region or the generation has no kernel with Landlock: name another, as in --connect " + scheme + a.workspace +
			"/us-was-1; or write degraded: [landlock] in the harness, and the sandbox gets a kernel without it"
	case said.status == http.StatusUnauthorized:
		end.Hint = "make a key for workspace " + a.workspace + " in Blaxel's console, and put it into BL_API_KEY or the file of --connect-key"
	case said.status >= 500: // its text may be anything, as in "context deadline exceeded"
		end.Kind, end.Hint = sandbox.EndUnreachable, "start the run again later"
	case said.status == http.StatusPaymentRequired, said.status == http.StatusTooManyRequests, has("quota", "limit", "exceeded"):
		end.Kind = sandbox.EndQuota
		if has("memory") {
			end.Hint = "ask for less memory, as in container: {memory_mb: 2048} or --memory 2048, or have the quota raised: " +
				"https://app.blaxel.ai/account/quotas"
			break
		}
		end.Hint = "delete sandboxes of the workspace ('agentctl gc' finds those of this host), or have the quota raised"
	case said.status == http.StatusForbidden:
		end.Hint = "the key may not do that in workspace " + a.workspace + ": take the key of a member who may"
	case said.status == http.StatusConflict:
		end.Hint = "a sandbox of that name is there: 'agentctl gc' removes those of this host"
	case said.status/100 == 4 && has("region"):
		end.Hint = "name a region of the workspace: --connect " + scheme + a.workspace + "/REGION, as in /us-pdx-1, or BL_REGION"
	case said.status/100 == 4 && has("image"):
		end.Kind, end.Hint = sandbox.EndImage, "name an image of the workspace in the harness; 'bl get images' lists them"
	}
	return end
}
