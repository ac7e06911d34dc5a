package report

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/testenv"
)

// served serves a page and records every request.
type served struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
}

func serve(t *testing.T, page string) *served {
	t.Helper()
	s := &served{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path)
		if r.URL.Path != "/page" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *served) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// browsers are the request for the page, and the requests that the browser
// makes by itself.
var browsers = []string{"GET /page", "GET /favicon.ico", "GET /time/1/current", "POST /service/update2/json"}

// trouble matches the console messages of a page, but not the browser's own
// errors on a machine without a desktop.
var trouble = regexp.MustCompile(`(?m)^.*(CONSOLE|Content Security Policy|Refused to).*$`)

func TestABrowserShowsThePageAndLoadsNothing(t *testing.T) {
	testenv.Browser(t)
	for _, status := range kinds {
		t.Run(status, func(t *testing.T) {
			page, _ := pages(t, example(t, status))
			// Every host name resolves to the test's server, which records the requests.
			s := serve(t, page)
			dom, log := testenv.Browse(t, s.URL+"/page", "--dump-dom", "--host-resolver-rules=MAP * "+strings.TrimPrefix(s.URL, "http://"))
			for _, said := range trouble.FindAllString(log, -1) {
				t.Errorf("the console says %s", said)
			}
			for _, r := range s.seen() {
				if !slices.Contains(browsers, r) {
					t.Errorf("the page asked for %s", r)
				}
			}
			for _, want := range []string{`<span id="status" class="state`, `<section id="steps">`, `<section id="facts">`,
				strings.ReplaceAll(status, "_", " ")} {
				if !strings.Contains(dom, want) {
					t.Errorf("the document has no %q", want)
				}
			}
			if n := strings.Count(dom, "<script"); n != 0 || strings.Contains(dom, "<img") {
				t.Errorf("the document has %d scripts, or an image", n)
			}
			if status != controller.StatusBlocked && status != record.StatusAbandoned &&
				!strings.Contains(dom, `<details class="file" open="">`) {
				t.Error("no file is open")
			}
		})
	}
}

// TestTheBrowserTestDetectsBrokenPages shows that
// TestABrowserShowsThePageAndLoadsNothing can fail.
func TestTheBrowserTestDetectsBrokenPages(t *testing.T) {
	page, _ := pages(t, example(t, controller.StatusDone))
	page = strings.Replace(page, "</body>", `<script>document.body.append("ran")</script><img src="/image.png"></body>`, 1)
	s := serve(t, page)
	dom, log := testenv.Browse(t, s.URL+"/page", "--dump-dom")
	if n := len(trouble.FindAllString(log, -1)); n < 2 {
		t.Errorf("the console told of %d refusals\n%s", n, log)
	}
	if strings.Contains(dom, ">ran") {
		t.Error("a script ran")
	}
	for _, r := range s.seen() {
		if r == "GET /image.png" {
			t.Error("an image was loaded")
		}
	}
}

// TestAPageFitsItsWindow measures the page at several widths: no element may
// extend beyond the window. With SCREENSHOTS=DIR it saves screenshots in DIR.
func TestAPageFitsItsWindow(t *testing.T) {
	testenv.Browser(t)
	page, _ := pages(t, example(t, controller.StatusDone))
	// The page is measured by a script, which its content security policy forbids.
	policy := regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`).FindString(page)
	measured := strings.Replace(strings.Replace(page, policy, "", 1), "</body>",
		`<script>document.title = "width " + document.documentElement.scrollWidth + " of " + window.innerWidth</script></body>`, 1)
	for _, width := range []int{1400, 800, 500} {
		for _, dark := range []bool{false, true} {
			name := fmt.Sprintf("%d-%v", width, map[bool]string{false: "light", true: "dark"}[dark])
			t.Run(name, func(t *testing.T) {
				args := []string{fmt.Sprintf("--window-size=%d,1200", width)}
				if dark {
					args = append(args, "--blink-settings=preferredColorScheme=0")
				} else {
					args = append(args, "--blink-settings=preferredColorScheme=1")
				}
				dom, _ := testenv.Browse(t, serve(t, measured).URL+"/page", append(args, "--dump-dom")...)
				var needs, has int
				title := regexp.MustCompile(`<title>width (\d+) of (\d+)</title>`).FindStringSubmatch(dom)
				if title == nil {
					t.Fatalf("the page was not measured: %.500s", dom)
				}
				if _, err := fmt.Sscan(title[1]+" "+title[2], &needs, &has); err != nil || needs > has {
					t.Errorf("the page needs %d of %d pixels", needs, has)
				}
				if dir := os.Getenv("SCREENSHOTS"); dir != "" {
					args[0] = fmt.Sprintf("--window-size=%d,4200", width)
					testenv.Browse(t, serve(t, page).URL+"/page", append(args, "--screenshot="+filepath.Join(dir, name+".png"))...)
				}
			})
		}
	}
}
