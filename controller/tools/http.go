package tools

import (
	"context"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Path is the path of the tools in URLs.
const Path = "/mcp"

// Limits of HTTP.
const (
	headerWait  = 10 * time.Second
	idleWait    = 2 * time.Minute
	idleSession = 4 * time.Hour // between two requests of a client
	endWait     = 5 * time.Second
	maxHeader   = 64 << 10 // bytes
	// stateless is the first version of the protocol whose requests have no session.
	stateless = "2026-07-28"
)

// ServeHTTP serves clients over streamable HTTP at [Path] until ctx ends, and closes the
// listener. Calls that still run are cancelled then, and [Toolbox.Close] waits for them. Every request needs the bearer token.
// Requests of a page of another host are refused, and on a loopback address those for
// a host that is not loopback.
func (t *Toolbox) ServeHTTP(ctx context.Context, l net.Listener, token string) error {
	server, l := HTTPServer(l, Handler(t, token))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	t.end(closedBy(ctx))
	closeSessions(t.server)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	err := server.Shutdown(limited)
	if err != nil { // a client that does not read
		err = server.Close()
	}
	if served := <-done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// closeSessions ends the sessions of all clients.
func closeSessions(server *mcp.Server) {
	for session := range server.Sessions() {
		_ = session.Close() // the error of the stream that ends
	}
}

// Handler answers the requests of all clients at [Path], as [Toolbox.ServeHTTP] does.
func Handler(t *Toolbox, token string) http.Handler { return handler(t, token, maxSessions) }

// handler is [Handler] with at most so many sessions.
func handler(t *Toolbox, token string, most int) http.Handler {
	get, log := func(*http.Request) *mcp.Server { return t.server }, t.cfg.Log
	open := newSessions(t.server, t.ended, most)
	sessions := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Logger: log, MaxRequestBodyBytes: maxMessage, SessionTimeout: idleSession,
	})
	requests := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Logger: log, MaxRequestBodyBytes: maxMessage, Stateless: true, PropagateRequestCancellation: true,
	})
	mux := http.NewServeMux()
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Protocol-Version") >= stateless {
			requests.ServeHTTP(w, r)
			return
		}
		if id := r.Header.Get("Mcp-Session-Id"); id != "" {
			defer open.begin(id)()
			if r.Method == http.MethodDelete {
				defer t.ended.session(id)()
			}
		} else if r.Method == http.MethodPost {
			open.room()
		}
		sessions.ServeHTTP(w, r)
	})
	verify := func(_ context.Context, got string, _ *http.Request) (*auth.TokenInfo, error) {
		if subtle.ConstantTimeCompare([]byte(got), []byte(token)) != 1 {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{}, nil
	}
	withToken := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
	return sameOrigin(challenged(withToken(known(received(mux, t.limits.bodies)))))
}

// sameOrigin refuses requests of pages of other hosts.
func sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, origin := range r.Header.Values("Origin") {
			if from, err := url.Parse(origin); err != nil || from.Host != r.Host {
				http.Error(w, "requests of a page of another host are refused", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// challenged names the scheme of authentication in answers with status 401, as RFC 9110 asks for.
func challenged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(&challenge{w}, r) })
}

// challenge adds the scheme to an answer.
type challenge struct{ http.ResponseWriter }

func (c *challenge) WriteHeader(code int) {
	if code == http.StatusUnauthorized {
		c.Header().Set("WWW-Authenticate", `Bearer realm="tools of a sandbox"`)
	}
	c.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (c *challenge) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Flush is for streams of events.
func (c *challenge) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }
