package actors

import (
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLowTimerSlack(t *testing.T) {
	LowTimerSlack()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip(err)
	}
	for _, th := range threads {
		slack, err := os.ReadFile("/proc/" + th.Name() + "/timerslack_ns")
		if err != nil {
			t.Skip("reading the slack of other threads needs CAP_SYS_NICE: ", err)
		}
		if s := strings.TrimSpace(string(slack)); s != "1" {
			t.Errorf("a thread has a timer slack of %s ns", s)
		}
	}
}

func TestEachThread(t *testing.T) {
	var mu sync.Mutex
	seen := map[int]bool{}
	const n = 6
	eachThread(n, func() {
		mu.Lock()
		defer mu.Unlock()
		seen[unix.Gettid()] = true
	})
	if len(seen) < n {
		t.Errorf("called on %d threads, want %d at least", len(seen), n)
	}
}
