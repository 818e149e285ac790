package variants

// others are the kernels that multiply no weights.
var others = []Variant{
	{Name: "argmax", Source: "argmax"},
	{Name: "attention", Source: "attention"},
	{Name: "attention_block", Source: "attention_block"},
	{Name: "attention_coop", Source: "attention_coop", Newer: true},
	{Name: "attention_qkv", Source: "attention_qkv"},
	{Name: "elementwise", Source: "elementwise"},
	{Name: "gather", Source: "gather"},
	{Name: "kv_out", Source: "kv_out"},
	{Name: "qkv_post", Source: "qkv_post"},
	{Name: "quantize", Source: "quantize"},
	{Name: "rmsnorm", Source: "rmsnorm"},
	{Name: "rope", Source: "rope"},
	{Name: "route", Source: "route"},
	{Name: "router", Source: "router"},
	{Name: "store_kv", Source: "store_kv"},
}
