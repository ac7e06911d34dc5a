package harness

// Unused are the settings of a container that a backend without containers would ignore.
func (c Container) Unused(backend string, s Severity) Problems {
	var ps Problems
	at := func(key string, o Origin) {
		if !o.IsZero() {
			ps = append(ps, Problem{
				At: o, Severity: s, Rule: RuleUnsupport, Message: "container." + key + ": the backend " + backend + " makes no container",
				Hint: "write backend: docker or podman, or run with --backend",
			})
		}
	}
	at("user", c.User.At)
	at("memory_mb", c.MemoryMB.At)
	at("cpus", c.CPUs.At)
	at("pids", c.PIDs.At)
	at("disk_mb", c.DiskMB.At)
	at("network", c.Network.At)
	for _, m := range c.Mounts {
		at("mounts", m.Target.At)
	}
	return ps
}
