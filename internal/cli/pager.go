package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// show prints a page. On a terminal man(1) takes the place of this process: it
// formats the page and shows it in a pager.
func show(out io.Writer, page string) error {
	f, ok := out.(*os.File)
	if !ok || !isTerminal(f) {
		_, err := io.WriteString(out, page)
		return err
	}
	man := findMan()
	if man == "" {
		return errors.New("man is not installed here: use --help, or write the page into a file")
	}
	if err := asInput(page); err != nil {
		return fmt.Errorf("give the page to man: %w", err)
	}
	return fmt.Errorf("%s: %w", man, unix.Exec(man, []string{"man", "-l", "-"}, os.Environ()))
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// asInput makes a text the standard input.
func asInput(text string) error {
	fd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "page")
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return unix.Dup3(fd, 0, 0)
}

// findMan finds man(1) in the directories of PATH.
func findMan() string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		file := filepath.Join(dir, "man")
		if info, err := os.Stat(file); filepath.IsAbs(dir) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}
