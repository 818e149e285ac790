//go:build !linux && !darwin && !freebsd

package main

import "github.com/peterh/liner"

// suspender does nothing where there is no job control.
type suspender struct{}

func (suspender) start(liner.ModeApplier) {}

func (suspender) stop() {}

func (suspender) prompting() (done func()) { return func() {} }
