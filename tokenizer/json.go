package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// jsonReader walks through one JSON document. encoding/json would take longer for a vocabulary of 150,000 tokens than all the rest of
// loading, so the large parts, the vocabulary and the merges, are read with this, and the small ones handed on as raw values. Strings are
// spans of data, which keeps the collector out of 450,000 of them.
type jsonReader struct {
	data []byte // the document, and after it the strings of the document that have escapes, without them
	end  int    // of the document
	pos  int
}

func newJSONReader(data []byte) *jsonReader { return &jsonReader{data: data, end: len(data)} }

func (r *jsonReader) text(s span) []byte { return r.data[s.start:s.end:s.end] }

func (r *jsonReader) errorf(format string, args ...any) error {
	return fmt.Errorf("offset %d: %s", r.pos, fmt.Sprintf(format, args...))
}

// peek returns the next byte that is not white space, or 0 at the end.
func (r *jsonReader) peek() byte {
	for ; r.pos < r.end; r.pos++ {
		switch c := r.data[r.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (r *jsonReader) expect(c byte) error {
	switch got := r.peek(); {
	case got == c:
		r.pos++
		return nil
	case r.pos >= r.end:
		return r.errorf("the document ends where %q is expected", c)
	default:
		return r.errorf("%q where %q is expected", got, c)
	}
}

// sequence reads open, elements separated by commas, and end.
func (r *jsonReader) sequence(open, end byte, element func() error) error {
	if err := r.expect(open); err != nil {
		return err
	}
	if r.peek() == end {
		r.pos++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if r.peek() == ',' {
			r.pos++
			continue
		}
		return r.expect(end)
	}
}

// object reads an object and calls field after each key; it must read the value.
func (r *jsonReader) object(field func(key span) error) error {
	return r.sequence('{', '}', func() error {
		key, err := r.str()
		if err != nil {
			return err
		}
		if err := r.expect(':'); err != nil {
			return err
		}
		return field(key)
	})
}

func (r *jsonReader) array(element func() error) error { return r.sequence('[', ']', element) }

// str reads a string.
func (r *jsonReader) str() (span, error) {
	start, escaped, err := r.quoted()
	if err != nil {
		return span{}, err
	}
	if !escaped {
		return span{uint32(start), uint32(r.pos - 1)}, nil
	}
	var s string
	if err := json.Unmarshal(r.data[start-1:r.pos], &s); err != nil {
		return span{}, r.errorf("%v", err)
	}
	r.data = append(r.data, s...)
	return span{uint32(len(r.data) - len(s)), uint32(len(r.data))}, nil
}

// quoted skips a string and returns the offset of its first character.
func (r *jsonReader) quoted() (start int, escaped bool, err error) {
	if err := r.expect('"'); err != nil {
		return 0, false, err
	}
	start = r.pos
	for ; r.pos < r.end; r.pos++ {
		switch r.data[r.pos] {
		case '"':
			r.pos++
			return start, escaped, nil
		case '\\':
			escaped = true
			r.pos++
		}
	}
	r.pos = start
	return 0, false, r.errorf("a string without end")
}

// id reads a token id: an integer from 0 to limit, exclusive.
func (r *jsonReader) id(limit int) (int32, error) {
	r.peek()
	start := r.pos
	for r.pos < r.end && (r.data[r.pos] == '-' || r.data[r.pos] >= '0' && r.data[r.pos] <= '9') {
		r.pos++
	}
	n, err := strconv.Atoi(string(r.data[start:r.pos]))
	if err != nil || n < 0 || n >= limit {
		end := min(r.pos+1, r.end)
		r.pos = start
		return 0, r.errorf("%q is not a token id below %d", r.data[start:end], limit)
	}
	return int32(n), nil
}

// raw skips a value and returns it, without checking more of it than where it ends.
func (r *jsonReader) raw() ([]byte, error) {
	c := r.peek()
	start := r.pos
	switch c {
	case '"':
		_, _, err := r.quoted()
		return r.data[start:r.pos], err
	case '{', '[':
		for depth := 0; ; {
			switch r.peek() {
			case 0:
				r.pos = start
				return nil, r.errorf("a value without end")
			case '"':
				if _, _, err := r.quoted(); err != nil {
					return nil, err
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			r.pos++
			if depth == 0 {
				return r.data[start:r.pos], nil
			}
		}
	}
	for r.pos < r.end && bytes.IndexByte([]byte(",]} \t\r\n"), r.data[r.pos]) < 0 {
		r.pos++
	}
	if start == r.pos {
		return nil, r.errorf("no value")
	}
	return r.data[start:r.pos], nil
}
