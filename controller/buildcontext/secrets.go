package buildcontext

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"agentsh/controller/scan"
	"agentsh/internal/secretfiles"
	"agentsh/internal/text"
)

// credentialPaths are files that hold credentials, by the end of their path.
var credentialPaths = []string{
	".aws/credentials", ".docker/config.json", ".kube/config", ".config/gcloud/application_default_credentials.json",
	".config/gh/hosts.yml", ".cargo/credentials", ".cargo/credentials.toml", ".blaxel/config.yaml",
}

// holdsCredentials reports whether files of a name hold credentials.
func holdsCredentials(name string) bool {
	base := path.Base(name)
	switch rest, env := strings.CutPrefix(base, ".env"); {
	case slices.Contains(secretfiles.Names, base), slices.Contains(secretfiles.Keys, base):
		return true
	case base == ".env" || base == ".envrc":
		return true
	case env && strings.HasPrefix(rest, "."):
		return !slices.Contains([]string{".example", ".sample", ".template", ".dist"}, rest)
	}
	return slices.ContainsFunc(credentialPaths, func(p string) bool { return name == p || strings.HasSuffix(name, "/"+p) })
}

// maxScanned bounds what the scanner for credentials reads of a file, in bytes. Values are looked for in all of it.
const maxScanned = 1 << 20

// inspector looks at the content of a file that is written to it.
type inspector struct {
	values map[string]string
	head   []byte
	tail   []byte // of what was written, for values across two writes
	has    string // what the value is called that it has
}

// Write implements [io.Writer].
func (i *inspector) Write(b []byte) (int, error) {
	if room := maxScanned - len(i.head); room > 0 {
		i.head = append(i.head, b[:min(room, len(b))]...)
	}
	if i.has != "" || len(i.values) == 0 {
		return len(b), nil
	}
	longest := 0
	data := slices.Concat(i.tail, b)
	for called, value := range i.values {
		longest = max(longest, len(value))
		if value != "" && bytes.Contains(data, []byte(value)) {
			i.has = called
		}
	}
	i.tail = append([]byte(nil), data[max(0, len(data)-longest):]...)
	return len(b), nil
}

// found says what may not be sent; empty: nothing. agreed leaves out what is only likely.
func (i *inspector) found(ctx context.Context, name string, agreed bool) (string, error) {
	if i.has != "" {
		return "it has " + i.has + ": remove it from the file", nil
	}
	if agreed || bytes.IndexByte(i.head[:min(len(i.head), 8<<10)], 0) >= 0 {
		return "", nil
	}
	findings, err := scan.New(scan.Options{Secrets: true}).Text(ctx, name, scan.Ordinary, bytes.NewReader(i.head))
	for _, f := range findings {
		if f.Rule == scan.RuleSecret {
			return fmt.Sprintf("line %d looks like a credential (%s): remove it, exclude the file in .dockerignore, "+
				"or write !%s there if it is none",
				f.Line, f.Message, text.Visible(name)), err
		}
	}
	return "", err
}
