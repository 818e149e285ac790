//go:build !linux

package actors

// LowTimerSlack does nothing: only Linux stretches short sleeps by a slack.
func LowTimerSlack() {}
