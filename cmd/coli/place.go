package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coli-moe/coli/engine"
	"github.com/coli-moe/coli/ledger"
)

// placement are the flags that say where a model's weights live and what computes with them.
type placement struct {
	experts expertOptions
	device  deviceOptions
}

func (p *placement) flags(cmd *cobra.Command) {
	group(cmd, "Device", p.device.flags)
	group(cmd, "Experts", p.experts.flags)
}

func (p *placement) check() error { return p.experts.check() }

// apply sets the options of a load; note takes lines for the user.
func (p *placement) apply(opt *engine.Options, note func(string)) {
	p.device.apply(opt)
	p.experts.apply(opt, note)
}

// with loads a model, has work done with it and says, where its experts stream from disk, what that took. The usage history is neither read
// nor written: what measures a model does not depend on what was asked of it before.
func (p *placement) with(cmd *cobra.Command, path string, opt engine.Options, work func(context.Context, *engine.Model) error) (err error) {
	ctx, stop := endable(cmd.Context())
	defer stop()
	say := func(line string) { note(cmd.ErrOrStderr(), "%s", line) }
	p.apply(&opt, say)
	m, err := loadModel(ctx, path, opt, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.experts.writeTrace(m), m.Close()) }()
	p.announce(m, false, say)
	if err := work(ctx, m); err != nil {
		return err
	}
	stats, streams, err := m.Experts()
	if streams && err == nil {
		say(expertsLine(stats))
	}
	p.device.printProfile(cmd.ErrOrStderr(), m)
	return err
}

// announce says which layers are on a device, if there is one to speak of, and where the experts are, unless all are in memory.
func (p *placement) announce(m *engine.Model, verbose bool, say func(string)) {
	if m.LayersWhy != "" {
		say(m.LayersWhy)
	}
	if _, streams, _ := m.Experts(); streams || verbose {
		say(m.PlaceWhy)
	}
}

// ledgerLine says who has been granted how much of a kind of memory, and what of it is not taken.
func ledgerLine(a ledger.Account) string {
	var b strings.Builder
	fmt.Fprintf(&b, "memory: %s", a.Of)
	if a.Known {
		fmt.Fprintf(&b, ", of %s that may be used", ledger.FormatSize(a.Budget))
	}
	for i, e := range a.Entries {
		fmt.Fprintf(&b, "%s %s %s", []string{":", ","}[min(i, 1)], e.Name, ledger.FormatSize(e.Bytes))
		if e.Held < e.Bytes {
			fmt.Fprintf(&b, " (%s taken)", ledger.FormatSize(e.Held))
		}
	}
	return b.String()
}
