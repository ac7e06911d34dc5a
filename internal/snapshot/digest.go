package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"strings"

	"agentsh/internal/beneath"
)

// blockSize is the unit in which content is looked at for zeros, in bytes.
const blockSize = 64 << 10

// sparseMark begins the digest of content with a block of zeros.
const sparseMark = "z"

// content reads files, whose holes cost nothing: it looks at blocks of
// [blockSize] bytes, the last one may be shorter.
//
// The digest of content without a block of zeros is its SHA-256, in hexadecimal.
// The digest of other content is "z" and the SHA-256 of its blocks that are not
// all zero, in order, then for each run of blocks of zeros the numbers of its
// first block and of its blocks, then the number of runs, then the size; numbers
// have eight bytes, the lowest first. So a hole and zeros on the disk are alike.
type content struct {
	sum    hash.Hash
	to     *os.File // gets what is not zero, at its place; nil: nothing is copied
	runs   []uint64 // pairs: first block, number of blocks
	data   int64    // bytes of blocks that are not all zero
	buffer []byte
}

// digest is the digest of the content of a file.
func digest(f *os.File) (string, error) {
	sum, _, err := copyDigest(nil, f)
	return sum, err
}

// digestLike is the digest of a file of the kind that another digest is of. Those
// of old checkpoints are the SHA-256 of all content.
func digestLike(f *os.File, other string) (string, error) {
	if strings.HasPrefix(other, sparseMark) {
		return digest(f)
	}
	return plainDigest(f)
}

// plainDigest is the SHA-256 of all that a file holds.
func plainDigest(f *os.File) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// copyDigest reads a file from its start, copies it to an empty one, unless that
// is nil, and returns the digest and how many bytes are not in blocks of zeros.
func copyDigest(to, from *os.File) (sum string, data int64, err error) {
	size, err := beneath.Size(from)
	if err != nil {
		return "", 0, err
	}
	c := &content{sum: sha256.New(), to: to, buffer: make([]byte, blockSize)}
	end := int64(0) // of what was looked at
	err = beneath.EachData(from, size, func(at, until int64) error {
		at = max(end, at-at%blockSize)
		c.zeros(end, at)
		end, err = c.read(from, at, until, size)
		return err
	})
	if err != nil {
		return "", 0, err
	}
	c.zeros(end, size)
	if to != nil {
		if err := to.Truncate(size); err != nil {
			return "", 0, err
		}
	}
	return c.digest(size), c.data, nil
}

// zeros notes that the file has zeros from one block on, and until a block begins
// or it ends.
func (c *content) zeros(from, until int64) {
	if from >= until {
		return
	}
	first, n := uint64(from/blockSize), uint64((until-from+blockSize-1)/blockSize)
	if last := len(c.runs); last > 0 && c.runs[last-2]+c.runs[last-1] == first {
		c.runs[last-1] += n
		return
	}
	c.runs = append(c.runs, first, n)
}

// read reads whole blocks from at, until one ends at or after until, and returns
// where that is.
func (c *content) read(from *os.File, at, until, size int64) (int64, error) {
	for at < until {
		block := c.buffer[:min(blockSize, size-at)]
		n, err := from.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		clear(block[n:]) // it was cut meanwhile, which its times tell
		if allZero(block) {
			c.zeros(at, at+int64(len(block)))
		} else if err := c.take(block, at); err != nil {
			return 0, err
		}
		at += int64(len(block))
	}
	return at, nil
}

func (c *content) take(block []byte, at int64) error {
	c.sum.Write(block)
	c.data += int64(len(block))
	if c.to == nil {
		return nil
	}
	_, err := c.to.WriteAt(block, at)
	return err
}

func (c *content) digest(size int64) string {
	if len(c.runs) == 0 {
		return hex.EncodeToString(c.sum.Sum(nil))
	}
	var end []byte
	for _, n := range append(c.runs, uint64(len(c.runs)/2), uint64(size)) {
		end = binary.LittleEndian.AppendUint64(end, n)
	}
	c.sum.Write(end)
	return sparseMark + hex.EncodeToString(c.sum.Sum(nil))
}

func allZero(block []byte) bool {
	return block[0] == 0 && bytes.Equal(block[1:], block[:len(block)-1])
}
