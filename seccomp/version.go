package seccomp

import (
	"fmt"

	scmp "github.com/seccomp/libseccomp-golang"
)

// LibraryVersion is the version of the libseccomp that is linked in.
func LibraryVersion() string {
	major, minor, micro := scmp.GetLibraryVersion()
	return fmt.Sprintf("%d.%d.%d", major, minor, micro)
}
