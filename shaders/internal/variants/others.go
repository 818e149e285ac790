package variants

// others are the kernels that multiply no weights.
var others []Variant
