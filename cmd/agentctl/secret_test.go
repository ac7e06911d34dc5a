package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
)

// secret is a value that must not be found.
type secret string

func newSecret() secret { return secret("real-value-" + rand.Text()) }

// in reports whether the secret is in data, as it is or encoded.
func (s secret) in(data []byte) bool {
	for _, form := range s.forms() {
		if bytes.Contains(data, form) {
			return true
		}
	}
	return false
}

// forms are the secret and its encodings. Base64 has three: for each offset the
// secret may have in what was encoded, the characters that depend on it alone.
func (s secret) forms() [][]byte {
	plain := hex.EncodeToString([]byte(s))
	forms := [][]byte{[]byte(s), []byte(plain), []byte(strings.ToUpper(plain))}
	for offset := range 3 {
		text := base64.RawStdEncoding.EncodeToString(append(make([]byte, offset), s...))
		first, bits := (offset*8+5)/6, (offset+len(s))*8
		text = text[first : bits/6]
		forms = append(forms, []byte(text), []byte(strings.NewReplacer("+", "-", "/", "_").Replace(text)))
	}
	return forms
}

func TestASecretIsFoundHoweverItIsEncoded(t *testing.T) {
	s := newSecret()
	for before := range 4 {
		for after := range 4 {
			text := strings.Repeat("a", before) + string(s) + strings.Repeat("b", after)
			for name, data := range map[string]string{
				"plain": text, "hex": hex.EncodeToString([]byte(text)), "base64": base64.StdEncoding.EncodeToString([]byte(text)),
				"base64 for URLs": base64.RawURLEncoding.EncodeToString([]byte(text)),
			} {
				if !s.in([]byte(data)) {
					t.Errorf("not found in %s with %d bytes before and %d behind: %s", name, before, after, data)
				}
			}
		}
	}
	if s.in([]byte(newSecret())) {
		t.Error("another one was found")
	}
}
