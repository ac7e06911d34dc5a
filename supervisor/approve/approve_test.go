package approve_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/internal/wire"
	"agentsh/supervisor/approve"
)

// book keeps the events of a queue.
type book struct {
	mu     sync.Mutex
	events []wire.Event
	fail   string // phase whose events cannot be written
}

func (b *book) emit(e wire.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == e.Phase {
		return errors.New("disk full")
	}
	b.events = append(b.events, e)
	return nil
}

func (b *book) last(t *testing.T) wire.Event {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) == 0 {
		t.Fatal("no event")
	}
	return b.events[len(b.events)-1]
}

func newQueue(settings approve.Settings) (*approve.Queue, *book) {
	b := &book{}
	return approve.New(approve.Config{Session: "s", Emit: b.emit, Settings: func() approve.Settings { return settings }}), b
}

func push() wire.Question {
	return wire.Question{
		Command: "c1",
		Kind:    wire.AskExec,
		Subject: "/usr/bin/git",
		Argv:    []string{"git", "push"},
		Rule:    &wire.RuleAt{Name: "ask-push", File: "p.yaml", Line: 3, Column: 5},
	}
}

func TestAnAnswerDecidesAndIsRecorded(t *testing.T) {
	for _, allow := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			q, b := newQueue(approve.Settings{})
			got := make(chan wire.Answer, 1)
			go func() { got <- q.Ask(t.Context(), push()) }()
			synctest.Wait()
			list := q.List()
			if len(list) != 1 || list[0].Subject != "/usr/bin/git" || list[0].Ends.Sub(list[0].Asked) != approve.DefaultTimeout {
				t.Fatalf("waiting: %+v", list)
			}
			if err := q.Answer(wire.ApprovalAnswer{ID: list[0].ID, Allow: allow, By: "ann"}); err != nil {
				t.Fatal(err)
			}
			if a := <-got; a.Allow != allow || a.By != "ann" {
				t.Errorf("answer %+v", a)
			}
			e := b.last(t)
			if e.Phase != "end" || e.By != "ann" || e.Decision != map[bool]string{true: "allow", false: "deny"}[allow] ||
				e.Rule.Position() != "p.yaml:3:5" {
				t.Errorf("event %+v", e)
			}
			if err := q.Answer(wire.ApprovalAnswer{ID: list[0].ID, Allow: true, By: "bob"}); err == nil {
				t.Error("a second answer was taken")
			}
		})
	}
}

func TestAnInvalidAnswerDenies(t *testing.T) {
	long := push()
	long.Argv = append(long.Argv, strings.Repeat("x", wire.MaxQuestion))
	cases := map[string]struct {
		settings approve.Settings
		question wire.Question
		fail     string
		reason   string
	}{
		"no time":             {approve.Settings{Timeout: time.Second}, push(), "", "no answer within 1s"},
		"its own time":        {approve.Settings{}, wire.Question{TimeoutMS: 5}, "", "no answer within 5ms"},
		"nobody there":        {approve.Settings{Present: true}, push(), "", "no approver"},
		"nobody at all":       {approve.Settings{Closed: "no approvals are set"}, push(), "", "no approvals are set"},
		"too long":            {approve.Settings{}, long, "", "too long"},
		"question not logged": {approve.Settings{}, push(), "begin", "audit"},
		"program fails": {approve.Settings{Program: func(context.Context, wire.Question) (wire.Answer, error) {
			return wire.Answer{Allow: true}, errors.New("exit status 1")
		}}, push(), "", "exit status 1"},
		"program late": {approve.Settings{Timeout: time.Second, Program: func(ctx context.Context, _ wire.Question) (wire.Answer, error) {
			<-ctx.Done()
			return wire.Answer{Allow: true}, nil
		}}, push(), "", "no answer in time"},
		"answer not logged": {approve.Settings{Program: func(context.Context, wire.Question) (wire.Answer, error) {
			return wire.Answer{Allow: true}, nil
		}}, push(), "end", "audit"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, b := newQueue(c.settings)
				b.fail = c.fail
				if a := q.Ask(t.Context(), c.question); a.Allow || !strings.Contains(a.Reason, c.reason) {
					t.Errorf("answer %+v", a)
				}
				if c.fail == "" && b.last(t).Decision != "deny" {
					t.Errorf("event %+v", b.last(t))
				}
				if n := len(q.List()); n != 0 {
					t.Errorf("%d questions are left", n)
				}
			})
		})
	}
}

func TestAFullQueueDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(approve.Settings{Timeout: time.Hour})
		var asking sync.WaitGroup
		for range approve.MaxPending {
			asking.Go(func() { q.Ask(t.Context(), push()) })
		}
		synctest.Wait()
		if a := q.Ask(t.Context(), push()); a.Allow || !strings.Contains(a.Reason, "wait already") {
			t.Errorf("answer %+v", a)
		}
		q.Close()
		asking.Wait()
	})
}

func TestCloseDeniesWhatWaitsAndWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(approve.Settings{Timeout: time.Hour})
		got := make(chan wire.Answer, 1)
		go func() { got <- q.Ask(t.Context(), push()) }()
		synctest.Wait()
		q.Close()
		for _, a := range []wire.Answer{<-got, q.Ask(t.Context(), push())} {
			if a.Allow || a.Reason != "the session ends" {
				t.Errorf("answer %+v", a)
			}
		}
		if b.last(t).Decision != "deny" {
			t.Errorf("event %+v", b.last(t))
		}
	})
}

func TestApprovalsOfAnEndedCallerAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(approve.Settings{Timeout: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan wire.Answer, 1)
		go func() { got <- q.Ask(ctx, push()) }()
		synctest.Wait()
		cancel()
		if a := <-got; a.Allow || a.Reason != "the requester has ended" {
			t.Errorf("answer %+v", a)
		}
		if n := len(q.List()); n != 0 {
			t.Errorf("%d questions are left", n)
		}
	})
}

func TestAFollowerIsAnApprover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(approve.Settings{Present: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Follow(ctx, "", func(list []wire.Pending) error {
				for _, p := range list {
					if err := q.Answer(wire.ApprovalAnswer{ID: p.ID, Allow: true, By: "ann"}); err != nil {
						return err
					}
				}
				return nil
			})
		}()
		synctest.Wait()
		if a := q.Ask(t.Context(), push()); !a.Allow {
			t.Errorf("answer %+v", a)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if a := q.Ask(t.Context(), push()); a.Allow {
			t.Error("allowed when the approver had gone")
		}
	})
}

func TestAlwaysHoldsForTheSameQuestionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, b := newQueue(approve.Settings{Timeout: time.Minute})
		asked := func(change func(*wire.Question)) (answer chan wire.Answer) {
			question := push()
			change(&question)
			answer = make(chan wire.Answer, 1)
			go func() { answer <- q.Ask(t.Context(), question) }()
			synctest.Wait()
			return answer
		}
		same := func(q *wire.Question) { q.Argv, q.Cwd = append(q.Argv, "\xff"), "/\xff" }
		first, second := asked(same), asked(func(q *wire.Question) { same(q); q.Command, q.Process = "c2", &wire.Process{PID: 7} })
		if err := q.Answer(wire.ApprovalAnswer{ID: q.List()[0].ID, Allow: true, Always: true, By: "ann"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		third := asked(same)
		for _, got := range []chan wire.Answer{first, second, third} {
			if a := <-got; !a.Allow {
				t.Errorf("%+v", a)
			}
		}
		if e := b.last(t); e.By != "ann, for the session" || e.Decision != "allow" {
			t.Errorf("event %+v", e)
		}
		for name, change := range map[string]func(*wire.Question){
			"argument":  func(q *wire.Question) { q.Argv = append(q.Argv, "--force") },
			"program":   func(q *wire.Question) { q.Subject = "/tmp/git" },
			"directory": func(q *wire.Question) { q.Cwd = "/" },
			"byte":      func(q *wire.Question) { q.Argv[2] = "\xfe" },
			"name byte": func(q *wire.Question) { q.Cwd = "/\xfe" },
			"content":   func(q *wire.Question) { q.Files = []wire.QuestionFile{{Path: "/usr/bin/git", SHA256: "aa"}} },
			"kind":      func(q *wire.Question) { q.Kind = wire.AskFile },
			"rule":      func(q *wire.Question) { q.Rule = &wire.RuleAt{Name: "other"} },
		} {
			got := asked(func(q *wire.Question) { same(q); change(q) })
			if list := q.List(); len(list) != 1 {
				t.Fatalf("another %s: %d questions wait", name, len(list))
			}
			if err := q.Answer(wire.ApprovalAnswer{ID: q.List()[0].ID, Always: true, By: "ann"}); err != nil {
				t.Fatal(err)
			}
			if a := <-got; a.Allow {
				t.Errorf("another %s: %+v", name, a)
			}
		}
		process := func(q *wire.Question) { q.Argv, q.Process = []string{"git", "pull"}, &wire.Process{PID: 9} }
		got := asked(process)
		if err := q.Answer(wire.ApprovalAnswer{ID: q.List()[0].ID, By: "ann"}); err != nil {
			t.Fatal(err)
		}
		<-got
		got = asked(func(q *wire.Question) { process(q); q.Subject = "/bin/git" }) // the next directory of PATH
		if a := <-got; a.Allow || a.By != "ann" {
			t.Errorf("a repeated attempt: %+v", a)
		}
		q.Forget()
		got = asked(same)
		q.Close()
		if a := <-got; a.Allow {
			t.Errorf("after a reload: %+v", a)
		}
	})
}

