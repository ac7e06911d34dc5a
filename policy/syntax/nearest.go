package syntax

import (
	"fmt"
	"strings"
)

// maxProblems is how many problems one load reports before it stops counting.
const maxProblems = 100

// nearest returns the word of words closest to s, if any is close enough to
// be what the author meant.
func nearest(s string, words []string) string {
	best, bestDistance := "", len(s)/3+1
	if bestDistance > 3 {
		bestDistance = 3
	}
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

// DidYouMean is the advice about a word that is none of words: the nearest one,
// or the list where it is short. It may be empty.
func DidYouMean(s string, words []string) string { return didYouMean(s, words) }

// didYouMean is the hint that names the nearest word, or lists a short choice.
func didYouMean(s string, words []string) string {
	if w := nearest(s, words); w != "" {
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
