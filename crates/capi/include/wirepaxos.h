/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/capi/src/lib.rs and nodes.rs by their test; change those files instead. */

#ifndef WIREPAXOS_H
#define WIREPAXOS_H

#include <stdint.h>

/*
 How new what a query shows has to be.
 */
enum paxos_freshness {
  /*
   It has everything that anybody was told before the query.
   */
  PAXOS_LATEST = 0,
  /*
   Whatever the replica that is asked was delivered, which may be old.
   */
  PAXOS_STALE = 1,
};

/*
 What became of values. None is ever delivered twice, whatever this says.
 */
enum paxos_outcome {
  /*
   Delivered on all replicas, or about to be.
   */
  PAXOS_EXECUTED = 0,
  /*
   Delivered nowhere, now and later: they may be submitted again.
   */
  PAXOS_REFUSED = 1,
  /*
   Each may have been delivered, or may yet be. Look for them before submitting them again.
   */
  PAXOS_UNKNOWN = 2,
};

/*
 Bytes that callbacks append to, by `paxos_append`.
 */
struct paxos_bytes;

/*
 All nodes of a cluster but its replicas, as threads of this process. Tests start a `paxos_ctx`
 for each replica beside them, and then have a whole cluster in one process.
 */
struct paxos_nodes;

/*
 One partition's part in a value that was submitted to several. All of it is valid during the
 call only.
 */
struct paxos_part {
  /*
   Which partition.
   */
  uint16_t pid;
  /*
   What it has prepared.
   */
  const char *prepared;
  /*
   Bytes of that.
   */
  int prepared_size;
  /*
   Takes what is to change there; nothing appended: nothing changes.
   */
  struct paxos_bytes *effect;
};

/*
 A connection to the replicated service. Fill in the callbacks between `paxos_ctx_new` and
 `paxos_ctx_start`.
 */
struct paxos_ctx {
  /*
   Called for each value, in the order that all replicas agree on; never from two threads at
   once. `instance` counts from 0 (64 bits: an int would be used up within the hour). After a
   crash, values since the last checkpoint are delivered again: keep `instance` with your data,
   atomically, and skip what you have. `value` is valid during the call only.
   */
  void (*deliver)(struct paxos_ctx *ctx, uint64_t instance, char *value, int size);
  /*
   Called before the acceptors may forget what was delivered in this partition: make your data
   of it durable and return 0. Any other answer stops the node. What was delivered before the
   previous such call for this partition never comes again. May be NULL.
   */
  int (*checkpoint)(struct paxos_ctx *ctx, uint16_t pid);
  /*
   The same as `deliver` for a group of several partitions, each of which counts instances by
   itself. If it is there, `deliver` isn't called. Values of different partitions have no
   order.
   */
  void (*deliver_in)(struct paxos_ctx *ctx,
                     uint16_t pid,
                     uint64_t instance,
                     const char *value,
                     int size);
  /*
   The first step of a value that was submitted to several partitions, in each of them: append
   to `prepared` what the value needs to know of this one. It sees all that was delivered
   before, and changes nothing. After a crash it may come again for an `instance` that your
   data is beyond. Then append what you appended the first time: so keep that with your data.
   Without these three such values are refused.
   */
  void (*prepare)(struct paxos_ctx *ctx,
                  uint16_t pid,
                  uint64_t instance,
                  const char *value,
                  int size,
                  struct paxos_bytes *prepared);
  /*
   The second step, in one place: append to each part's `effect` what is to change there. It
   depends on nothing but its arguments.
   */
  void (*combine)(struct paxos_ctx *ctx,
                  const char *value,
                  int size,
                  struct paxos_part *parts,
                  int count);
  /*
   The third step, in each partition that something was appended for: change it. `instance` is
   the value's there: keep it with your data as in `deliver`.
   */
  void (*apply)(struct paxos_ctx *ctx, uint16_t pid, uint64_t instance, const char *effect, int size);
  /*
   Answers a query without a place in the log: append what your data of this partition has to
   say to it, and change nothing. It sees all that was delivered before. May be NULL: then
   queries are refused.
   */
  void (*read)(struct paxos_ctx *ctx,
               uint16_t pid,
               const char *query,
               int size,
               struct paxos_bytes *answer);
  /*
   Called once if the replica ends after `paxos_ctx_start` has returned 0 and before
   `paxos_ctx_free`, from a thread of its own. `why` is what went wrong, or NULL if it was told
   to stop (`wirepaxos stop`). It must not call `paxos_ctx_free`. May be NULL.
   */
  void (*ended)(struct paxos_ctx *ctx, const char *why);
  /*
   Yours.
   */
  void *arg;
  /*
   Not yours.
   */
  void *private_;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Prepares a context. `cluster_file` is the path of the cluster file; `node_name` names the
 replica that this process is, or is NULL for a client that only submits and recovers.
 Returns NULL if memory is short or an argument is no text.

