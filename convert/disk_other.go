//go:build !linux && !darwin

package convert

import "os"

func allocated(string) int64 { return 0 }

func lock(*os.File) error { return nil }

func syncDir(string) error { return nil }
