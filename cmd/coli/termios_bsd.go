//go:build darwin || freebsd

package main

import "golang.org/x/sys/unix"

const (
	getTermios = unix.TIOCGETA
	setTermios = unix.TIOCSETA
	disabled   = 0xff // the control character that switches a key off
)
