package gpu

// op says what a node does.
type op uint32

const (
	opUpload     op = iota // dst = host rows at `host`
	opDownload             // host rows at `host` = x
	opNorm                 // dst = x·rsqrt(mean x²)·vec, over segments of n[0] columns; n[1] is eps
	opQuantize             // x's integer form
	opMatMul               // dst = x·wᵀ + vec; by x's integer form if w's format wants it
	opClamp                // dst within ±n[1]
	opRope                 // dst rotated by `places` with the table at `host`; n is head dim, dim
	opStore                // rows of x and y into the caches of table
	opAttend               // dst = attention of x over the caches of table; n is heads, KV heads, head dim, scale, widths of the caches' rows
	opGather               // dst = rows of x, by the numbers at `host`
	opAdd                  // dst += x
	opGLU                  // dst = act(x)·y; n[0] is the activation
	opRoute                // routes = the experts by logits x, with bias vec; n is gating, normalize, scale, groups, groups to keep
	opExperts              // dst = Σ weight·down(act(gate x)·up x) over routes; n[0] is the activation
	opArgMax               // host numbers at `host` = where each row of x is largest
	opCopyRoutes           // host memory at `host` = the weights of routes, and the ids behind them
	opOut                  // the pieces at `host` to host memory: new rows of caches, at places, and ids of routes; n is rows, pieces, widest
)

var opNames = [...]string{
	"upload", "download", "norm", "quantize", "matmul", "clamp", "rope", "store_kv", "attention", "gather", "add", "glu", "route", "experts",
	"argmax", "chosen", "kv_out",
}

func (o op) String() string { return opNames[o] }

// operand is a tensor as a node refers to it.
type operand struct {
	at         uint64 // address of its values
	q          uint64 // address of its integer form, 0 for none
	id         int32  // which tensor of the step
	layer      int32  // whose arena it is in
	rows, cols int32
}

func (r operand) set() bool { return r.cols != 0 }

// node is one recorded op. It is plain data without floats, interfaces or padding, so that nodes are compared as bytes, hundreds of them a
// token: a frame is what a list was compiled to, and is valid for every list that is the same. What changes from token to token (places,
// caches' addresses, host rows) is behind addresses.
type node struct {
	op        op
	layer     int32
	dst, x, y operand
	w         *weight
	vec       *vector
	set       *experts
	route     route

	places  uint64 // of the rows: int32 position and conversation each
	table   uint64 // of the caches: addresses of keys and values, by conversation
	host    uint64 // host memory, or the rope's table
	scratch uint64 // device memory
	count   uint64 // counters, zero before and after
	tiles   uint32 // of attention, at host; 0: the form for few rows
	n       [7]uint32
}

// route is where the experts of rows are.
type route struct {
	ids, weights uint64 // addresses: int32 and float32 [rows, topK]
	rows, topK   int32
}

// idsAt is where the ids are in host memory that has the weights first.
func (r route) idsAt() int64 { return aligned(4 * int64(r.rows) * int64(r.topK)) }

// uses calls f with every tensor that the node reads or writes; in place, a tensor comes twice.
func (n *node) uses(f func(r operand, write bool)) {
	switch {
	case n.op == opMatMul && n.w.integer, n.op == opExperts && !n.set.float():
		// they read the integer form
	case n.x.set():
		f(n.x, false)
	}
	if n.y.set() {
		f(n.y, false)
	}
	if n.dst.set() {
		if n.op == opAdd || n.op == opClamp || n.op == opRope {
			f(n.dst, false)
		}
		f(n.dst, true)
	}
}

// reads and writes say whether the node does so with tensor id.
func (n *node) reads(id int32) (yes bool) {
	n.uses(func(r operand, write bool) { yes = yes || !write && r.id == id })
	return yes
}

func (n *node) writes(id int32) bool { return n.dst.set() && n.dst.id == id }
