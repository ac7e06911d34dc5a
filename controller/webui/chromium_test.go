package webui

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentsh/internal/testenv"
)

// browse loads a page and lets its script work for four seconds of the browser's time.
func browse(t *testing.T, address string, more ...string) (dom, log string) {
	t.Helper()
	return testenv.Browse(t, address, append([]string{"--virtual-time-budget=4000"}, more...)...)
}

// attacks are names and texts that run a script, or load something, where they become markup.
var attacks = []string{
	`<script>document.title = "ran"</script>`, `<img src=x onerror='document.title = "ran"'>`, `"><svg onload='document.title = "ran"'>`,
	`</span></body><iframe srcdoc='<script>parent.document.title = "ran"</script>'>`, `javascript:document.title = "ran"`,
	`<a href='javascript:document.title = "ran"'>x</a>`, `{{constructor.constructor('document.title = "ran"')()}}`,
	`<style>body { display: none }</style>`, `<meta http-equiv=refresh content='0;url=http://evil.example/'>`, strings.Repeat("x", 3000),
}

// hostile is a source whose texts are attacks.
func hostile(attacks []string) *fake {
	f := &fake{}
	all := strings.Join(attacks, "\n")
	now := time.Now()
	for i, a := range attacks {
		id := fmt.Sprintf("20260122t10150%d-1a2b3c4d", i)
		of := Brief{ID: id, Name: a, Status: "running", Step: a, Live: true, Backend: a, Repo: a, Started: now}
		f.overview.Batches = append(f.overview.Batches, Batch{ID: "b" + id, Name: a, Status: a, Started: now, All: 3})
		f.overview.Runs = append(f.overview.Runs, of)
		f.overview.Questions = append(f.overview.Questions, Question{
			ID: id + "/1", Run: a, Kind: a, What: a, Why: all, Rule: a, Ends: now.Add(time.Minute),
		})
		f.overview.Troubles = append(f.overview.Troubles, a)
		f.run.Moments = append(f.run.Moments, Moment{Time: now, Kind: KindDenied, What: a, Rule: a, Hint: a, Count: 2},
			Moment{Time: now, Kind: KindStep, What: a, Error: a}, Moment{Time: now, Kind: KindApproval, What: a})
	}
	f.run.Brief, f.run.Error, f.run.Troubles = f.overview.Runs[0], all, attacks
	return f
}

// openFirst is a script that opens the first run, as a click does.
const openFirst = `
let opened = setInterval(() => { const b = document.querySelector("#runs button"); if (b) { b.click(); clearInterval(opened); } }, 50);`

// changed serves the page with further lines of script, and perhaps without its content security policy.
func changed(t *testing.T, source Source, change func(script string) string, open bool) string {
	t.Helper()
	s := serve(t, source)
	inner := s.handler()
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := httptest.NewRecorder()
		inner.ServeHTTP(record, r)
		body := record.Body.String()
		if r.URL.Path == "/page.js" {
			body = change(body)
			record.Header().Del("Content-Length")
		}
		for name, values := range record.Header() {
			w.Header()[name] = values
		}
		if open {
			w.Header().Del("Content-Security-Policy")
		}
		w.WriteHeader(record.Code)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(outer.Close)
	s.hosts = append(s.hosts, strings.TrimPrefix(outer.URL, "http://"))
	return outer.URL + "/#" + s.token
}

func TestABrowserRunsNothingOfAnAgentsText(t *testing.T) {
	address := changed(t, hostile(attacks), func(s string) string { return s + openFirst }, false)
	dom, log := browse(t, address, "--dump-dom")
	if !strings.Contains(dom, "<title>agentctl</title>") {
		t.Errorf("a script of a text ran: %s", regexp.MustCompile(`<title>.*`).FindString(dom))
	}
	for _, tag := range []string{"<img", "<svg", "<iframe", "<style", "<a ", "<meta http"} {
		if strings.Contains(dom, tag) {
			t.Errorf("the document has %s", tag)
		}
	}
	for _, want := range []string{`&lt;script&gt;document.title = "ran"`, `class="denied"`, `class="approval"`, "live, ", "Allow once"} {
		if !strings.Contains(dom, want) {
			t.Errorf("the document has no %q", want)
		}
	}
	if n := strings.Count(dom, "<script"); n != 1 {
		t.Errorf("%d scripts", n)
	}
	for _, said := range regexp.MustCompile(`(?m)^.*(CONSOLE|Content Security Policy|Refused to).*$`).FindAllString(log, -1) {
		t.Errorf("the console says %s", said)
	}
}

