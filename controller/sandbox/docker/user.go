package docker

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// errRoot is the error of a container that has no rights of root, and whose user has another name of root.
var errRoot = errors.New("the user is root by another name")

// otherUser says what to do about a user that an image does not have.
const otherUser = "container.user: write a UID, or a name that /etc/passwd of the image has"

// checkName returns [errRoot] if a user is a name of UID 0 in the image, as toor is in some.
func (c *container) checkName(ctx context.Context, user string) error {
	name, _, _ := strings.Cut(user, ":")
	if _, err := strconv.Atoi(name); err == nil || isRoot(name) {
		return nil
	}
	uid, err := c.uidOf(ctx, name)
	switch {
	case err != nil:
		return fmt.Errorf("look for the user %s in the image: %w: %s", name, err, otherUser)
	case uid == "0":
		return errRoot
	}
	return nil
}

// passwd is the file with the users of an image.
const passwd = "/etc/passwd"

// Bounds of a file of users.
const (
	maxPasswd = 4 << 20 // bytes
	maxLinks  = 8
)

// uidOf is the UID of a name in the file system of the container; empty: it has none, which the engine says.
func (c *container) uidOf(ctx context.Context, name string) (string, error) {
	file := passwd
	for range maxLinks {
		got, err := c.b.engine.CopyFromContainer(ctx, c.made.id, client.CopyFromContainerOptions{SourcePath: file})
		if errdefs.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		uid, link, err := readUID(got.Content, name)
		if err = errors.Join(err, got.Content.Close()); err != nil || link == "" {
			return uid, err
		}
		if !path.IsAbs(link) {
			link = path.Join(path.Dir(file), link)
		}
		file = link
	}
	return "", fmt.Errorf("%s: too many links", passwd)
}

// readUID reads an archive of one file of users. It returns the target of a link instead.
func readUID(archive io.Reader, name string) (uid, link string, err error) {
	files := tar.NewReader(archive)
	h, err := files.Next()
	switch {
	case err != nil:
		return "", "", err
	case h.Typeflag == tar.TypeSymlink && h.Linkname != "":
		return "", h.Linkname, nil
	case h.Typeflag != tar.TypeReg || h.Size > maxPasswd:
		return "", "", fmt.Errorf("%s is no regular file of at most %d bytes", passwd, maxPasswd)
	}
	lines := bufio.NewScanner(files)
	lines.Buffer(nil, maxPasswd)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), ":", 4)
		if len(fields) == 4 && fields[0] == name {
			if number, err := strconv.Atoi(fields[2]); err == nil && number == 0 {
				return "0", "", nil
			}
			return fields[2], "", nil
		}
	}
	return "", "", lines.Err()
}
