package testenv

import (
	"os"
	"strings"
	"testing"
)

// Block is a fenced block of a page in Markdown.
type Block struct {
	Kind string // after the fence, as in yaml
	Text string
	Line int // of the text
}

// Blocks are the fenced blocks of a page, in order.
func Blocks(t testing.TB, page string) []Block {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var out []Block
	var open *Block
	for i, l := range strings.Split(string(data), "\n") {
		kind, fence := strings.CutPrefix(l, "```")
		switch {
		case fence && open == nil:
			open = &Block{Kind: kind, Line: i + 2}
		case fence:
			out = append(out, *open)
			open = nil
		case open != nil:
			open.Text += l + "\n"
		}
	}
	return out
}
