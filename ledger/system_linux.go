package ledger

import "os"

// System probes the running system.
func System() Probe { return FS(os.DirFS("/")) }
