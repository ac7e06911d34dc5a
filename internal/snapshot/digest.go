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

// blockSize is the size in bytes of the blocks that are tested for zeros.
const blockSize = 64 << 10

// sparseMark begins the digest of content that has a block of zeros.
const sparseMark = "z"

// content reads files in blocks of [blockSize] bytes; the last block may be
// shorter. It does not read holes.
//
// Content without a block of zeros has its SHA-256 as digest, in hexadecimal.
// For other content the digest is "z" and the SHA-256 of: the blocks that are
// not all zero, in order; for each run of zero blocks the number of its first
// block and its length in blocks; the number of runs; the size. Numbers have
// eight bytes, least significant first. A hole and stored zeros have the same
// digest.
type content struct {
	sum    hash.Hash
	to     *os.File // gets what is not zero, at its place; nil: nothing is copied
	runs   []uint64 // pairs: first block, number of blocks
	data   int64    // bytes of blocks that are not all zero
	buffer []byte
}

// digest returns the digest of a file's content.
func digest(f *os.File) (string, error) {
	sum, _, err := copyDigest(nil, f)
	return sum, err
}

// digestLike returns the digest of a file in the format of another digest.
func digestLike(f *os.File, other string) (string, error) {
	if strings.HasPrefix(other, sparseMark) {
		return digest(f)
	}
	return plainDigest(f)
}

// plainDigest returns the SHA-256 of all content, the digest of format 0.
func plainDigest(f *os.File) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// copyDigest reads a file from its start and returns its digest and the bytes
// that are not in zero blocks. If to is not nil it also copies the content
// there; to must be empty.
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

// zeros records that the bytes from one block boundary until another, or the
// end, are zero.
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

// read reads whole blocks from at on, until a block ends at or after until. It
// returns where that block ends.
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
		} else if err := c.add(block, at); err != nil {
			return 0, err
		}
		at += int64(len(block))
	}
	return at, nil
}

func (c *content) add(block []byte, at int64) error {
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
