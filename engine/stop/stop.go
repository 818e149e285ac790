// Package stop finds stop strings in text that arrives in pieces, and never lets a byte of one through.
//
// It works on bytes and knows nothing of tokens: end-of-sequence ids are the engine's business.
package stop

import (
	"errors"
	"strings"
)

// A Matcher holds back the end of the text as long as it could still become a stop string. It belongs to one answer and one goroutine.
type Matcher struct {
	stops   []string
	held    string // not yet emitted: it begins, and does not complete, the stop string that would count
	stopped bool
}

// New returns a matcher of the given strings; of none at all it lets everything through. An empty stop string would end every answer before
// it begins, and is refused.
func New(stops []string) (*Matcher, error) {
	for _, s := range stops {
		if s == "" {
			return nil, errors.New("--stop: a stop string is empty")
		}
	}
	return &Matcher{stops: stops}, nil
}

// Push takes the next piece of text and returns what can be shown of the text so far. Once a stop string is complete, stopped is true, emit
// ends just before it, and all later text is dropped. The stop string that starts first in the text counts, however the text was cut into
// pieces; so one that completes inside another, unfinished one stops the text only when that one can no longer complete.
func (m *Matcher) Push(text string) (emit string, stopped bool) {
	if m.stopped {
		return "", true
	}
	text = m.held + text
	begun, end := m.begun(text), m.find(text)
	if end >= 0 && end <= begun {
		m.held, m.stopped = "", true
		return text[:end], true
	}
	m.held = text[begun:]
	return text[:begun], false
}

// Flush returns the text held back, to be shown when the answer ends without completing a stop string; nothing after a stop.
func (m *Matcher) Flush() string {
	held := m.held
	if end := m.find(held); end >= 0 {
		held = held[:end]
	}
	m.held = ""
	return held
}

// find returns where the first complete stop string of text starts, or -1.
func (m *Matcher) find(text string) int {
	first := -1
	for _, s := range m.stops {
		if i := strings.Index(text, s); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	return first
}

// begun returns where the longest end of text starts that begins a stop string without completing it; len(text) if there is none.
func (m *Matcher) begun(text string) int {
	longest := 0
	for _, s := range m.stops {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, s[:n]) {
				longest = n
			}
		}
	}
	return len(text) - longest
}
