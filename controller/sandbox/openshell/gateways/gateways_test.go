package gateways

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write makes a tree of files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// registered are the files of OpenShell's program, of a user and of the machine.
var registered = map[string]string{
	"user/openshell/active_gateway":                       "local\n",
	"user/openshell/gateways/local/metadata.json":         `{"name": "local", "gateway_endpoint": "https://127.0.0.1:17670", "is_remote": false, "gateway_port": 17670}`,
	"user/openshell/gateways/local/mtls/ca.crt":           "ca",
	"user/openshell/gateways/local/mtls/tls.crt":          "cert",
	"user/openshell/gateways/local/mtls/tls.key":          "key",
	"user/openshell/gateways/plain/metadata.json":         `{"name": "plain", "gateway_endpoint": "http://127.0.0.1:8080", "auth_mode": "plaintext"}`,
	"user/openshell/gateways/bare/metadata.json":          `{"name": "bare", "gateway_endpoint": "https://h:1", "auth_mode": "mtls"}`,
	"user/openshell/gateways/edge/metadata.json":          `{"name": "edge", "gateway_endpoint": "https://h:2", "auth_mode": "cloudflare_jwt"}`,
	"user/openshell/gateways/broken/metadata.json":        `{"name":`,
	"user/openshell/gateways/company/metadata.json":       `{"name": "company", "gateway_endpoint": "https://h:3", "auth_mode": "oidc"}`,
	"user/openshell/gateways/company/oidc_token.json":     `{"access_token": "secret", "issuer": "https://i", "client_id": "c"}`,
	"system/gateways/plain/metadata.json":                 `{"name": "plain", "gateway_endpoint": "http://127.0.0.1:1"}`,
	"system/gateways/shared/metadata.json":                `{"name": "shared", "gateway_endpoint": "http://127.0.0.1:2"}`,
	"system/active_gateway":                               "shared",
	"empty/openshell/gateways/something-else":             "",
	"outside/openshell/active_gateway":                    "../../user/openshell/gateways/plain",
	"outside/openshell/gateways/x/metadata.json":          `{"name": "x", "gateway_endpoint": "http://127.0.0.1:3"}`,
	"home/.config/openshell/active_gateway":               "own",
	"home/.config/openshell/gateways/own/metadata.json":   `{"name": "own", "gateway_endpoint": "http://127.0.0.1:4"}`,
	"home/.config/openshell/gateways/own/mtls/unrelated":  "",
	"home/.config/openshell/gateways/own/last_sandbox":    "x",
	"home/.config/openshell/gateways/own/edge_token":      "x",
	"home/.config/openshell/gateways/own/oidc_token.json": "x",
}

