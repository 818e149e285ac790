//go:build !linux

package bench

import "errors"

var errPageCache = errors.New("this system has no call that empties the page cache of a file")

// Evict is not possible here.
func Evict([]string) (left int64, err error) { return 0, errPageCache }
