package gateways

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Token reads a token from a file. It is the whole content, or the access token of what 'openshell gateway login' stored.
func Token(file string, now time.Time) (string, error) {
	data, err := read(file)
	if err != nil {
		return "", fmt.Errorf("token of the gateway: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if !strings.HasPrefix(text, "{") {
		return text, nil
	}
	var stored struct {
		Access  string `json:"access_token"`
		Expires int64  `json:"expires_at"` // seconds since 1970; 0: unknown
	}
	if json.Unmarshal(data, &stored) != nil || stored.Access == "" { // its error would show a part of the token
		err = errors.New("no access_token in it")
	} else if stored.Expires != 0 && now.Unix() >= stored.Expires {
		err = fmt.Errorf("it expired at %s", time.Unix(stored.Expires, 0).UTC().Format(time.RFC3339))
	}
	if err != nil {
		return "", fmt.Errorf("token of the gateway: %s: %w: 'openshell gateway login' renews it", file, err)
	}
	return stored.Access, nil
}
