package agenthost

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"sync/atomic"

	"agentsh/controller/tools"
)

// server serves the tools of one iteration after the other at one address.
type server struct {
	listener net.Listener
	token    string
	http     *http.Server
	now      atomic.Pointer[http.Handler] // nil: no iteration runs
	done     chan struct{}
}

// newServer serves at a listener until close.
func newServer(l net.Listener) *server {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails, see crypto/rand
	s := &server{listener: l, token: base64.StdEncoding.EncodeToString(secret), done: make(chan struct{})}
	s.http, l = tools.HTTPServer(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := s.now.Load()
		if h == nil {
			http.Error(w, "no iteration of the agent runs", http.StatusServiceUnavailable)
			return
		}
		(*h).ServeHTTP(w, r)
	}))
	go func() { // ends in close
		defer close(s.done)
		_ = s.http.Serve(l) // the error of close
	}()
	return s
}

func (s *server) url() string { return "http://" + s.listener.Addr().String() + tools.Path }

// close ends all requests.
func (s *server) close() error {
	err := s.http.Close()
	<-s.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Serve serves tools to the program until end is called, which ends their commands.
func (s *Side) Serve(ctx context.Context, cfg tools.Config) (end func(), err error) {
	box, err := tools.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	h := tools.Handler(box, s.server.token)
	s.server.now.Store(&h)
	return func() {
		s.server.now.Store(nil)
		box.Close()
	}, nil
}
