package host

import (
	"context"
	"testing"
)

func BenchmarkRunTrue(b *testing.B) {
	for b.Loop() {
		if _, err := Run(context.Background(), Command{Argv: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}
