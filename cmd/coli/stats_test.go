package main

import (
	"testing"
	"time"

	"github.com/coli-moe/coli/engine"
)

func TestStatsLine(t *testing.T) {
	for _, c := range []struct {
		r    engine.Result
		want string
	}{
		{
			engine.Result{
				Reason: engine.ReasonEOS, PromptTokens: 30, CachedTokens: 20, Prefill: 100 * time.Millisecond,
				Generated: 50, Decode: 2 * time.Second, PairsPerToken: 32,
			},
			"30 prompt tokens (20 cached) at 100.0 tok/s, 50 generated at 25.0 tok/s, 32 experts per token, 7 MB resident",
		},
		{
			engine.Result{Reason: engine.ReasonLength, PromptTokens: 5, Prefill: time.Second, Generated: 11, Decode: time.Second},
			"5 prompt tokens at 5.0 tok/s, 11 generated at 10.0 tok/s, 7 MB resident; stopped at --predict 11",
		},
		{
			engine.Result{Reason: engine.ReasonContext, PromptTokens: 5, Prefill: time.Second, Generated: 1, Decode: time.Second},
			"5 prompt tokens at 5.0 tok/s, 1 generated, 7 MB resident; stopped because the context of 1024 tokens is full",
		},
		{engine.Result{Reason: engine.ReasonInterrupted, PromptTokens: 5, Prefill: time.Second}, "5 prompt tokens, 0 generated, 7 MB resident; interrupted"},
	} {
		if got := statsLine(c.r, 1024, 7<<20); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
