package blaxel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Files in the virtual machine.
const (
	programDir = "/opt/agentsh"
	keyFile    = programDir + "/place.key"
	installed  = "/usr/bin/agentsh" // by the packages
)

// partSize is the size of a part of a file, in bytes. The sandbox API takes larger files in parts alone.
const partSize = 5 << 20

// fileAddress is the address of a file in the sandbox API.
func fileAddress(at, name string) string { return at + "/filesystem/" + url.PathEscape(name) }

// push makes sure that the virtual machine has the agentsh of this host, and returns its path there.
func (p *place) push(ctx context.Context, at string) (string, error) {
	name, err := p.b.program()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	if p.digestOf(ctx, at, installed) == digest {
		return installed, nil
	}
	to := programDir + "/agentsh"
	if err := p.b.api.upload(ctx, at, to, "0755", data); err != nil {
		return "", err
	}
	if got := p.digestOf(ctx, at, to); got != digest {
		return "", errors.New("agentsh arrived changed, or the image lacks sha256sum")
	}
	return to, nil
}

// digestOf is the SHA-256 of a file in the virtual machine; empty: it cannot be read there.
func (p *place) digestOf(ctx context.Context, at, name string) string {
	var run process
	err := p.b.api.call(ctx, http.MethodPost, at+"/process", map[string]any{
		"command": "sha256sum " + name, "waitForCompletion": true, "timeout": 30,
	}, &run)
	if err != nil || run.ExitCode != 0 {
		return ""
	}
	digest, _, _ := strings.Cut(strings.TrimSpace(run.Stdout), " ")
	return digest
}

// write writes a small file.
func (a *api) write(ctx context.Context, at, name, mode string, data []byte) error {
	b, err := form(data, map[string]string{"permissions": mode, "path": name})
	if err != nil {
		return err
	}
	return a.send(ctx, http.MethodPut, fileAddress(at, name), b, nil)
}

// form is a form with a file.
func form(data []byte, fields map[string]string) (body, error) {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	part, err := w.CreateFormFile("file", "file")
	if err == nil {
		_, err = io.Copy(part, bytes.NewReader(data))
	}
	for name, value := range fields {
		err = errors.Join(err, w.WriteField(name, value))
	}
	err = errors.Join(err, w.Close()) // writes the end of the form
	return body{w.FormDataContentType(), out.Bytes()}, err
}

// upload writes a large file in parts.
func (a *api) upload(ctx context.Context, at, name, mode string, data []byte) error {
	var begun struct {
		ID string `json:"uploadId"`
	}
	err := a.call(
		ctx,
		http.MethodPost,
		at+"/filesystem-multipart/initiate/"+url.PathEscape(name),
		map[string]string{"permissions": mode},
		&begun,
	)
	if err != nil {
		return err
	}
	if begun.ID == "" {
		return errors.New("the sandbox API begins no upload")
	}
	of := at + "/filesystem-multipart/" + url.PathEscape(begun.ID)
	type part struct {
		Number int    `json:"partNumber"`
		Tag    string `json:"etag"`
	}
	var parts []part
	for n := 1; len(data) > 0; n++ {
		size := min(partSize, len(data))
		b, err := form(data[:size], nil)
		if err != nil {
			return err
		}
		one := part{Number: n}
		err = again(ctx, func() error {
			return a.send(ctx, http.MethodPut, fmt.Sprintf("%s/part?partNumber=%d", of, n), b, &one)
		})
		if err != nil {
			return err
		}
		parts, data = append(parts, one), data[size:]
	}
	return a.call(ctx, http.MethodPost, of+"/complete", map[string]any{"parts": parts}, nil)
}
