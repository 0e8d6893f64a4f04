// SPDX-License-Identifier: Apache-2.0

// Asynq's server is at one replica, and its client at another one: jobs now, later, unique, and one that is repeated
// after an error. The inspector at both sees the same.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
)

const jobs = 22

var done, repeated atomic.Int64

func main() {
	ours, theirs := asynq.RedisClientOpt{Addr: os.Args[1]}, asynq.RedisClientOpt{Addr: os.Args[2]}
	server := asynq.NewServer(theirs, asynq.Config{
		Concurrency:              2,
		LogLevel:                 asynq.ErrorLevel,
		DelayedTaskCheckInterval: time.Second,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc("add", func(context.Context, *asynq.Task) error { done.Add(1); return nil })
	mux.HandleFunc("flaky", func(context.Context, *asynq.Task) error {
		if repeated.Add(1) == 1 {
			return errors.New("again")
		}
		done.Add(1)
		return nil
	})
	check(server.Start(mux))
	defer server.Shutdown()
	ask(asynq.NewClient(ours))
	for deadline := time.Now().Add(100 * time.Second); done.Load() < jobs; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			log.Fatalf("%d jobs are done", done.Load())
		}
	}
	inspect(ours)
	inspect(theirs)
}

func ask(client *asynq.Client) {
	defer client.Close()
	add := func(options ...asynq.Option) error {
		_, err := client.Enqueue(asynq.NewTask("add", nil), append(options, asynq.Retention(time.Hour))...)
		return err
	}
	for n := 0; n < 19; n++ {
		check(add())
	}
	check(add(asynq.ProcessIn(time.Second)))
	check(add(asynq.TaskID("once"), asynq.ProcessIn(time.Second)))
	if err := add(asynq.TaskID("once")); !errors.Is(err, asynq.ErrTaskIDConflict) {
		log.Fatalf("a second task of one name: %v", err)
	}
	_, err := client.Enqueue(asynq.NewTask("flaky", nil), asynq.Retention(time.Hour))
	check(err)
}

func inspect(at asynq.RedisClientOpt) {
	inspector := asynq.NewInspector(at)
	defer inspector.Close()
	var seen string
	for deadline := time.Now().Add(100 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		info, err := inspector.GetQueueInfo("default")
		check(err)
		if info.Completed == jobs && info.Active == 0 && info.Pending == 0 {
			return
		}
		seen = fmt.Sprintf("%+v", info)
	}
	log.Fatal(seen)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