// TestTheBrowserTestDetectsMarkup shows that TestABrowserRunsNothingOfAnAgentsText can fail, and that
// the content security policy holds where the script makes markup.
func TestTheBrowserTestDetectsMarkup(t *testing.T) {
	broken := func(s string) string {
		return strings.ReplaceAll(s, "e.textContent = text", "e.innerHTML = text") + openFirst
	}
	if dom, _ := browse(t, changed(t, hostile(attacks[:3]), broken, true), "--dump-dom"); !strings.Contains(dom, "<title>ran</title>") {
		t.Error("no script ran without the policy")
	}
	if dom, _ := browse(t, changed(t, hostile(attacks[:3]), broken, false), "--dump-dom"); strings.Contains(dom, "<title>ran") {
		t.Error("a script ran in spite of the policy")
	}
}

func TestABrowserAnswersAQuestion(t *testing.T) {
	f := &fake{}
	f.overview.Questions = []Question{{ID: "r1/7", Run: "fixer", Kind: "exec", What: "rm -r build", Ends: time.Now().Add(time.Minute)}}
	const press = `
let pressed = setInterval(() => {
  const b = [...document.querySelectorAll("#question-list button")].find((b) => b.textContent === "Deny");
  if (b) { b.click(); clearInterval(pressed); }
}, 50);`
	dom, _ := browse(t, changed(t, f, func(s string) string { return s + press }, false), "--dump-dom")
	if got := f.given(); len(got) != 1 || got[0] != (Answer{Question: "r1/7"}) || !strings.Contains(dom, ">denied</p>") {
		t.Errorf("answers %v", got)
	}
}

// TestThePageFitsItsWindow measures the page at several widths. With SCREENSHOTS=DIR it saves
// screenshots in DIR.
func TestThePageFitsItsWindow(t *testing.T) {
	const measure = `
setInterval(() => { document.title = "width " + document.documentElement.scrollWidth + " of " + window.innerWidth; }, 100);`
	for _, width := range []int{1400, 500} {
		for name, scheme := range map[string]string{"dark": "0", "light": "1"} {
			t.Run(fmt.Sprintf("%d-%s", width, name), func(t *testing.T) {
				f := hostile(attacks)
				for _, b := range []*Brief{&f.overview.Runs[0], &f.run.Brief} {
					b.Name, b.Step, b.Backend, b.Repo = "fix-bug", "iterations", "docker", "/home/ada/src/site"
				}
				args := []string{fmt.Sprintf("--window-size=%d,2400", width), "--blink-settings=preferredColorScheme=" + scheme}
				address := changed(t, f, func(s string) string { return s + openFirst + measure }, false)
				dom, _ := browse(t, address, append(args, "--dump-dom")...)
				var needs, has int
				title := regexp.MustCompile(`<title>width (\d+) of (\d+)</title>`).FindStringSubmatch(dom)
				if title == nil {
					t.Fatalf("the page was not measured: %.500s", dom)
				}
				if _, err := fmt.Sscan(title[1]+" "+title[2], &needs, &has); err != nil || needs > has {
					t.Errorf("the page needs %d of %d pixels", needs, has)
				}
				if dir := os.Getenv("SCREENSHOTS"); dir != "" {
					browse(t, address, append(args, "--screenshot="+filepath.Join(dir, t.Name()[strings.LastIndex(t.Name(), "/")+1:]+".png"))...)
				}
			})
		}
	}
}
