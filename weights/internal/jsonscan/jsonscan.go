// Package jsonscan reads JSON that must not be ambiguous: encoding/json, but a key given twice is an error and numbers keep their digits.
package jsonscan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxDepth bounds the nesting of Any; real files have less than 10.
const maxDepth = 64

// ErrDuplicate is a key that occurs twice in one object.
var ErrDuplicate = errors.New("duplicate key")

// New returns a decoder over data, which must be valid UTF-8.
func New(data []byte) (*json.Decoder, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec, nil
}

// Object reads an object and calls field after each key; field must consume the value.
func Object(dec *json.Decoder, field func(key string) error) error {
	tok, err := dec.Token()
	if err != nil {
		return eof(err)
	}
	if tok != json.Delim('{') {
		return fmt.Errorf("%v in place of an object", tok)
	}
	return fields(dec, field)
}

func fields(dec *json.Decoder, field func(key string) error) error {
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return eof(err)
		}
		key, ok := tok.(string)
		if !ok { // after some malformed numbers the decoder no longer knows that a key is due
			return fmt.Errorf("%v in place of a key", tok)
		}
		if seen[key] {
			return fmt.Errorf("%w %q", ErrDuplicate, key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return eof(err)
}

// Any reads one value: map[string]any, []any, string, json.Number, bool or nil.
func Any(dec *json.Decoder) (any, error) { return value(dec, maxDepth) }

func value(dec *json.Decoder, depth int) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, eof(err)
	}
	d, nested := tok.(json.Delim)
	switch {
	case !nested:
		return tok, nil
	case depth == 0:
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	case d == '{':
		obj := map[string]any{}
		err := fields(dec, func(key string) error {
			v, err := value(dec, depth-1)
			obj[key] = v
			return err
		})
		return obj, err
	}
	list := []any{}
	for dec.More() {
		v, err := value(dec, depth-1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err = dec.Token()
	return list, eof(err)
}

// End checks that nothing but white space follows.
func End(dec *json.Decoder) error {
	if tok, err := dec.Token(); err == nil {
		return fmt.Errorf("%v after the end", tok)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func eof(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
