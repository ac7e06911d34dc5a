package scan

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
)

// Fingerprints recognise secrets without holding them, so the agent may read
// the settings of a redacting hook. Each value is recognised as it is, in
// base64 and in hexadecimal.
type Fingerprints struct {
	Salt []byte        `json:"salt,omitempty"` // 16 bytes, random
	List []Fingerprint `json:"list,omitempty"`
}

// Fingerprint is one spelling of one secret.
type Fingerprint struct {
	Length int    `json:"length"` // bytes
	Sum    uint32 `json:"sum"`    // rolling sum, 24 bits: what comes into question
	MAC    []byte `json:"mac"`    // first 16 bytes of HMAC-SHA-256 under the salt
}

// MinFingerprint is the least length in bytes of a value for [NewFingerprints].
// A shorter one could be found by trial.
const MinFingerprint = 20

const (
	saltBytes = 16
	macBytes  = 16
)

// NewFingerprints makes fingerprints of values and leaves out short ones.
func NewFingerprints(salt []byte, values []string) (Fingerprints, error) {
	f := Fingerprints{Salt: salt}
	if len(salt) != saltBytes {
		return f, errors.New("a salt is 16 bytes")
	}
	for _, v := range values {
		if len(v) < MinFingerprint {
			continue
		}
		spellings := append([][]byte{[]byte(v), []byte(hex.EncodeToString([]byte(v)))}, offsets(v, 3, 6, base64.StdEncoding.EncodeToString)...)
		for _, s := range spellings {
			f.List = append(f.List, Fingerprint{Length: len(s), Sum: f.sum(s), MAC: f.mac(s)})
		}
	}
	return f, nil
}

// Check returns an error for fingerprints that can never match.
func (f Fingerprints) Check() error {
	if len(f.List) > 0 && len(f.Salt) != saltBytes {
		return errors.New("fingerprints without a salt")
	}
	for i, x := range f.List {
		if x.Length < MinFingerprint || x.Length > 1<<20 || len(x.MAC) != macBytes {
			return fmt.Errorf("fingerprint %d is malformed", i)
		}
	}
	return nil
}

func (f Fingerprints) mac(b []byte) []byte {
	m := hmac.New(sha256.New, f.Salt)
	m.Write(b)
	return m.Sum(nil)[:macBytes]
}

// factor is the odd multiplier of the rolling sum.
func (f Fingerprints) factor() uint64 { return binary.LittleEndian.Uint64(f.Salt) | 1 }

func (f Fingerprints) sum(b []byte) uint32 {
	h, by := uint64(0), f.factor()
	for _, c := range b {
		h = h*by + uint64(c) + 1
	}
	return uint32(h >> 40)
}

// redact replaces every text with one of the fingerprints and returns the
// number of replacements.
func (f Fingerprints) redact(b []byte) ([]byte, int) {
	var cuts []cut
	lengths := map[int][]Fingerprint{}
	for _, x := range f.List {
		lengths[x.Length] = append(lengths[x.Length], x)
	}
	for n, list := range lengths {
		cuts = append(cuts, f.find(b, n, list)...)
	}
	if len(cuts) == 0 {
		return b, 0
	}
	return rewrite(b, cuts, "[redacted secret]")
}

// find looks for values of n bytes. See Karp and Rabin, "Efficient randomized
// pattern-matching algorithms", 1987.
func (f Fingerprints) find(b []byte, n int, list []Fingerprint) []cut {
	if len(b) < n {
		return nil
	}
	var cuts []cut
	by, top, h := f.factor(), uint64(1), uint64(0)
	for range n - 1 {
		top *= by
	}
	for i, c := range b {
		if i >= n {
			h -= top * (uint64(b[i-n]) + 1)
		}
		h = h*by + uint64(c) + 1
		if i+1 < n {
			continue
		}
		from := i + 1 - n
		if slices.ContainsFunc(list, func(x Fingerprint) bool {
			return x.Sum == uint32(h>>40) && bytes.Equal(x.MAC, f.mac(b[from:i+1]))
		}) {
			cuts = append(cuts, cut{from, i + 1})
		}
	}
	return cuts
}
