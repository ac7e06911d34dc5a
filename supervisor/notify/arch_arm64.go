package notify

import "golang.org/x/sys/unix"

const nativeArch = 0xc00000b7 // AUDIT_ARCH_AARCH64

const sysFstatat = unix.SYS_FSTATAT
