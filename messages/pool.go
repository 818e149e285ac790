package messages

import "sync"

// Pool hands out messages of one type and takes them back, so that a step allocates none. Put clears the message: nobody may hold it.
type Pool[T any] struct{ free sync.Pool }

// Get returns a zero message.
func (p *Pool[T]) Get() *T {
	if m, ok := p.free.Get().(*T); ok {
		return m
	}
	return new(T)
}

// Put takes a message back; called by its last receiver.
func (p *Pool[T]) Put(m *T) {
	var zero T
	*m = zero
	p.free.Put(m)
}

// The pools of the messages on the hot path. Sender and receiver use the same.
var (
	Issues    Pool[Issue]
	Computes  Pool[Compute]
	Computeds Pool[Computed]
	Finishes  Pool[Finish]
	Reads     Pool[Read]
	Raises    Pool[Raise]
	Cancels   Pool[Cancel]
	Landeds   Pool[Landed]
	Predicts  Pool[Predict]

	TokensPool Pool[Tokens]
	TookPool   Pool[Took]
)
