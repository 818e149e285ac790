package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxList is the most values that a list of the matrix may have.
const maxList = 1000

// ParseInts reads a list of the matrix, as llama-bench has it: comma-separated numbers and ranges first-last, which go up by one, by a step
// (512-2048+512) or by a factor (1-8*2). The last value of a range is part of it where the step meets it. Values are 0 or more, and one
// that is there twice counts once.
func ParseInts(text string) ([]int, error) { return parseList(text, parseRange) }

// ParseList reads a comma-separated list of words, none of them empty; one that is there twice counts once.
func ParseList(text string) ([]string, error) {
	return parseList(text, func(word string) ([]string, error) { return []string{word}, nil })
}

// ParseSizes reads a list of sizes and percentages: 4GiB,8GiB or 25%,50% or a range of either, 10%-50%+10% or 1MiB-16MiB*2. Values stay as
// text, for ledger.ParseSize.
func ParseSizes(text string) ([]string, error) { return parseList(text, sizeRange) }

// parseList reads a comma-separated list whose items may stand for several values each.
func parseList[T comparable](text string, parse func(item string) ([]T, error)) (list []T, err error) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			return nil, fmt.Errorf("%q has an empty place", text)
		}
		values, err := parse(item)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
		if len(list) > maxList {
			return nil, fmt.Errorf("%q has more than %d values", text, maxList)
		}
	}
	return list, nil
}

func parseRange(item string) ([]int, error) {
	first, rest, isRange := strings.Cut(item, "-")
	low, err := parseInt(first)
	if err != nil || !isRange {
		return []int{low}, err
	}
	step, factor := 1, 1
	var err2 error
	if at := strings.IndexAny(rest, "+*"); at >= 0 {
		if rest[at] == '*' {
			step = 0
			factor, err = parseInt(rest[at+1:])
		} else {
			step, err = parseInt(rest[at+1:])
		}
		rest = rest[:at]
	}
	high, err2 := parseInt(rest)
	switch {
	case err != nil || err2 != nil:
		return nil, errors.Join(err, err2)
	case high < low:
		return nil, fmt.Errorf("the range %s ends before it begins", item)
	case step == 0 && (factor < 2 || low == 0), step < 1 && factor == 1:
		return nil, fmt.Errorf("the range %s never ends: the step is 1 or more, the factor 2 or more, of a number that is not 0", item)
	}
	var list []int
	for v := low; v <= high; v = v*factor + step {
		if list = append(list, v); len(list) > maxList {
			return nil, fmt.Errorf("the range %s has more than %d values", item, maxList)
		}
		if v > (math.MaxInt-step)/factor {
			break
		}
	}
	return list, nil
}

func parseInt(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q is no whole number of 0 or more; a list is 1,2,4 or a range 512-2048+512 or 1-8*2", s)
	}
	return int(n), nil
}

// sizeRange expands a range of sizes with one unit.
func sizeRange(item string) ([]string, error) {
	first, rest, isRange := strings.Cut(item, "-")
	if !isRange {
		return []string{item}, nil
	}
	number := func(s string) (digits, unit string) {
		at := strings.LastIndexAny(s, "0123456789") + 1
		return s[:at], s[at:]
	}
	last, step := rest, ""
	if at := strings.IndexAny(rest, "+*"); at >= 0 {
		last, step = rest[:at], rest[at:]
	}
	low, unit := number(first)
	high, unit2 := number(last)
	if low == "" || high == "" {
		return nil, fmt.Errorf("the range %s lacks one of its ends; a range is 1MiB-16MiB*2 or 10%%-50%%+10%%", item)
	}
	by, unit3 := number(step)
	if unit != unit2 || unit3 != "" && (unit3 != unit || strings.HasPrefix(by, "*")) {
		return nil, fmt.Errorf("the range %s mixes units; write it in one, as in 1GiB-8GiB*2 or 10%%-50%%+10%%", item)
	}
	values, err := parseRange(low + "-" + high + by)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, v := range values {
		list = append(list, strconv.Itoa(v)+unit)
	}
	return list, nil
}
