//go:build !linux

package prefetcher

import "errors"

// systemErrors are injected by TestFaults.
var systemErrors = map[string]error{"unsupported": errors.ErrUnsupported}
