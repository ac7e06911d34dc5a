package boxes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAClientThatReadsNothingDoesNotHoldTheEnd has calls wait for a client that does not read.
func TestAClientThatReadsNothingDoesNotHoldTheEnd(t *testing.T) {
	for name, end := range map[string]func(in io.Closer, cancel func()){
		"the program is asked to end":  func(_ io.Closer, cancel func()) { cancel() },
		"the client closes its stream": func(in io.Closer, _ func()) { _ = in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				in, toServer := io.Pipe()
				fromServer, out := io.Pipe()
				done := make(chan error, 1)
				go func() { done <- Serve(ctx, Config{}, in, out) }()
				for i := range 20 {
					if _, err := fmt.Fprintf(toServer, `{"jsonrpc":"2.0","id":%d,"method":"none"}`+"\n", i); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				start := time.Now()
				end(toServer, cancel)
				if err := <-done; err != nil || time.Since(start) > 2*readWait {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				_, _ = toServer.Close(), fromServer.Close() // ends the goroutines that a process would end with
			})
		})
	}
}

// TestAClientHasAllAnswersAtTheEnd closes the stream behind its requests, and reads slowly.
func TestAClientHasAllAnswersAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, toServer := io.Pipe()
		fromServer, out := io.Pipe()
		done := make(chan error, 1)
		go func() {
			done <- Serve(t.Context(), Config{}, in, out)
			_ = out.Close()
		}()
		const calls = 20
		for i := range calls {
			if _, err := fmt.Fprintf(toServer, `{"jsonrpc":"2.0","id":%d,"method":"none"}`+"\n", i); err != nil {
				t.Fatal(err)
			}
		}
		_ = toServer.Close()
		lines, n := bufio.NewScanner(fromServer), 0
		for lines.Scan() {
			n++
			<-time.After(readWait / 2)
		}
		if err := <-done; err != nil || n != calls {
			t.Errorf("%d answers, %v", n, err)
		}
	})
}

// TestTheRequestsThatRunAreBounded counts their bytes and their number.
func TestTheRequestsThatRunAreBounded(t *testing.T) {
	s := &Server{calls: map[string]*call{}}
	for i := range maxHeld / maxLine {
		if err := s.begin(fmt.Sprint(i), maxLine, nil); err != nil {
			t.Error(err)
		}
	}
	if err := s.begin("more", maxLine, nil); err == nil || !strings.Contains(err.Error(), "more than 256 MiB together") {
		t.Errorf("%v", err)
	}
	if err := s.begin("0", 1, nil); err == nil || !strings.Contains(err.Error(), "this id is running") {
		t.Errorf("%v", err)
	}
	for i := len(s.calls); i < maxCalls; i++ {
		if err := s.begin(fmt.Sprint(i), 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.begin("more", 1, nil); err == nil || !strings.Contains(err.Error(), "at most 256 requests") {
		t.Errorf("%v", err)
	}
	s.ended = true
	if err := s.begin("late", 1, nil); err == nil {
		t.Error("a call begins after the end")
	}
}

// TestALongCallIsAnsweredAfterTheEnd has a call end long after its stream.
func TestALongCallIsAnsweredAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		c := newClient(out)
		c.end()
		done := make(chan string, 1)
		go func() {
			data, _ := io.ReadAll(in)
			done <- string(data)
		}()
		<-time.After(10 * readWait)
		c.send([]byte("answer\n"))
		c.flush()
		_ = out.Close()
		if got := <-done; got != "answer\n" {
			t.Errorf("%q", got)
		}
	})
}

// TestARequestThatIsNotTakenHasAnAnswer has messages that are too long, too deep or wrong: the answer has their id.
func TestARequestThatIsNotTakenHasAnAnswer(t *testing.T) {
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), Config{}, in, out) }()
	lines := bufio.NewReader(fromServer)
	for name, line := range map[string]string{
		"too long": `{"jsonrpc":"2.0","method":"write","params":{"text":"` + strings.Repeat("x", maxLine) + `"},"id":"mine"}`,
		"too deep": `{"jsonrpc":"2.0","method":"write","params":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `,"id":"mine"}`,
		"wrong":    `{"jsonrpc":"2.0","method":"write","id":"mine","params":}`,
	} {
		if _, err := io.WriteString(toServer, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if answer, err := lines.ReadString('\n'); err != nil || !strings.Contains(answer, `"id":"mine","error"`) {
			t.Errorf("%s: %v %s", name, err, answer)
		}
	}
	_ = toServer.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
