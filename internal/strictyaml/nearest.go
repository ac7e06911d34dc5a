package strictyaml

import (
	"fmt"
	"strings"
)

// Nearest returns the word that is closest to s, or an empty text if none is
// close enough to be what the author meant.
func Nearest(s string, words []string) string {
	best, bestDistance := "", min(len(s)/3+1, 3)
	for _, w := range words {
		if strings.EqualFold(s, w) {
			return w
		}
		if d := distance(s, w, bestDistance); d <= bestDistance && (best == "" || d < bestDistance) {
			best, bestDistance = w, d
		}
	}
	return best
}

// DidYouMean returns a hint about a word that is none of words: the nearest one,
// or all of them if they are few. It may be empty.
func DidYouMean(s string, words []string) string {
	if w := Nearest(s, words); w != "" {
		return fmt.Sprintf("did you mean %q?", w)
	}
	if len(words) <= 24 {
		return "one of: " + strings.Join(words, ", ")
	}
	return ""
}

// distance is the number of edits, a swap of neighbours counting as one, that
// turn a into b; more than limit is reported as limit+1.
func distance(a, b string, limit int) int {
	if len(a) > 64 || len(b) > 64 || len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	rows := [3][65]int{}
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit+1)
}
