package audit

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// anchor is a small file beside a log. It has the last event on disk, authenticated with a
// key. Without the key nobody can cut or replace the log and make the anchor match. It has
// two slots that are written in turn: a crash during a write leaves the other one.
type anchor struct {
	file *os.File
	key  []byte
	last Head
	slot int64 // to be written next
}

// AnchorSuffix is added to the path of a log for the path of its anchor.
const AnchorSuffix = ".anchor"

const (
	slotSize = 256
	keySize  = 32
)

type slot struct {
	Head
	MAC string `json:"mac"`
}

// openAnchor opens the anchor of the log at path. fresh says that the log has no event:
// only then a missing key or anchor is created.
func openAnchor(path, keyFile string, fresh bool) (*anchor, error) {
	key, err := readKey(keyFile)
	if errors.Is(err, os.ErrNotExist) && fresh {
		key, err = makeKey(keyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("audit key %s: %w", keyFile, err)
	}
	flags := os.O_RDWR | unix.O_NOFOLLOW
	if fresh {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(path+AnchorSuffix, flags, 0o600)
	if err != nil {
		return nil, err
	}
	a := &anchor{file: f, key: key}
	if err := a.read(fresh); err != nil {
		return nil, errors.Join(fmt.Errorf("audit anchor %s%s: %w", path, AnchorSuffix, err), f.Close())
	}
	return a, nil
}

func readKey(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("mode %v, want a regular file with mode 0600", info.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, 2*keySize+2))
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(string(bytes.TrimSuffix(text, []byte("\n"))))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("want %d bytes in hexadecimal", keySize)
	}
	return key, nil
}

func makeKey(name string) ([]byte, error) {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails, see crypto/rand
	fresh := name + "." + rand.Text()
	if err := writeNew(fresh, []byte(hex.EncodeToString(key)+"\n")); err != nil {
		return nil, err
	}
	err := os.Link(fresh, name) // never half written: another process may be creating the key, too
	if errors.Is(err, os.ErrExist) {
		key, err = readKey(name)
	}
	return key, errors.Join(err, os.Remove(fresh))
}

func (a *anchor) read(fresh bool) error {
	buf := make([]byte, 2*slotSize)
	n, err := a.file.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n == 0 && fresh {
		return nil
	}
	found := false
	for i := range int64(2) {
		var s slot
		text := bytes.Trim(buf[i*slotSize:(i+1)*slotSize], " \n\x00")
		if json.Unmarshal(text, &s) != nil || !hmac.Equal([]byte(s.MAC), []byte(a.mac(s.Head))) {
			continue
		}
		if !found || s.Seq > a.last.Seq {
			a.last, a.slot, found = s.Head, 1-i, true
		}
	}
	if !found {
		return errNoRecord
	}
	return nil
}

func (a *anchor) mac(h Head) string {
	m := hmac.New(sha256.New, a.key)
	fmt.Fprintf(m, "agentsh audit anchor\n%d\n%s\n", h.Seq, h.Hash)
	return hex.EncodeToString(m.Sum(nil))
}

// check compares the end of a log with the anchor. Events after the anchored one are
// valid: a crash can happen between the two writes.
func (a *anchor) check(h Head) error {
	switch {
	case h.Seq < a.last.Seq:
		return fmt.Errorf("it was cut: it ends with event %d, its anchor names event %d", h.Seq, a.last.Seq)
	case h.Seq == a.last.Seq && h.Hash != a.last.Hash:
		return fmt.Errorf("it was replaced: event %d is not the one its anchor names", h.Seq)
	}
	return nil
}

// write stores h as the last event on disk. The anchor itself may reach the disk later:
// an older anchor proves less, but is not wrong.
func (a *anchor) write(h Head) error {
	text, err := json.Marshal(slot{Head: h, MAC: a.mac(h)})
	if err != nil {
		return err
	}
	buf := bytes.Repeat([]byte(" "), slotSize)
	buf[slotSize-1] = '\n'
	copy(buf, text)
	if _, err := a.file.WriteAt(buf, a.slot*slotSize); err != nil {
		return fmt.Errorf("write the audit anchor: %w", err)
	}
	a.last, a.slot = h, 1-a.slot
	return nil
}

// Digest returns the replacement of a text that events must not show. It uses the key of
// the anchor. Without the key nobody can find the text by trying; with it texts can be
// compared.
func (l *Log) Digest(s string) string {
	m := hmac.New(sha256.New, l.anchor.key)
	fmt.Fprintf(m, "agentsh redacted text\n%s", s)
	return "redacted:" + hex.EncodeToString(m.Sum(nil)[:16])
}

func (a *anchor) close() error { return errors.Join(a.file.Sync(), a.file.Close()) }

// VerifyFile verifies the log at path as [Verify] does, and compares it with its anchor.
// It thus also detects a log that was cut at its end or replaced as a whole. A log without
// an event is not valid if its anchor is empty too: nothing shows that it had none.
func VerifyFile(path, keyFile string) (Head, error) {
	f, err := os.Open(path)
	if err != nil {
		return Head{}, err
	}
	defer f.Close()
	a, err := readAnchor(path, keyFile)
	if err != nil {
		if errors.Is(err, errNoRecord) && isEmpty(path) && isEmpty(path+AnchorSuffix) {
			err = fmt.Errorf("%s: %w", path, errNotBegun)
		}
		return Head{}, err
	}
	head, err := verify(f, func(h Head) error {
		if h.Seq == a.last.Seq {
			return a.check(h)
		}
		return nil
	})
	if err == nil {
		err = a.check(head)
	}
	if err != nil {
		return head, fmt.Errorf("%s: %w", path, err)
	}
	return head, nil
}

var (
	errNoRecord = errors.New("no record in it was made with the audit key")
	errNotBegun = errors.New("it has no event, and its anchor is empty: its supervisor was killed before the session began, " +
		"or both were emptied")
)

func isEmpty(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() == 0
}

func readAnchor(path, keyFile string) (*anchor, error) {
	key, err := readKey(keyFile)
	if err != nil {
		return nil, fmt.Errorf("audit key %s: %w", keyFile, err)
	}
	f, err := os.Open(path + AnchorSuffix)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := &anchor{file: f, key: key}
	if err := a.read(false); err != nil {
		return nil, fmt.Errorf("audit anchor %s%s: %w", path, AnchorSuffix, err)
	}
	return a, nil
}
