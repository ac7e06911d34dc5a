package fuse

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAMappingFollowsTheHost: what the host writes to a file appears in a mapping of it
// that a command made before, as in a plain directory. A file that replaced it does not.
func TestAMappingFollowsTheHost(t *testing.T) {
	for _, size := range []int{5000, 300_000} {
		for _, access := range []int{os.O_RDONLY, os.O_RDWR} {
			for _, plain := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d bytes, access %d, plain %v", size, access, plain), func(t *testing.T) {
					s := start(t, options{plain: plain})
					s.seed(map[string]string{"d/f": strings.Repeat("o", size)})
					f, err := os.OpenFile(s.path("d/f"), access, 0)
					must(t, err)
					defer f.Close()
					page, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
					must(t, err)
					defer func() { must(t, unix.Munmap(page)) }()
					if strings.Trim(string(page), "o") != "" {
						t.Fatalf("at first: %.20q", page)
					}
					outside(t, s.back("d"), "printf new | dd of=f conv=notrunc status=none; printf end | dd of=f bs=1 seek="+
						fmt.Sprint(size-3)+" conv=notrunc status=none")
					want := "new" + strings.Repeat("o", size-6) + "end"
					for began := time.Now(); string(page) != want; {
						if time.Since(began) > 30*time.Second {
							t.Fatalf("%.20q ... %.20q", page, page[size-20:])
						}
						<-time.After(time.Millisecond)
					}
					outside(t, s.back("d"), "head -c "+fmt.Sprint(size)+" /dev/zero >.f; mv .f f")
					await(s, "the file that replaced it", content("d/f"))
					if string(page) != want {
						t.Errorf("after the file was replaced: %.20q ... %.20q", page, page[size-20:])
					}
				})
			}
		}
	}
}

// TestEditsAreSeenWhereNothingIsWatched: every kind of edit is seen after the age of what
// the kernel caches, a second.
func TestEditsAreSeenWhereNothingIsWatched(t *testing.T) {
	for _, e := range treeEdits {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, options{watched: -1})
			seedEdited(t, s.backing)
			look(t, s.dir)
			e.do(t, s.backing)
			want := look(t, s.backing)
			began := time.Now()
			for look(t, s.dir) != want {
				if time.Since(began) > 30*time.Second {
					t.Fatalf("inside:\n%s\noutside:\n%s", look(t, s.dir), want)
				}
				<-time.After(20 * time.Millisecond)
			}
			t.Logf("seen after %v", time.Since(began))
		})
	}
}

// TestAWorkingDirectoryThatTheHostMoves: a command whose working directory the host moves
// finds nothing there, since the kernel names the directory by a path that is gone. By its
// new path the directory is used at once.
func TestAWorkingDirectoryThatTheHostMoves(t *testing.T) {
	s := start(t, options{})
	s.seed(map[string]string{"d/f": "text", "e/x": "x"})
	outside(t, s.dir, `d=$PWD; cd d; cat f >/dev/null; mv "`+s.back("d")+`" "`+s.back("e/moved")+`"
		for i in $(seq 1000); do [ ! -e "$d/e/moved/f" ] || break; sleep 0.01; done
		! cat f 2>/dev/null; cd "$d/e/moved"; test "$(cat f)" = text; echo new >g; test "$(cat "`+s.back("e/moved/g")+`")" = new`)
}
