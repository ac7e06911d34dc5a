package target

// The general registers of a 64-bit program, struct user_pt_regs.
const (
	regsSize    = 34 * 8
	regsStackAt = 31 * 8
)

// untag removes what the hardware ignores in an address, its top byte. See
// Documentation/arch/arm64/tagged-address-abi.rst.
func untag(addr uint64) uint64 { return addr & (1<<56 - 1) }
