package harness

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/fetch"
)

func TestABaseThatIsNotFetchedHasAdvice(t *testing.T) {
	unknown := httptest.NewTLSServer(http.NotFoundHandler())
	defer unknown.Close()
	gone := httptest.NewTLSServer(http.NotFoundHandler())
	gone.Close()
	for server, want := range map[string]string{unknown.URL: "SSL_CERT_FILE", gone.URL: "reaches the server"} {
		dir := lay(t, tests{"a.yaml": fmt.Sprintf("base: %s/b.yaml#sha256=%s\nallowed_remote_resources: [%[1]s/]\n",
			server, strings.Repeat("0", 64))})
		h, ps := Load(filepath.Join(dir, "a.yaml"), Options{Cache: t.TempDir()})
		if h != nil || len(ps) != 1 || !strings.Contains(ps[0].Hint, want) {
			t.Errorf("%s: %+v", server, ps)
		}
	}
	if got := fetchHint(fmt.Errorf("%w a, not b", fetch.ErrContent)); !strings.Contains(got, "#sha256=") {
		t.Errorf("another content: %q", got)
	}
}
