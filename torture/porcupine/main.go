// SPDX-License-Identifier: Apache-2.0
// Checks a history of `wirepaxos torture` with Porcupine, key by key.
//
// Input, on stdin: a line of JSON an operation, with its client, key, op, arg, call and return (null: no answer came),
// answer. Output: one JSON object with the verdict ("yes", "no", "unknown"), the number of keys, and the keys that are
// not linearizable or too hard.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// For each key. Whole histories take a second or two; a key that takes this long is reported as unknown.
const timeout = 20 * time.Second

type line struct {
	Client int     `json:"client"`
	Key    string  `json:"key"`
	Op     string  `json:"op"`
	Arg    string  `json:"arg"`
	Call   int64   `json:"call"`
	Return *int64  `json:"return"`
	Answer *string `json:"answer"`
}

// A key's value, or that it has none.
type state struct {
	present bool
	value   string
}

type input struct{ op, arg string }

// What a command of the store does. Answers are in the form of the history: "+" is OK, "_" nil, ":7" a number, "$x" a
// string.
func apply(s state, in input) (state, string) {
	switch in.op {
	case "GET":
		if s.present {
			return s, "$" + s.value
		}
		return s, "_"
	case "SET":
		return state{true, in.arg}, "+"
	case "INCR":
		n := int64(0)
		if s.present {
			parsed, err := strconv.ParseInt(s.value, 10, 64)
			if err != nil {
				return s, "-"
			}
			n = parsed
		}
		sum := strconv.FormatInt(n+1, 10)
		return state{true, sum}, ":" + sum
	case "APPEND":
		value := s.value + in.arg
		return state{true, value}, ":" + strconv.Itoa(len(value))
	case "DEL":
		if s.present {
			return state{}, ":1"
		}
		return state{}, ":0"
	}
	panic("unknown command " + in.op)
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(s, in, out interface{}) (bool, interface{}) {
		after, answer := apply(s.(state), in.(input))
		seen := out.(*string)
		return seen == nil || *seen == answer, after
	},
}

func read() (map[string][]porcupine.Operation, error) {
	keys := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		// Without an answer it may have taken effect at any time since, or never.
		end := int64(math.MaxInt64)
		if l.Return != nil {
			end = *l.Return
		}
		keys[l.Key] = append(keys[l.Key], porcupine.Operation{
			ClientId: l.Client, Input: input{l.Op, l.Arg}, Call: l.Call, Output: l.Answer, Return: end,
		})
	}
	return keys, lines.Err()
}

func main() {
	keys, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	illegal, unknown := []string{}, []string{}
	for key, operations := range keys {
		switch porcupine.CheckOperationsTimeout(model, operations, timeout) {
		case porcupine.Illegal:
			illegal = append(illegal, key)
		case porcupine.Unknown:
			unknown = append(unknown, key)
		}
	}
	sort.Strings(illegal)
	sort.Strings(unknown)
	verdict := "yes"
	if len(unknown) > 0 {
		verdict = "unknown"
	}
	if len(illegal) > 0 {
		verdict = "no"
	}
	json.NewEncoder(os.Stdout).Encode(map[string]interface{}{
		"verdict": verdict, "keys": len(keys), "illegal": illegal, "unknown": unknown,
	})
}
