package report

import (
	"fmt"
	"strings"
	"time"

	"agentsh/internal/text"
)

// class is the CSS class of a line of a difference.
func class(line string) string {
	switch line[0] {
	case '+':
		return "add"
	case '-':
		return "remove"
	case '@':
		return "hunk"
	}
	return ""
}

// Mode describes the change of a file's permission bits; empty: no change.
func (f File) Mode() string {
	if f.OldMode == 0 || f.NewMode == 0 || f.OldMode == f.NewMode {
		return ""
	}
	return fmt.Sprintf("mode %o → %o", f.OldMode, f.NewMode)
}

// lines cuts each line of a text to at most limit characters.
func lines(s string, limit int) string {
	all := strings.Split(clip(strings.Trim(s, "\n"), limit), "\n")
	for i := range all {
		all[i] = text.Line(strings.TrimSuffix(all[i], "\r"))
	}
	return strings.Join(all, "\n")
}

// clip cuts a text and marks the cut.
func clip(s string, limit int) string {
	seen := 0
	for i := range s {
		if seen == limit {
			return fmt.Sprintf("%s... (%d bytes)", s[:i], len(s))
		}
		seen++
	}
	return s
}

// count formats a number with separated thousands.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// size formats a number of bytes.
func size(n int64) string {
	const k = 1024
	switch {
	case n >= k*k*k:
		return fmt.Sprintf("%.1f GiB", float64(n)/(k*k*k))
	case n >= k*k:
		return fmt.Sprintf("%.1f MiB", float64(n)/(k*k))
	case n >= k:
		return fmt.Sprintf("%.1f KiB", float64(n)/k)
	}
	return fmt.Sprintf("%d B", n)
}

// span formats a duration with about three digits.
func span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
