package resume

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestABufferIsAQueue compares it with one slice, through random steps.
func TestABufferIsAQueue(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var b buffer
		var want []byte
		for step := range 400 {
			switch r.IntN(4) {
			case 0, 1:
				p := make([]byte, r.IntN(3*blockSize)>>r.IntN(17))
				for i := range p {
					p[i] = byte(r.Uint32())
				}
				b.write(p)
				want = append(want, p...)
			case 2:
				n := r.IntN(len(want) + 1)
				b.drop(n)
				want = want[n:]
			case 3:
				p := make([]byte, r.IntN(2*blockSize))
				n := b.read(p)
				if n != min(len(p), len(want)) || !bytes.Equal(p[:n], want[:n]) {
					t.Fatalf("seed %d, step %d: %d bytes read", seed, step, n)
				}
				want = want[n:]
			}
			if b.len() != len(want) || len(b.spare) > maxSpare {
				t.Fatalf("seed %d, step %d: %d bytes, want %d; %d spare blocks", seed, step, b.len(), len(want), len(b.spare))
			}
			if len(want) > 0 {
				offset := r.IntN(len(want))
				if got := b.from(offset); len(got) == 0 || len(got) > len(want)-offset || !bytes.Equal(got, want[offset:offset+len(got)]) {
					t.Fatalf("seed %d, step %d: other bytes at %d", seed, step, offset)
				}
			}
		}
	}
}
