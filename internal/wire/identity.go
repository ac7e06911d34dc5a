package wire

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identity is the name and the email that git writes into commits. Either may be empty.
type Identity struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}

// maxIdentity is the length of a name or an email, in bytes.
const maxIdentity = 1024

// Check refuses an identity that is more than a line of text.
func (id Identity) Check() error {
	for key, value := range map[string]string{"user.name": id.Name, "user.email": id.Email} {
		if len(value) > maxIdentity || !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
			return fmt.Errorf("%s is not one line of at most %d bytes of text: set it with 'git config --global %s TEXT'", key, maxIdentity, key)
		}
	}
	return nil
}

// GitConfig returns git's settings of the system for a session: those of the machine, and
// the identity. Where the session shows files with another owner than they have, git must not
// compare the owner with its index: it would read all files again, inside and then outside.
func (id Identity) GitConfig(otherOwner bool) ([]byte, error) {
	if err := id.Check(); err != nil {
		return nil, err
	}
	out := []byte("[include]\n\tpath = /etc/gitconfig\n")
	if otherOwner {
		out = append(out, "[core]\n\tcheckStat = minimal\n"...)
	}
	if id != (Identity{}) {
		out = append(out, "[user]\n"...)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	if id.Name != "" {
		out = fmt.Appendf(out, "\tname = \"%s\"\n", quote(id.Name))
	}
	if id.Email != "" {
		out = fmt.Appendf(out, "\temail = \"%s\"\n", quote(id.Email))
	}
	return out, nil
}
