package resume

// buffer is a queue of bytes in blocks. What is taken from its front moves no other byte. The zero value is
// empty.
type buffer struct {
	blocks [][]byte // all but the last are full
	start  int      // of the first byte in the first block
	n      int      // bytes
	spare  [][]byte // empty blocks
}

const (
	blockSize = 64 << 10
	maxSpare  = 4 // blocks
)

func (b *buffer) len() int { return b.n }

// write appends bytes.
func (b *buffer) write(p []byte) {
	b.n += len(p)
	for len(p) > 0 {
		last := len(b.blocks) - 1
		if last < 0 || len(b.blocks[last]) == blockSize {
			b.blocks = append(b.blocks, b.empty())
			last++
		}
		n := min(blockSize-len(b.blocks[last]), len(p))
		b.blocks[last] = append(b.blocks[last], p[:n]...)
		p = p[n:]
	}
}

// empty is a block without bytes.
func (b *buffer) empty() []byte {
	if last := len(b.spare) - 1; last >= 0 {
		block := b.spare[last]
		b.spare = b.spare[:last]
		return block
	}
	return make([]byte, 0, blockSize)
}

// from returns some of the bytes at an offset below len. They are valid until the next call of another method.
func (b *buffer) from(offset int) []byte {
	at := b.start + offset
	return b.blocks[at/blockSize][at%blockSize:]
}

// drop removes bytes from the front.
func (b *buffer) drop(n int) {
	b.n -= n
	b.start += n
	gone := b.start / blockSize
	if b.n == 0 {
		gone = len(b.blocks)
	}
	for _, block := range b.blocks[:gone] {
		if len(b.spare) < maxSpare {
			b.spare = append(b.spare, block[:0])
		}
	}
	kept := copy(b.blocks, b.blocks[gone:])
	clear(b.blocks[kept:])
	b.blocks, b.start = b.blocks[:kept], b.start-gone*blockSize
	if b.n == 0 {
		b.start = 0
	}
}

// read moves bytes from the front to p.
func (b *buffer) read(p []byte) int {
	n := 0
	for n < len(p) && b.n > 0 {
		m := copy(p[n:], b.from(0))
		b.drop(m)
		n += m
	}
	return n
}
