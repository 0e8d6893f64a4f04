// SPDX-License-Identifier: Apache-2.0
// Checks a history of `wirepaxos-lab torture` with Porcupine, key by key.
//
// Input, on stdin: a line of JSON an operation, with its client, key, op, arg, call and return (null: no answer came),
// answer. A key may stand for a group of keys; members are those of it that the operation is about (null: it is one key). Output: one JSON object with the verdict ("yes", "no", "unknown"), the number of keys, and the keys that are
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
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// For each key. Whole histories take a second or two; a key that takes this long is reported as unknown.
const timeout = 20 * time.Second

type line struct {
	Client  int     `json:"client"`
	Key     string  `json:"key"`
	Op      string  `json:"op"`
	Members []int   `json:"members"`
	Arg     string  `json:"arg"`
	Call    int64   `json:"call"`
	Return  *int64  `json:"return"`
	Answer  *string `json:"answer"`
}

// A key's value, or that it has none.
type contents struct {
	present bool
	value   string
}

// A group of keys. One that is no group is the first of it.
type state [3]contents

type input struct {
	op, arg string
	members []int
}

// What a command of the store does. Answers are in the form of the history: "+" is OK, "_" nil, ":7" a number, "$x" a
// string, "*$x _ $y" those of a group.
func apply(s state, in input) (state, string) {
	members := in.members
	if members == nil {
		members = []int{0}
	}
	key := &s[0]
	switch in.op {
	case "GET":
		return s, shown(*key)
	case "MGET":
		all := []string{}
		for _, n := range members {
			all = append(all, shown(s[n]))
		}
		return s, "*" + strings.Join(all, " ")
	case "SET", "MSET":
		for _, n := range members {
			s[n] = contents{true, in.arg}
		}
		return s, "+"
	case "INCR":
		n := int64(0)
		if key.present {
			parsed, err := strconv.ParseInt(key.value, 10, 64)
			if err != nil {
				return s, "-"
			}
			n = parsed
		}
		sum := strconv.FormatInt(n+1, 10)
		*key = contents{true, sum}
		return s, ":" + sum
	case "APPEND":
		*key = contents{true, key.value + in.arg}
		return s, ":" + strconv.Itoa(len(key.value))
	case "DEL":
		gone := 0
		for _, n := range members {
			if s[n].present {
				gone++
			}
			s[n] = contents{}
		}
		return s, ":" + strconv.Itoa(gone)
	}
	panic("unknown command " + in.op)
}

func shown(c contents) string {
	if c.present {
		return "$" + c.value
	}
	return "_"
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
			ClientId: l.Client, Input: input{l.Op, l.Arg, l.Members}, Call: l.Call, Output: l.Answer, Return: end,
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
