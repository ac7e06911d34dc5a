package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"agentsh/controller/sandbox"
	"agentsh/internal/agentfile"
)

// thisArch is the architecture of this host.
const thisArch = runtime.GOARCH

// machines are the names that uname(1) has for the architectures of agentsh.
var machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// receives is the shell script that receives the program. What is not complete is not used.
const receives = `umask 022; cd "$1" && head -c "$2" >new.$$ && [ "$(wc -c <new.$$ | tr -d ' ')" = "$2" ] && chmod 755 new.$$ && mv -f new.$$ agentsh && echo done`

// push sends the supervisor's program to a shell in the pod.
func (b *Backend) push(ctx context.Context, p pod) error {
	machine, err := b.run(ctx, p, strings.NewReader(""), "/bin/sh", "-c", "uname -m")
	if err != nil {
		return b.noShell(ctx, p, err)
	}
	arch, known := machines[machine]
	if !known {
		return fmt.Errorf("agentsh is not built for its node (%.40q)", machine)
	}
	file := b.cfg.Agentsh
	if file == "" || agentfile.Check(file, arch) != nil {
		if file, err = agentfile.Find(arch); err != nil {
			return err
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	said, err := b.run(ctx, p, f, "/bin/sh", "-c", receives, "sh", dirInside, strconv.FormatInt(info.Size(), 10))
	if err == nil && said != "done" {
		err = errors.New("only a part of the program arrived")
	}
	if err != nil {
		return b.ended(ctx, p, err)
	}
	return nil
}

// noShell explains that the first command in a pod failed.
func (b *Backend) noShell(ctx context.Context, p pod, err error) error {
	if text := err.Error(); strings.Contains(text, "no such file") || strings.Contains(text, "not found in $PATH") {
		return &sandbox.End{
			Kind: sandbox.EndRefused, Text: "the image has no /bin/sh, which receives the program", Err: err,
			Hint: "name an image with agentsh in kubernetes.agentsh_image: then any image will do",
		}
	}
	return b.ended(ctx, p, err)
}