// Whoever follows the questions of one command is no approver of another, and gets no
// question where others than the caller are asked.
func TestAFollowerOfOneCommandAnswersForItAlone(t *testing.T) {
	for _, present := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			q, _ := newQueue(approve.Settings{Present: present, Timeout: time.Minute})
			var shown []wire.Pending
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- q.Follow(ctx, "c1", func(list []wire.Pending) error { shown = append(shown, list...); return nil })
			}()
			synctest.Wait()
			other := push()
			other.Command = "c2"
			got := make(chan wire.Answer, 2)
			for _, question := range []wire.Question{push(), other} {
				go func() { got <- q.Ask(t.Context(), question) }()
				synctest.Wait()
			}
			if want := map[bool]int{true: 1}[present]; len(shown) != want || want > 0 && shown[0].Command != "c1" {
				t.Errorf("present %v: shown %+v", present, shown)
			}
			if present {
				if a := <-got; a.Allow || !strings.Contains(a.Reason, "no approver is there") {
					t.Errorf("%+v", a)
				}
				if err := q.Answer(wire.ApprovalAnswer{ID: q.List()[0].ID, Reason: "gone"}); err != nil {
					t.Error(err)
				}
				if a := <-got; a.Allow || a.Reason != "gone" {
					t.Errorf("%+v", a)
				}
			}
			cancel()
			<-ended
			q.Close()
		})
	}
}

// A stale answer must never meet another question.
func TestIDsAreNotUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newQueue(approve.Settings{Timeout: time.Second})
		seen := map[string]bool{}
		for range 5 {
			var asked sync.WaitGroup
			asked.Go(func() { q.Ask(t.Context(), push()) })
			synctest.Wait()
			id := q.List()[0].ID
			if seen[id] {
				t.Errorf("id %s again", id)
			}
			seen[id] = true
			asked.Wait()
		}
	})
}

// Answers, ends and expiry meet at once; each question gets one end.
func TestEveryQuestionHasOneEnd(t *testing.T) {
	q, b := newQueue(approve.Settings{})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%3 == 0 {
				go cancel()
			}
			question := push()
			question.TimeoutMS = int64(1 + i%4)
			q.Ask(ctx, question)
		})
		all.Go(func() {
			for _, p := range q.List() {
				_ = q.Answer(wire.ApprovalAnswer{ID: p.ID, Allow: i%2 == 0, By: fmt.Sprint(i)})
			}
		})
	}
	all.Wait()
	ends := 0
	for _, e := range b.events {
		if e.Phase == "end" {
			ends++
		}
	}
	if ends != 200 || len(q.List()) != 0 {
		t.Errorf("%d ends of 200 questions, %d wait", ends, len(q.List()))
	}
}
