package view

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// Hidden is a directory of agentsh that commands must not see.
type Hidden struct {
	Dir  string
	What string // its content, for messages
}

// hide covers a directory of agentsh. It returns an error if commands could
// change it. If a missing directory would become visible later, it is created.
func (v *Plan) hide(h Hidden) error {
	for _, g := range v.Governed {
		if !g.Closed && (Below(h.Dir, g.Backing) || Below(g.Backing, h.Dir)) {
			return fmt.Errorf("%s holds %s and cannot be shown: leave it out of the workspace and give no different rules around it", h.Dir, h.What)
		}
	}
	if !slices.ContainsFunc(v.binds, func(b bind) bool { return Below(h.Dir, b.path) || Below(b.path, h.Dir) }) {
		return nil
	}
	err := os.Mkdir(h.Dir, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("hide %s: %w", h.Dir, err)
	}
	v.masked = append(v.masked, h.Dir)
	return nil
}
