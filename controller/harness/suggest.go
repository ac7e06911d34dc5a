package harness

// nearest is the candidate a misspelt word was probably meant to be, or "".
func nearest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	best, least := "", len(word)/3+1
	for _, c := range candidates {
		if d := distance(word, c); d < least || d == least && best == "" && d <= 2 {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of letters to add, drop, replace or swap with a
// neighbour to turn a into b.
func distance(a, b string) int {
	before, previous := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(previous[j]+1, row[j-1]+1, previous[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, previous = previous, row
	}
	return previous[len(b)]
}
