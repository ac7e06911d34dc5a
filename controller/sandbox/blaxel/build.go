package blaxel

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/lazy"
	"agentsh/internal/text"
)

// Times of a build: those of the vendor's library.
const (
	buildTime = 15 * time.Minute
	buildLook = 3 * time.Second
)

// labelImage is at sandboxes that 'agentctl image build' made.
const labelImage = "agentsh-image"

// uploadHeader is the field of an answer that has the address for the archive.
const uploadHeader = "X-Blaxel-Upload-Url"

// Image says what Blaxel builds.
type Image struct {
	Name    string // of the sandbox that Blaxel deploys with the image
	Memory  int64  // of that sandbox, in MiB; 0: the default
	Archive string // path of the archive, see [Pack]
	Replace bool   // a sandbox of this name that agentctl did not build is replaced
	Report  func(status string)
}

// Built is an image that is there.
type Built struct {
	Name  string // of the sandbox
	Image string // for the harness; empty: Blaxel did not say it
}

var imageName = lazy.Regexp(`^[a-z0-9]([a-z0-9-]{0,47}[a-z0-9])?$`)

// CheckImageName checks the name of an image.
func CheckImageName(name string) error {
	if !imageName().MatchString(name) || strings.HasPrefix(name, nameOf("")) {
		return fmt.Errorf("--name %.100q: write at most 49 of a-z, 0-9 and -, not beginning with %s as sandboxes of runs do", name, nameOf(""))
	}
	return nil
}

// Build sends an archive and waits until Blaxel has built it and deployed a sandbox with it.
func (b *Backend) Build(ctx context.Context, i Image) (Built, error) {
	if err := CheckImageName(i.Name); err != nil {
		return Built{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, buildTime)
	defer cancel()
	if err := b.mayBuild(ctx, i); err != nil {
		return Built{}, err
	}
	to, made, err := b.begin(ctx, i)
	if err == nil {
		err = b.api.put(ctx, to, i.Archive)
	}
	if err != nil {
		if made { // without the archive it is of no use
			err = errors.Join(err, b.api.remove(context.WithoutCancel(ctx), i.Name))
		}
		return Built{}, err
	}
	r, err := b.deployed(ctx, i)
	return Built{Name: i.Name, Image: r.Spec.Runtime.Image}, err
}

// mayBuild refuses the name of a sandbox that agentctl did not build.
func (b *Backend) mayBuild(ctx context.Context, i Image) error {
	r, err := b.api.get(ctx, i.Name)
	switch {
	case statusOf(err) == http.StatusNotFound:
		return nil
	case err != nil:
		return b.api.explain("build "+i.Name, err)
	case r.Metadata.Labels[labelImage] == "" && !i.Replace:
		return fmt.Errorf("a sandbox %s is at Blaxel that agentctl did not build: choose another --name, or add --replace", i.Name)
	}
	return nil
}

// begin says to Blaxel that an archive will come, and returns its address. made reports whether a sandbox was made for it.
func (b *Backend) begin(ctx context.Context, i Image) (to string, made bool, err error) {
	runtime := map[string]any{"memory": cmp.Or(i.Memory, defaultMemory)}
	spec := map[string]any{"runtime": runtime}
	if b.region != "" {
		spec["region"] = b.region
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": i.Name, "labels": map[string]string{labelImage: "true", "x-blaxel-auto-generated": "true"}},
		"spec":     spec,
	})
	if err != nil {
		return "", false, err
	}
	what := "build " + i.Name
	want := body{"application/json", data}
	h, err := b.api.exchange(ctx, http.MethodPut, b.api.address(i.Name)+"?upload=true", want, nil)
	if statusOf(err) == http.StatusNotFound {
		h, err = b.api.exchange(ctx, http.MethodPost, b.api.address("")+"?upload=true", want, nil)
		made = err == nil
	}
	if err != nil {
		return "", made, b.api.explain(what, err)
	}
	if to = h.Get(uploadHeader); to == "" {
		return "", made, fmt.Errorf("%s: the answer of Blaxel has no %s: is BL_API_URL right, or a proxy in between?", what, uploadHeader)
	}
	if err := private(to); err != nil {
		return "", made, fmt.Errorf("%s: %s is no address to send the archive to: it is not https://", what, uploadHeader)
	}
	return to, made, nil
}

