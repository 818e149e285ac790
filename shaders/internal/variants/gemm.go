package variants

// gemm are the tiled products. Their weight format is a specialisation constant.
var gemm = []Variant{
	{Name: "gemm_bytes", Source: "gemm"},
	{Name: "gemm_dot", Source: "gemm", Defines: []string{"DOT"}},
	{Name: "gemm_coop", Source: "gemm", Defines: []string{"COOP"}, Newer: true},
	{Name: "gemm_float", Source: "gemm_float"},
	{Name: "gemm_half", Source: "gemm_half", Newer: true},
	{Name: "group_plan", Source: "group_plan"},
	{Name: "moe_sum", Source: "moe_sum"},
}
