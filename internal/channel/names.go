package channel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"agentsh/internal/wire"
)

// names reads the lists of a copy as a sequence of [wire.CopyName]. It encodes one name
// at a time.
type names struct {
	lists [3][]string // paths, names, deleted
	buf   bytes.Buffer
}

// newNames returns nil if the lists fit into the request itself.
func newNames(req wire.CopyOut) *names {
	n := &names{lists: [3][]string{req.Paths, req.Names, req.Deleted}}
	size := 0
	for _, list := range n.lists {
		for _, name := range list {
			if size += len(name) + len(`"",`); size > maxInline {
				return n
			}
		}
	}
	return nil
}

// Read implements io.Reader.
func (n *names) Read(p []byte) (int, error) {
	for i := 0; n.buf.Len() < len(p) && i < len(n.lists); {
		if len(n.lists[i]) == 0 {
			i++
			continue
		}
		one := wire.CopyName{}
		*[]*wire.Name{&one.Path, &one.Name, &one.Deleted}[i] = wire.Name(n.lists[i][0])
		n.lists[i] = n.lists[i][1:]
		if err := json.NewEncoder(&n.buf).Encode(one); err != nil {
			return 0, err
		}
	}
	return n.buf.Read(p) // io.EOF when it is empty
}

// readNames reads the lists of a copy into its request.
func readNames(in io.Reader, req *wire.CopyOut) error {
	if len(req.Paths)+len(req.Names)+len(req.Deleted) > 0 {
		return errors.New("the names of the copy are in two places")
	}
	one := &atMostReader{r: &listing{r: in, left: maxListing}}
	d := json.NewDecoder(one)
	for n := 0; ; n++ {
		var e wire.CopyName
		one.left = maxEntry
		err := d.Decode(&e)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("names of the copy: %w", err)
		case n == maxEntries:
			return &wire.Error{Code: wire.CodeLimit, Message: fmt.Sprintf("more than %d names to copy", maxEntries)}
		case e.Path != "":
			req.Paths = append(req.Paths, string(e.Path))
		case e.Name != "":
			req.Names = append(req.Names, string(e.Name))
		default:
			req.Deleted = append(req.Deleted, string(e.Deleted))
		}
	}
}