// uploads is how often an archive is sent when the server fails.
const uploads = 3

// put sends an archive. Its address has a signature instead of a key: neither goes anywhere else.
func (a *api) put(ctx context.Context, to, archive string) error {
	for try := 1; ; try++ {
		again, err := a.putOnce(ctx, to, archive)
		if err == nil {
			return nil
		}
		if !again || try == uploads || !pause(ctx, retryWait) {
			return err
		}
	}
}

// s3Message is the message in an error of a store for archives.
var s3Message = lazy.Regexp(`<Message>([^<]*)</Message>`)

func (a *api) putOnce(ctx context.Context, to, archive string) (again bool, err error) {
	f, err := os.Open(archive)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, to, f)
	if err != nil {
		return false, errors.New("send the archive: the address in Blaxel's answer is no URL")
	}
	req.ContentLength = info.Size()
	req.Header = http.Header{"Content-Type": {"application/zip"}, "User-Agent": {"agentctl"}}
	res, err := a.http.Do(req)
	if err != nil {
		var with *url.Error
		if errors.As(err, &with) { // it has the address
			err = with.Err
		}
		return true, fmt.Errorf("send the archive: %w", err)
	}
	said, _ := readAll(res) // for the error alone
	if res.StatusCode/100 == 2 {
		return false, nil
	}
	err = fmt.Errorf("send the archive: the store of Blaxel answers %d", res.StatusCode)
	if m := s3Message().FindSubmatch(said); m != nil {
		err = fmt.Errorf("%w: %s", err, text.Short(string(m[1]), maxSaid))
	}
	return res.StatusCode >= 500, err
}

// deployed waits until the image is built and its sandbox deployed. A sandbox that was there before stays DEPLOYED until the
// build begins, so that only what follows another status counts.
func (b *Backend) deployed(ctx context.Context, i Image) (record, error) {
	began, last := false, ""
	for {
		r, err := b.api.get(ctx, i.Name)
		switch status := statusOf(err); {
		case isJunk(err), status/100 == 4 && (began || status != http.StatusNotFound) && status != http.StatusTooManyRequests:
			return r, b.api.explain("build "+i.Name, err)
		case err == nil && r.Status != "":
			if r.Status != last && i.Report != nil {
				i.Report(text.Short(r.Status, maxSaid))
			}
			last = r.Status
			began = began || r.Status != "DEPLOYED"
			if r.Status == "DEPLOYED" && began {
				return r, nil
			}
			if r.Status == "FAILED" || r.ended() != nil {
				return r, r.unbuilt(i.Name)
			}
		}
		if pause(ctx, b.look) {
			continue
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return r, context.Cause(ctx)
		}
		return r, &sandbox.End{
			Kind: sandbox.EndImage,
			Text: fmt.Sprintf("the build of %s at Blaxel did not end within %s (%s)", i.Name, buildTime, cmp.Or(last, "no state")),
			Hint: "look at the sandbox in Blaxel's console, and build again", Err: err,
		}
	}
}

// unbuilt is the end of a build that failed.
func (r record) unbuilt(name string) error {
	said := ""
	for _, t := range r.Errors {
		if t.Message != "" {
			said = t.Message
		}
	}
	for _, e := range r.Events {
		if e.Message != "" && said == "" && e.Status == r.Status {
			said = e.Message
		}
	}
	for _, e := range r.Events {
		if said == "" {
			said = e.Message
		}
	}
	end := &sandbox.End{
		Kind: sandbox.EndImage, Text: fmt.Sprintf("the build of %s at Blaxel ended as %s", name, text.Short(r.Status, maxSaid)),
		Hint: "its log is at the sandbox in Blaxel's console; change the Dockerfile and build again",
	}
	if said != "" {
		end.Text += ": " + text.Short(said, maxSaid)
	}
	return end
}
