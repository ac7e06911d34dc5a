package blaxel

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"agentsh"
	"agentsh/controller/buildcontext"
	"agentsh/internal/agentfile"
	"agentsh/internal/layout"
	"agentsh/internal/lazy"
)

// Source says what an image is made of.
type Source struct {
	Dir        string // with a Dockerfile; empty: From
	Dockerfile string // its name in Dir; empty: Dockerfile
	From       string // an image
	Package    string // file of agentsh's package: .deb, .rpm or .apk; empty: the program alone
	Agentsh    string // path of the program; empty: see [agentfile.Find]
	Shim       bool   // sh is agentsh's shim; needs Package
	API        string // version of Blaxel's sandbox API; empty: latest
	Key        string // of Blaxel, which no file may have
}

const (
	apiImage   = "ghcr.io/blaxel-ai/sandbox"
	apiProgram = "/usr/local/bin/sandbox-api"
	addedDir   = "agentsh-image" // of the archive, for what is added
)

// installers install a package from the directory of what is added, by the end of its name.
var installers = map[string]string{
	".deb": "dpkg -i %s", ".rpm": "rpm -i %s", ".apk": "apk add --no-cache --allow-untrusted %s",
}

// imageReference is the name of an image that is one word of a Dockerfile.
var imageReference = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// Pack writes the archive of an image: the directory, and a Dockerfile that adds agentsh and Blaxel's sandbox API.
func Pack(ctx context.Context, w io.Writer, s Source) (buildcontext.Packed, error) {
	d, err := s.dockerfile()
	if err != nil {
		return buildcontext.Packed{}, err
	}
	lines, added, err := s.added()
	if err != nil {
		return buildcontext.Packed{}, err
	}
	if s.API == "" || !imageReference().MatchString(s.API) {
		return buildcontext.Packed{}, fmt.Errorf("--sandbox-api %.100q is no version", s.API)
	}
	var out bytes.Buffer
	out.WriteString(strings.TrimRight(d.Text, "\n") + "\n\n# Added by agentctl.\nUSER root\n")
	if !slices.ContainsFunc(d.Last, func(in buildcontext.Instruction) bool {
		return in.Name == "COPY" && strings.HasSuffix(in.Args, " "+apiProgram)
	}) {
		fmt.Fprintf(&out, "COPY --from=%s:%s /sandbox-api %s\n", apiImage, s.API, apiProgram)
	}
	out.WriteString(lines)
	fmt.Fprintf(&out, "ENTRYPOINT [%q]\nCMD []\n", apiProgram)
	added = append(added, buildcontext.File{Name: "Dockerfile", Data: out.Bytes()})
	values := map[string]string{}
	if s.Key != "" {
		values["Blaxel's key"] = s.Key
	}
	return buildcontext.Write(ctx, w, buildcontext.Options{Dir: s.Dir, Dockerfile: s.Dockerfile, Extra: added, Values: values})
}

// dockerfile is the Dockerfile of the directory, or one that begins with an image.
func (s *Source) dockerfile() (d buildcontext.Dockerfile, err error) {
	s.API = cmp.Or(s.API, "latest")
	if s.Dir == "" {
		if !imageReference().MatchString(s.From) {
			return d, fmt.Errorf("--from %.200q is no name of an image", s.From)
		}
		return buildcontext.ParseDockerfile("--from", "FROM "+s.From+"\n")
	}
	s.Dockerfile = cmp.Or(s.Dockerfile, "Dockerfile")
	if d, err = buildcontext.ReadDockerfile(s.Dir, s.Dockerfile); errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("%s has no %s: write one, or name an image with --from IMAGE instead of the directory", s.Dir, s.Dockerfile)
	} else if err != nil {
		return d, err
	}
	wrong := func(in buildcontext.Instruction, format string, args ...any) error {
		return fmt.Errorf("%s:%d: %s: %s", s.Dockerfile, in.Line, in.Name, fmt.Sprintf(format, args...))
	}
	for _, in := range d.Last {
		switch {
		case in.Name == "ENTRYPOINT":
			// A script before the API would be a shell below the shim, or processes beside it that nobody governs.
			if list, ok := in.List(); !ok || !slices.Equal(list, []string{apiProgram}) {
				return d, wrong(in,
					`Blaxel's sandbox API is the entry of the image, and starts agentsh: leave the line out, or write ENTRYPOINT [%q]`, apiProgram)
			}
		case in.Name == "RUN" && strings.Contains(in.Args, "agentsh shim install"):
			return d, wrong(in, "agentctl installs the shim last: leave the line out, and add --shim if sh shall be a session")
		}
	}
	return d, nil
}

// added are the lines and files of agentsh.
func (s *Source) added() (lines string, files []buildcontext.File, err error) {
	if s.Package == "" {
		if s.Shim {
			return "", nil, errors.New("--shim needs the configuration of a package: add --package FILE")
		}
		program := s.Agentsh
		if program == "" {
			if program, err = agentfile.Find(arch); err != nil {
				return "", nil, fmt.Errorf("find agentsh for the image: %w", err)
			}
		} else if err = agentfile.Check(program, arch); err != nil {
			return "", nil, err
		}
		lines = fmt.Sprintf("COPY %[1]s/agentsh %[2]s\nCOPY %[1]s/bash_startup.sh %[3]s\n"+
			"RUN chmod 0755 %[2]s && chmod 0644 %[3]s && ln -sf %[2]s %[4]s && %[2]s --version\n",
			addedDir, installed, layout.StartupScript, layout.Program)
		return lines, []buildcontext.File{
			{Name: addedDir + "/agentsh", Path: program, Executable: true},
			{Name: addedDir + "/bash_startup.sh", Data: []byte(agentsh.BashStartup)},
		}, nil
	}
	end := path.Ext(s.Package)
	install, ok := installers[end]
	if !ok {
		return "", nil, fmt.Errorf("--package %.200q: the name ends with .deb, .rpm or .apk", s.Package)
	}
	file := "/tmp/agentsh" + end
	lines = fmt.Sprintf("COPY %s/agentsh%s %s\nRUN "+install+" && rm %s && %s --version\n", addedDir, end, file, file, file, installed)
	if s.Shim {
		lines += "RUN agentsh shim install\n"
	}
	return lines, []buildcontext.File{{Name: addedDir + "/agentsh" + end, Path: s.Package}}, nil
}
