// The activations of gated units, by the numbers of norm.go.
vec4 activate(vec4 x, uint act) {
	return act == 1 ? x / (1 + exp(-x)) : x;
}
