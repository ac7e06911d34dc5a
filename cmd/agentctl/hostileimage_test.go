package main

import (
	"archive/tar"
	"encoding/json"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/testenv"
)

// hostileImage is an image whose author tries to have the sandbox for its own, or to break it.
type hostileImage struct {
	files   []testenv.ImageFile
	changes []string
	user    string   // of the harness
	id      string   // UID of commands; empty: no sandbox is made
	want    []string // in the error
}

// image is a hostile image without a sandbox.
func image(want []string, files ...testenv.ImageFile) hostileImage {
	return hostileImage{files: files, want: want}
}

// configured is an image with a configuration of the supervisor.
func configured(want string, f testenv.ImageFile) hostileImage {
	f.Name = "etc/agentsh/config.yaml"
	return image([]string{"/etc/agentsh/config.yaml", want, "hint: the file is of the image"}, testenv.ImageFile{Name: "etc/agentsh/"}, f)
}

// inThePlace is what is said of a file of an image in the place of the supervisor.
func inThePlace(name string) []string {
	return []string{name + " of the image is in the place of the supervisor: make an image without it"}
}

// names has another name of root.
var names = []testenv.ImageFile{
	{Name: "etc/passwd", Text: "root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n", Mode: 0o644},
}

var hostileImages = map[string]hostileImage{
	"another name of root":        {files: names, changes: []string{"USER toor"}, id: "1000"},
	"the harness wants it":        {files: names, user: "toor", id: "60700"}, // of commands of a supervisor that is root
	"a link for the program":      image(inThePlace("/.agentsh"), testenv.ImageFile{Name: ".agentsh", Link: "/tmp"}),
	"a file for the program":      image(inThePlace("/.agentsh"), testenv.ImageFile{Name: ".agentsh", Text: "x"}),
	"a directory for the program": image(inThePlace("/.agentsh/agentsh"), testenv.ImageFile{Name: ".agentsh/agentsh/x/"}),
	"a link of the program's own": image(inThePlace("/.agentsh/agentsh"),
		testenv.ImageFile{Name: ".agentsh/"}, testenv.ImageFile{Name: ".agentsh/agentsh", Link: "/etc/passwd"}),
	"variables of the loader": {
		changes: []string{"ENV LD_PRELOAD=/x.so LD_LIBRARY_PATH=/x BASH_ENV=/x GODEBUG=x GOTRACEBACK=crash"}, id: "1000",
	},
	"no directory for programs": {changes: []string{"ENV PATH=/nowhere HOME=/proc/1 TMPDIR=/nowhere"}, id: "1000"},
	"no state directory": {
		changes: []string{"ENV XDG_STATE_HOME=/proc/nowhere"},
		want:    []string{"/proc/nowhere", "hint: the process has the variables of the image"},
	},
	"a broken configuration":            configured("/etc/agentsh/config.yaml:1:1", testenv.ImageFile{Text: "polcy: x\n"}),
	"a configuration that never ends":   configured("no regular file", testenv.ImageFile{Type: tar.TypeFifo}),
	"a configuration that is a device":  configured("no regular file", testenv.ImageFile{Link: "/dev/zero"}),
	"a configuration that is too large": configured("at most", testenv.ImageFile{Text: strings.Repeat("# x\n", 1<<20)}),
}

func TestHostileImagesOfDocker(t *testing.T) {
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	tryHostileImages(t, testenv.Docker(t))
}

func TestHostileImagesOfPodman(t *testing.T) {
	testenv.Asked(t, "AGENTSH_ENGINES", "engines")
	tryHostileImages(t, testenv.Podman(t))
}

func tryHostileImages(t *testing.T, e *testenv.Engine) {
	p := contained(t, e, "true", "")
	for name, tt := range hostileImages {
		t.Run(name, func(t *testing.T) {
			imageName := "localhost/" + strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", "") + ":1"
			e.Load(t, imageName, tt.files, tt.changes...)
			container := map[string]any{"mounts": []map[string]string{
				{"source": "/usr", "target": "/usr"}, {"source": "/etc/alternatives", "target": "/etc/alternatives"},
			}}
			if tt.user != "" {
				container["user"] = tt.user
			}
			spec, err := json.Marshal(map[string]any{
				"policy": "policy.yaml", "backend": e.Backend, "connect": e.Host, "image": imageName, "container": container,
			})
			if err != nil {
				t.Fatal(err)
			}
			out, errs, code := p.try(string(spec), "sandbox", "create", "--spec", "-")
			if tt.id == "" {
				if code != controller.ExitSandbox {
					t.Errorf("exit code %d: %s", code, out)
				}
				for _, want := range tt.want {
					if !strings.Contains(errs, want) {
						t.Errorf("no %q in %s", want, errs)
					}
				}
				return
			}
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			id := strings.TrimSpace(out)
			if out, errs, code := p.try("", "sandbox", "exec", id, "--", "id", "-u"); code != 0 || strings.TrimSpace(out) != tt.id {
				t.Errorf("id: %d %s%s", code, out, errs)
			}
			if out, errs, code := p.try("", "sandbox", "exec", id, "--", "sh", "-c", "echo >/.agentsh/agentsh"); code == 0 {
				t.Errorf("the program of the supervisor can be written: %s%s", out, errs)
			}
			p.must("sandbox", "delete", id)
		})
	}
}
