package launch

// SupportedRights are the file rights of this kernel's Landlock.
func SupportedRights() uint64 { return supported(LandlockABI()) }
