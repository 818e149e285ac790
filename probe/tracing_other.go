//go:build !linux || !(amd64 || arm64)

package probe

import (
	"errors"
	"fmt"
	"runtime"
)

// tracing is for Linux on amd64 and arm64 only.
type tracing struct{}

func attachTracing() (*tracing, error) { return nil, errors.ErrUnsupported }

func explain(error) string {
	return fmt.Sprintf("there is no probe for %s on %s", runtime.GOOS, runtime.GOARCH)
}

func (*tracing) describe() string { return "" }
func (*tracing) read(*Snapshot)   {}
func (*tracing) close() error     { return nil }

func check() []Finding {
	return []Finding{{Name: "block I/O probe", Status: No, Detail: explain(errors.ErrUnsupported)}}
}
