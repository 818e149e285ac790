package main

func init() {
	target("i8row", func() {
		// Rows of plain bytes after a scale.
		emitBytes("i8", blockFormat{head: 4, unitBytes: 32, unitBlocks: 1}, 0)
	})
}
