package tarfs

import (
	"encoding/json"
	"fmt"
	"io"

	"agentsh/internal/wire"
)

// readManifest decodes a manifest and compares its entries one by one with the
// received entries. So a manifest cannot use more memory than the archive. The result
// has no entries.
func readManifest(r io.Reader, got *entryList, t *tally) (wire.Manifest, error) {
	var m wire.Manifest
	listed, seen := 0, map[string]bool{}
	one := &element{r: r, left: maxElement}
	d := json.NewDecoder(one)
	if err := expect(d, json.Delim('{')); err != nil {
		return m, err
	}
	for d.More() {
		one.left = maxElement
		key, err := d.Token()
		if err != nil {
			return m, err
		}
		name, _ := key.(string) // an object's token before a value is its key
		if seen[name] {
			return m, fmt.Errorf("key %q appears twice", name)
		}
		seen[name] = true
		switch name {
		case "entries":
			err = eachElement(d, one, func() error {
				var e wire.ManifestEntry
				if err := d.Decode(&e); err != nil {
					return err
				}
				listed++
				if listed > got.n {
					return fmt.Errorf("lists more than the %d entries of the archive", got.n)
				}
				return sameEntry(listed, *got.at(listed - 1), e)
			})
		case "deleted":
			m.Deleted, err = names(d, one, t, t.checkName)
		case "skipped":
			m.Skipped, err = names(d, one, t, nil)
		default:
			err = fmt.Errorf("unknown key %q", name)
		}
		if err != nil {
			return m, err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return m, err
	}
	if listed != got.n {
		return m, fmt.Errorf("lists %d entries, the archive has %d", listed, got.n)
	}
	return m, nil
}

// sameEntry compares a received entry with that of the manifest.
func sameEntry(i int, got, listed wire.ManifestEntry) error {
	if got == listed {
		return nil
	}
	return fmt.Errorf("entry %d: listed as %s, arrived as %s", i, describe(listed), describe(got))
}

func describe(e wire.ManifestEntry) string {
	return fmt.Sprintf("%.200q %s mode %o size %d sha256 %.12s", e.Path, e.Type, e.Mode, e.Size, e.SHA256)
}

// names reads an array of strings. It has at most as many elements as the archive may
// have entries.
func names(d *json.Decoder, one *element, t *tally, check func(string) error) ([]string, error) {
	var all []string
	err := eachElement(d, one, func() error {
		var s string
		if err := d.Decode(&s); err != nil {
			return err
		}
		if len(all) >= t.limits.Files {
			return fmt.Errorf("more than %d names: %w", t.limits.Files, ErrLimit)
		}
		if err := t.name(s); err != nil {
			return err
		}
		all = append(all, s)
		if check == nil {
			return nil
		}
		return check(s)
	})
	return all, err
}

// maxElement bounds one element of a manifest, in bytes.
const maxElement = 64 << 10

// element fails after a number of bytes, which is set for each element. So one of them
// cannot use more memory.
type element struct {
	r    io.Reader
	left int
}

func (e *element) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, fmt.Errorf("an element of more than %d bytes: %w", maxElement, ErrLimit)
	}
	n, err := e.r.Read(p[:min(len(p), e.left)])
	e.left -= n
	return n, err
}

// eachElement calls fn for each element of the next array of d, which reads from one.
// null counts as an empty array.
func eachElement(d *json.Decoder, one *element, fn func() error) error {
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != json.Delim('[') {
		return fmt.Errorf("found %v where an array belongs", t)
	}
	for d.More() {
		one.left = maxElement
		if err := fn(); err != nil {
			return err
		}
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("found %v where %v belongs", t, want)
	}
	return nil
}