func TestARegisteredGatewayIsFound(t *testing.T) {
	dir := write(t, registered)
	mtls := filepath.Join(dir, "user/openshell/gateways/local/mtls")
	for _, tt := range []struct {
		what, name, user string
		env              map[string]string
		want             Gateway
		says             string
	}{
		{"the active one of the user", "", "user", nil, Gateway{
			Name: "local", Address: "https://127.0.0.1:17670", CA: mtls + "/ca.crt", Cert: mtls + "/tls.crt", Key: mtls + "/tls.key",
		}, ""},
		{"one by its name", "plain", "user", nil, Gateway{Name: "plain", Address: "http://127.0.0.1:8080"}, ""},
		{"that of the environment", "", "user", map[string]string{"OPENSHELL_GATEWAY": "plain"},
			Gateway{Name: "plain", Address: "http://127.0.0.1:8080"}, ""},
		{"a name before the environment", "plain", "user", map[string]string{"OPENSHELL_GATEWAY": "local"},
			Gateway{Name: "plain", Address: "http://127.0.0.1:8080"}, ""},
		{"the active one of the machine", "", "empty", nil, Gateway{Name: "shared", Address: "http://127.0.0.1:2"}, ""},
		{"one of the machine by its name", "shared", "user", nil, Gateway{Name: "shared", Address: "http://127.0.0.1:2"}, ""},
		{"an active name with slashes is no name", "", "outside", nil, Gateway{Name: "shared", Address: "http://127.0.0.1:2"}, ""},
		{"without XDG_CONFIG_HOME", "", "", nil, Gateway{Name: "own", Address: "http://127.0.0.1:4"}, ""},
		{"the address of the environment", "", "user", map[string]string{"OPENSHELL_GATEWAY_ENDPOINT": "http://127.0.0.1:8080/"},
			Gateway{Name: "plain", Address: "http://127.0.0.1:8080"}, ""},
		{"an address that is registered nowhere", "", "user", map[string]string{"OPENSHELL_GATEWAY_ENDPOINT": "http://127.0.0.1:9"},
			Gateway{Address: "http://127.0.0.1:9"}, ""},
		{"a token", "company", "user", nil, Gateway{
			Name: "company", Address: "https://h:3", TokenFile: filepath.Join(dir, "user/openshell/gateways/company/oidc_token.json"),
		}, ""},
		{"no certificate", "bare", "user", nil, Gateway{}, "gateways/bare/mtls/ca.crt"},
		{"another way to authenticate", "edge", "user", nil, Gateway{}, "token_file: FILE"},
		{"broken", "broken", "user", nil, Gateway{}, "metadata.json"},
		{"not registered", "missing", "user", nil, Gateway{}, "'openshell gateway add ADDRESS --name missing'"},
		{"a path", "../plain", "user", nil, Gateway{}, "no name of a gateway"},
	} {
		env := map[string]string{"HOME": filepath.Join(dir, "home"), "OPENSHELL_SYSTEM_GATEWAY_DIR": filepath.Join(dir, "system")}
		if tt.user != "" {
			env["XDG_CONFIG_HOME"] = filepath.Join(dir, tt.user)
		}
		for k, v := range tt.env {
			env[k] = v
		}
		got, err := Find(tt.name, func(name string) string { return env[name] })
		if got != tt.want || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %+v, %v", tt.what, got, err)
		}
	}
	none := map[string]string{"HOME": dir, "OPENSHELL_SYSTEM_GATEWAY_DIR": dir}
	if _, err := Find("", func(name string) string { return none[name] }); !errors.Is(err, ErrNone) {
		t.Errorf("nothing is registered: %v", err)
	}
}

func TestTheNameOfAGatewayIsFound(t *testing.T) {
	dir := write(t, registered)
	env := map[string]string{"XDG_CONFIG_HOME": filepath.Join(dir, "user"), "OPENSHELL_SYSTEM_GATEWAY_DIR": filepath.Join(dir, "system")}
	for address, want := range map[string]string{
		"https://127.0.0.1:17670": "local", "https://127.0.0.1:17670/": "local", "http://127.0.0.1:8080": "plain",
		"http://127.0.0.1:2": "shared", "http://127.0.0.1:9": "",
	} {
		got, err := Named(address, func(name string) string { return env[name] })
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "openshell gateway add "+address) {
			t.Errorf("%s: %q, %v", address, got, err)
		}
	}
}

func TestAProgramGetsNoCredentials(t *testing.T) {
	got := Environ([]string{"PATH=/bin", "HOME=/h", "OPENSHELL_GATEWAY=g", "OPENSHELL_GATEWAY_ENDPOINT=e", "OPENSHELL_X=1",
		"OPENSHELL_TOKEN=t",
		"ANTHROPIC_API_KEY=k", "XDG_CONFIG_HOME=/c", "OPENSHELL_SANDBOX_POLICY=/p"})
	if want := "PATH=/bin HOME=/h OPENSHELL_X=1 XDG_CONFIG_HOME=/c"; strings.Join(got, " ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestATokenIsReadFromItsFile(t *testing.T) {
	now := time.Unix(1000, 0)
	dir := write(t, map[string]string{
		"raw":     "secret\n",
		"stored":  `{"access_token": "secret", "expires_at": 1001}`,
		"endless": `{"access_token": "secret"}`,
		"expired": `{"access_token": "secret", "expires_at": 1000}`,
		"other":   `{"token": "secret"}`,
		"broken":  `{"access_token": "secret"`,
	})
	for name, says := range map[string]string{
		"raw": "", "stored": "", "endless": "", "expired": "expired at 1970-01-01T00:16:40Z", "other": "no access_token",
		"broken":  "no access_token",
		"missing": "no such file",
	} {
		token, err := Token(filepath.Join(dir, name), now)
		if says == "" && (err != nil || token != "secret") {
			t.Errorf("%s: %q, %v", name, token, err)
		}
		if says != "" && (err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
