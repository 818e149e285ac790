// Package badfile says what is wrong with a checkpoint file: the error type shared by the readers below package weights, its causes,
// the recognition of files that are no weights at all, and what else the readers share.
//
// Package weights re-exports everything a caller needs; nothing here knows a file format.
package badfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// The causes. An Error wraps exactly one of them or an error of the operating system.
var (
	ErrTruncated     = errors.New("truncated")
	ErrMagic         = errors.New("not a weight file")
	ErrVersion       = errors.New("unsupported version")
	ErrBigEndian     = errors.New("big-endian")
	ErrHTML          = errors.New("a web page instead of weights")
	ErrLFSPointer    = errors.New("a git-lfs pointer instead of weights")
	ErrEmpty         = errors.New("empty file")
	ErrHeader        = errors.New("malformed header")
	ErrUnknownType   = errors.New("unknown type")
	ErrAlignment     = errors.New("bad alignment")
	ErrDuplicate     = errors.New("duplicate")
	ErrShape         = errors.New("bad shape")
	ErrLayout        = errors.New("bad data layout")
	ErrMissingShard  = errors.New("missing part")
	ErrMissingTensor = errors.New("missing tensor")
	ErrUnknownTensor = errors.New("unknown tensor")
	ErrMissingKey    = errors.New("missing key")
	ErrValue         = errors.New("impossible value")
	ErrNoWeights     = errors.New("no weights found")
)

// The advice that several readers give.
const (
	TryDownload = "download the file again and compare its size with the publisher's"
	TryConvert  = "convert the checkpoint again with a current converter"
)

// Error is a checkpoint that cannot be used: where, what, why (Err, for errors.Is) and what to try.
type Error struct {
	File   string // path as it was given or found
	Tensor string // "" where the fault is not a tensor's
	Key    string // metadata or config key, "" where the fault is not a key's
	Offset int64  // byte offset in File; negative where none applies
	What   string // what was found, with the numbers
	Try    string // the next thing to try
	Err    error
}

// At returns an Error about a byte offset of a file.
func At(file string, offset int64, err error, format string, args ...any) *Error {
	return &Error{File: file, Offset: offset, Err: err, What: fmt.Sprintf(format, args...)}
}

// In returns an Error about a file as a whole.
func In(file string, err error, format string, args ...any) *Error {
	return At(file, -1, err, format, args...)
}

// Of sets the tensor the error is about.
func (e *Error) Of(tensor string) *Error { e.Tensor = tensor; return e }

// ForKey sets the key the error is about.
func (e *Error) ForKey(key string) *Error { e.Key = key; return e }

// Advise sets what to try.
func (e *Error) Advise(format string, args ...any) *Error {
	e.Try = fmt.Sprintf(format, args...)
	return e
}

// Error returns one line: file, tensor or key, offset, what is wrong, and what to try.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Tensor != "" {
		fmt.Fprintf(&b, ": tensor %s", clip(e.Tensor))
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ": key %s", clip(e.Key))
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, ": byte %d", e.Offset)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.What != "" {
		b.WriteString(": " + e.What)
	}
	if e.Try != "" {
		b.WriteString("; " + e.Try)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// clip quotes a name from the file and cuts it where a broken header would print a page of it.
func clip(name string) string {
	if len(name) > 120 {
		name = name[:120] + "…"
	}
	return fmt.Sprintf("%q", name)
}

// Open opens the regular file at path for a reader of headers, and closes it behind it.
func Open[T any](path string, read func(r io.ReaderAt, size int64, path string) (*T, error)) (*T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, In(path, ErrMagic, "not a regular file")
	}
	return read(f, st.Size(), path)
}

// Sniff recognises content that is commonly found in place of weights, from the first bytes of a file; nil if it is none of them.
func Sniff(file string, head []byte) error {
	text := bytes.ToLower(bytes.TrimLeft(head[:min(len(head), 512)], " \t\r\n\ufeff"))
	switch {
	case len(head) == 0:
		return In(file, ErrEmpty, "0 bytes").Advise(TryDownload)
	case bytes.HasPrefix(text, []byte("version https://git-lfs")):
		return At(file, 0, ErrLFSPointer, "").Advise("fetch the file itself: git lfs pull --include %q", filepath.Base(file))
	case bytes.HasPrefix(text, []byte("<!doctype")), bytes.HasPrefix(text, []byte("<html")), bytes.HasPrefix(text, []byte("<?xml")):
		return At(file, 0, ErrHTML, "").Advise("download from the file's direct link (on Hugging Face: /resolve/ in place of /blob/)")
	}
	return nil
}
