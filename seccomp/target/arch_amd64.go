package target

// The general registers of a 64-bit program, struct user_regs_struct.
const (
	regsSize    = 27 * 8
	regsStackAt = 19 * 8
)

// untag removes what the hardware ignores in an address: nothing here.
func untag(addr uint64) uint64 { return addr }