 # Safety
 `cluster_file` and, unless it is NULL, `node_name` must be NUL-terminated strings.
 */
struct paxos_ctx *paxos_ctx_new(const char *cluster_file, const char *node_name);

/*
 Starts the replica, if the context is one, waits until it runs, and connects the client. Returns
 0, or -1 if either can't start: see `paxos_ctx_error`.

 # Safety
 `ctx` comes from `paxos_ctx_new`, and its callbacks stay valid until `paxos_ctx_free`.
 */
int paxos_ctx_start(struct paxos_ctx *ctx);

/*
 Proposes a value: it will be delivered on all replicas, once. Returns 0 when it has been handed
 to the proposer, which retries until it is acknowledged; waits while too many are in flight.
 Returns -1 if it has not been handed over (`PAXOS_REFUSED`): it is too large, too many are in
 flight and none is acknowledged, or the context is not started. What becomes of values handed
 over, `paxos_ctx_flush` tells.

 # Safety
 `ctx` comes from `paxos_ctx_new`; `value` points to `size` bytes. Not from two threads at once.
 */
int submit(struct paxos_ctx *ctx, char *value, int size);

/*
 Proposes a value for each of these partitions: all of them execute it, by `prepare`, `combine`
 and `apply`, or none does. One partition alone delivers it. The rest is as in `submit`, which is
 for partition 0.

 # Safety
 `ctx` comes from `paxos_ctx_new`; `pids` points to `count` numbers, and `value` to `size` bytes. Not from
 two threads at once.
 */
int submit_to(struct paxos_ctx *ctx,
              const uint16_t *pids,
              int count,
              const char *value,
              int size);

/*
 Proposes a value for the partition that a key belongs to: the range of its hash slot, as in
 Redis Cluster. The rest is as in `submit`.

 # Safety
 `ctx` comes from `paxos_ctx_new`; `key` points to `key_size` bytes, and `value` to `size` bytes. Not from two
 threads at once.
 */
int submit_by_key(struct paxos_ctx *ctx,
                  const char *key,
                  int key_size,
                  const char *value,
                  int size);

/*
 Appends `size` bytes to what a callback was given to append to.

 # Safety
 `to` was given to the callback that is running; `from` points to `size` bytes.
 */
void paxos_append(struct paxos_bytes *to, const char *from, int size);

/*
 Waits until everything submitted has been acknowledged: delivered on a replica. Returns 0, or
 -1 if any value since the last flush isn't: after `timeout_ms`, or because the replicas answered
 otherwise. `paxos_ctx_outcome` then says whether all of those are refused, or the outcome of
 some is unknown.

 # Safety
 `ctx` comes from `paxos_ctx_new`. Not from two threads at once.
 */
int paxos_ctx_flush(struct paxos_ctx *ctx, int timeout_ms);

/*
 Asks a replica's `read` about its partition `pid`, without a place in the log, and waits for the
 answer. Returns the length of the answer, which `*answer` points to until the next call; or -1:
 nobody answers within `timeout_ms`, or the program has no `read`. A query fits a value; an
 answer may be longer. In a group with NOPaxos there are no queries.

 # Safety
 `ctx` comes from `paxos_ctx_new`; `query` points to `size` bytes, and `answer` to a pointer. Not from two threads at once.
 */
int paxos_read(struct paxos_ctx *ctx,
               uint16_t pid,
               const char *query,
               int size,
               enum paxos_freshness freshness,
               int timeout_ms,
               const char **answer);

/*
 Finds out what an instance decided and delivers it, through `deliver`, to this context alone.
 If nothing was decided, `value`, the application's no-op, is put there first; it is delivered
 here and executed nowhere. Returns 0, or -1: see `paxos_ctx_error`.

 # Safety
 `ctx` comes from `paxos_ctx_new`; `value` points to `size` bytes. Not from two threads at once.
 */
int recover(struct paxos_ctx *ctx, uint64_t instance, char *value, int size);

/*
 What the last call that returned -1 had to say; valid until the next call.

 # Safety
 `ctx` comes from `paxos_ctx_new`.
 */
const char *paxos_ctx_error(struct paxos_ctx *ctx);

/*
 What became of the values that the last call was about: `PAXOS_EXECUTED` if it returned 0, else
 why they are not acknowledged. Of a context that was not started, `PAXOS_REFUSED`.

 # Safety
 `ctx` comes from `paxos_ctx_new`.
 */
enum paxos_outcome paxos_ctx_outcome(struct paxos_ctx *ctx);

/*
 Stops the replica in good order, after a checkpoint, and frees the context. Returns 0, or -1 if
 the replica had failed; why is on standard error.

 # Safety
 `ctx` comes from `paxos_ctx_new` and is not used again; or it is NULL.
 */
int paxos_ctx_free(struct paxos_ctx *ctx);

/*
 Prepares the nodes of a cluster. `cluster_file` is the path of the cluster file, which needn't
 exist yet. Returns NULL if memory is short or the argument is no text.

 # Safety
 `cluster_file` must be a NUL-terminated string.
 */
struct paxos_nodes *paxos_nodes_new(const char *cluster_file);

/*
 Writes the cluster file of a new cluster, and its key beside it. The cluster has a random number
 and a random loopback address, so that it is alone at its ports. It has a controller, two
 leaders, three acceptors, and `replica-1`, `replica-2` and `replica-3` of a group with
 `application = "own"`. Packets are signed, and the data is in the directory `data` beside the
 file. Returns 0, or -1: see `paxos_nodes_error`. A file that exists is an error, and stays as it
 is.

 # Safety
 `nodes` comes from `paxos_nodes_new`. Not from two threads at once.
 */
int paxos_nodes_write_file(struct paxos_nodes *nodes, int partitions);

/*
 Starts all nodes of the cluster file but its replicas, and waits until they listen. Returns 0,
 or -1 if one can't start: see `paxos_nodes_error`. Then none of them runs.

 # Safety
 `nodes` comes from `paxos_nodes_new`. Not from two threads at once.
 */
int paxos_nodes_start(struct paxos_nodes *nodes);

/*
 Returns what the last call that returned -1 had to say; valid until the next call.

 # Safety
 `nodes` comes from `paxos_nodes_new`.
 */
const char *paxos_nodes_error(struct paxos_nodes *nodes);

/*
 Stops the nodes in good order, and frees them. Returns 0, or -1 if one had failed; why is on
 standard error. Free the contexts of replicas and clients first.

 # Safety
 `nodes` comes from `paxos_nodes_new` and is not used again; or it is NULL.
 */
int paxos_nodes_free(struct paxos_nodes *nodes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WIREPAXOS_H */
