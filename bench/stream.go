package bench

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/ledger"
)

// StreamConfig says what NewStream measures.
type StreamConfig struct {
	DecodeConfig
	// RAM is how much memory the experts get, as sizes (2GiB) or as percentages of all experts' bytes (20%). Each meets every setting.
	RAM []string
}

// NewStream is the experiment "stream": tokens decoded by a model whose experts have room for a part of them in memory and come from disk
// otherwise, against what memory and drive allow at best. All arms compute the same tokens and must come to the same answers, to the bit.
func NewStream(cfg StreamConfig) (Experiment, error) {
	var err error
	if cfg.Settings, err = WithRAM(cfg.Settings, cfg.RAM); err != nil {
		return nil, err
	}
	for i := range cfg.Settings {
		s := &cfg.Settings[i]
		s.Options.Device = cmp.Or(s.Options.Device, engine.DeviceNone)
	}
	x, err := newDecode("stream", cfg.DecodeConfig)
	if err != nil {
		return nil, err
	}
	x.drive, x.answers = true, newAnswers()
	columns(x.metrics, tokensPerSecond, ofLimit, "hit %", "disk MB/token", "read GB/s", "drive GB/s", "stall %", "precision %", "recall %")
	return x, nil
}

// plenty is enough for all experts of any model, and what is lost to whole pages.
const plenty = 1 << 50

// WithRAM returns every setting with every amount of memory for experts, as its last parameter: sizes, or percentages of the bytes of all
// routed experts. Without amounts it returns the settings.
func WithRAM(settings []Setting, amounts []string) (all []Setting, err error) {
	if len(amounts) == 0 {
		return settings, nil
	}
	for _, s := range settings {
		experts, err := ExpertBytes(s.Path)
		if err != nil {
			return nil, err
		}
		if experts == 0 {
			return nil, fmt.Errorf("%s has no routed experts: there is nothing to read from disk", s.Path)
		}
		for _, amount := range amounts {
			with := s
			with.Params = append(slices.Clone(s.Params), Param{"ram", amount})
			if with.Options.RAM, err = ledger.ParseSize(amount, experts); err != nil {
				return nil, badSetting("--ram %s: %w", amount, err)
			}
			switch ram := &with.Options.RAM; {
			case *ram <= 0:
				return nil, badSetting("--ram %s: no memory at all leaves no expert to compute", amount)
			case *ram >= experts:
				*ram = plenty
			}
			all = append(all, with)
		}
	}
	return all, nil
}
