package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify/engine"
	"agentsh/supervisor/notify/listener"
	"agentsh/supervisor/notify/tracer"
	"agentsh/supervisor/probe"
)

// Engines are the engines that stop the calls of commands, the preferred one first. The
// session init tries the first, and the second where the kernel has no listener.
var Engines = []string{listener.Name, tracer.Name}

// forbids returns an error that names the setting that forbids an engine, or nil. Who
// requires an engine forbids the others.
func (c *Config) forbids(name string) error {
	for _, s := range c.Forbidden {
		if s.Name == name {
			return fmt.Errorf("%s: forbid_engine has %s", s.At, name)
		}
	}
	for _, s := range c.Require {
		if engine, ok := strings.CutPrefix(s.Name, probe.RequireEngine); ok && engine != name {
			return fmt.Errorf("%s: require has %s", s.At, s.Name)
		}
	}
	return nil
}

// checkEngines fails if the operator's settings leave no engine. The error has the settings
// that leave one.
func (c *Config) checkEngines() error {
	why := make([]error, len(Engines))
	for i, name := range Engines {
		if why[i] = c.forbids(name); why[i] == nil {
			return nil
		}
	}
	text := why[0].Error() + ", and there is no other engine: " + why[1].Error()
	for _, name := range Engines {
		text += "\n  for sessions with the engine " + name + ": " + c.settingsFor(name)
	}
	return errors.New(text)
}

// settingsFor are forbid_engine and require without what forbids an engine.
func (c *Config) settingsFor(name string) string {
	forbidden := settingNames(c.Forbidden, func(s string) bool { return s != name })
	require := settingNames(c.Require, func(s string) bool {
		engine, ok := strings.CutPrefix(s, probe.RequireEngine)
		return !ok || engine == name
	})
	return "forbid_engine: [" + forbidden + "], require: [" + require + "]"
}

func settingNames(settings []probe.Setting, keep func(string) bool) string {
	var out []string
	for _, s := range settings {
		if keep(s.Name) {
			out = append(out, s.Name)
		}
	}
	return strings.Join(out, ", ")
}

// cannotTrace says why this session cannot use the trace engine; nil: it can.
func (s *Session) cannotTrace() error {
	switch forbidden := s.cfg.forbids(tracer.Name); {
	case forbidden != nil:
		return forbidden
	case s.confined.plan.Emulated:
		return fmt.Errorf("%s decides about single files below /proc, which the engine %s cannot: remove the rule, or run where "+
			"there is a seccomp listener", s.confined.plan.Emulates, tracer.Name)
	case s.confined.missing.Has(probe.ExecVerify):
		return errors.New("degraded has exec_verify: this machine forbids ptrace")
	}
	return nil
}

// engineFilters sets the filters for the engines that the session may use.
func (s *Session) engineFilters(cfg *launch.Config, plan seccomp.Plan, filter []byte) error {
	if s.confined.unjudged() {
		return setRefusals(s, cfg, plan)
	}
	forbidden := s.cfg.forbids(listener.Name)
	if forbidden == nil {
		cfg.Filter = filter
	}
	why := s.cannotTrace()
	if why == nil {
		var err error
		cfg.TraceFilter, err = seccomp.Traced(filter, runtime.GOARCH)
		cfg.Beside = func(known bool) ([]byte, error) { return s.besideFilter(plan, cfg.TraceFilter, known) }
		return err
	}
	if forbidden != nil {
		return fmt.Errorf("%w, and there is no other engine: %w", forbidden, why)
	}
	return nil
}

// explainEngine adds to an error why the session was not opened by the trace engine.
func (s *Session) explainEngine(err error) error {
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY) || s.cannotTrace() == nil {
		return err
	}
	return fmt.Errorf("%w\n%w", err, s.cannotTrace())
}

// openEngine returns the engine that the init chose.
func openEngine(init *launch.Init, as *engine.Credentials, beside *Beside, log *slog.Logger) (engine.Engine, error) {
	if traced, _ := init.Traced(); traced {
		return tracer.New(tracer.Config{As: as, Ended: init.Dead(), Cookie: beside.execCookie(), Log: log}), nil
	}
	if init.Unjudged() {
		return newIdle(init.Dead()), nil
	}
	l, err := seccomp.NewListener(init.Listener())
	if err != nil {
		return nil, err
	}
	return listener.New(l), nil
}
