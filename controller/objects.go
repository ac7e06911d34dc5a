package controller

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"agentsh/controller/bootstrap"
)

// maxTree bounds the files of a commit.
const maxTree = 2_000_000

// tree lists the files of the clone's HEAD.
func (t target) tree(ctx context.Context, clone string) ([]bootstrap.Blob, error) {
	out := t.git.stream(ctx, clone, strings.NewReader(""), "ls-tree", "-r", "-t", "-z", "--long", "--full-tree", "HEAD")
	defer func() { _ = out.Close() }() // what is left after an error says nothing
	var all []bootstrap.Blob
	var links []int
	r := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := r.ReadString(0)
		if errors.Is(err, io.EOF) && line == "" {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list files of the commit: %w", err)
		}
		b, err := treeEntry(strings.TrimSuffix(line, "\x00"))
		if err != nil {
			return nil, err
		}
		if b.Kind == bootstrap.KindSymlink {
			links = append(links, len(all))
		}
		if all = append(all, b); len(all) > maxTree {
			return nil, fmt.Errorf("the commit has more than %d files", maxTree)
		}
	}
	return all, t.readLinks(ctx, clone, all, links)
}

// treeEntry reads one line of ls-tree: mode, type, object and size, a tab, the
// path. See git-ls-tree(1), OUTPUT FORMAT.
func treeEntry(line string) (bootstrap.Blob, error) {
	head, name, ok := strings.Cut(line, "\t")
	f := strings.Fields(head)
	if !ok || len(f) != 4 {
		return bootstrap.Blob{}, fmt.Errorf("git ls-tree: %.200q is no entry", line)
	}
	b := bootstrap.Blob{Path: name, Kind: bootstrap.KindFile, Mode: 0o644, ID: f[2]}
	switch {
	case f[1] != "blob": // a directory, or the commit of a submodule
		b.Kind, b.Mode, b.ID = bootstrap.KindDir, 0o755, ""
		return b, nil
	case f[0] == "120000":
		b.Kind, b.Mode = bootstrap.KindSymlink, 0o777
	case f[0] == "100755":
		b.Mode = 0o755
	}
	size, err := strconv.ParseInt(f[3], 10, 64)
	if err != nil {
		return b, fmt.Errorf("git ls-tree: %.200q: %w", line, err)
	}
	b.Size = size
	return b, nil
}

// maxTarget is the longest target of a link, in bytes.
const maxTarget = 4096

// readLinks fills in where links lead.
func (t target) readLinks(ctx context.Context, clone string, all []bootstrap.Blob, links []int) error {
	if len(links) == 0 {
		return nil
	}
	ids := make([]string, len(links))
	for i, at := range links {
		ids[i] = all[at].ID
	}
	out, err := t.objects(clone)(ctx, ids)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	r := bufio.NewReader(out)
	for _, at := range links {
		content, err := object(r, all[at])
		if err != nil {
			return err
		}
		target, err := io.ReadAll(io.LimitReader(content, maxTarget))
		if err == nil {
			_, err = io.Copy(io.Discard, content)
		}
		if err == nil {
			_, err = r.Discard(1)
		}
		if err != nil {
			return fmt.Errorf("read link %q: %w", all[at].Path, err)
		}
		all[at].Target, all[at].ID = string(target), ""
	}
	return nil
}

// object reads the head of the next object, which must be b's, and returns its
// content; one byte follows it.
func object(r *bufio.Reader, b bootstrap.Blob) (io.Reader, error) {
	head, err := r.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("read object of %q: %w", b.Path, err)
	}
	if head != fmt.Sprintf("%s blob %d\n", b.ID, b.Size) {
		return nil, fmt.Errorf("read object of %q: got %q", b.Path, head)
	}
	return io.LimitReader(r, b.Size), nil
}

// objects opens objects of the clone.
func (t target) objects(clone string) bootstrap.Objects {
	return func(ctx context.Context, ids []string) (io.ReadCloser, error) {
		return t.git.stream(ctx, clone, strings.NewReader(strings.Join(ids, "\n")+"\n"), "cat-file", "--batch", "--buffer"), nil
	}
}

// inBase reports the files of the commit the agent starts from.
func (r *run) inBase() func(name string) bool {
	names := make(map[string]struct{}, len(r.tree))
	for _, b := range r.tree {
		names[b.Path] = struct{}{}
	}
	return func(name string) bool {
		_, ok := names[name]
		return ok && fs.ValidPath(name)
	}
}
