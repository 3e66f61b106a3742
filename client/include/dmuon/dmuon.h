/* SPDX-FileCopyrightText: 2026 The dmuon authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libdmuon: a training worker's side of the optimizer service.
 *
 *   dmuon_open -> dmuon_add_group* -> dmuon_add_tensor* -> dmuon_register
 *     -> fill dmuon_param_buffer of every tensor -> dmuon_begin
 *     -> per step: fill dmuon_grad_buffer, dmuon_submit* -> dmuon_step -> dmuon_wait
 *        (dmuon_expect_gradients before the first dmuon_submit lets the service work while backward runs)
 *     -> between two steps, on all workers: dmuon_save, and dmuon_wait_saved at any later time; or dmuon_restore
 *     -> between two steps: dmuon_export_state, dmuon_release_state; or, on all workers, dmuon_import_state
 *   -> dmuon_close
 *
 * Conventions
 *  1. A handle is opaque. Every function but dmuon_close and the static queries returns a status;
 *     DMUON_OK is 0. dmuon_last_error() then says, on the same thread, what went wrong.
 *  2. A struct that may grow begins with struct_size and is made by its _INIT macro.
 *  3. Strings passed in are copied. Strings handed out belong to the library and live as said.
 *  4. Buffers handed out lie in the arena, memory shared with the daemon. They are valid, at the
 *     same address, from the first dmuon_register to dmuon_close. A lost connection may bring a new
 *     arena: what the old one held is moved into it.
 *  5. One thread at a time uses a client, except where a function says otherwise.
 *  6. timeout_ms: 0 polls, negative waits without end. A timeout loses nothing: call again.
 *  7. After fork() the client stays the parent's: in the child every call answers DMUON_NOT_READY,
 *     and dmuon_close does nothing. The child may end in any way.
 *
 * Not supported yet: CUDA memory.
 */
#ifndef DMUON_DMUON_H_
#define DMUON_DMUON_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DMUON_API __attribute__((visibility("default")))
#else
#define DMUON_API
#endif

#define DMUON_ABI_VERSION 8
#define DMUON_MAX_DIMS 8

/* Grows at its end. */
typedef enum dmuon_status {
  DMUON_OK = 0,
  DMUON_INVALID_ARGUMENT = 1,   /* a value is malformed or out of its bound; nothing changed */
  DMUON_NOT_READY = 2,          /* a call out of its order */
  DMUON_UNAVAILABLE = 3,        /* no daemon at the address, or it is shutting down */
  DMUON_DEADLINE_EXCEEDED = 4,  /* the time is over; the message names who is missing */
  DMUON_STALE_GENERATION = 5,   /* ownership moved; dmuon_register and submit the step again */
  DMUON_SPEC_MISMATCH = 6,      /* workers of one job differ, or this one differs from its past */
  DMUON_COVERAGE = 7,           /* boxes leave a hole or overlap */
  DMUON_STEP_OUT_OF_ORDER = 8,  /* neither the last applied step nor the next */
  DMUON_MISSING_GRADIENT = 9,   /* a gradient is missing on some worker */
  DMUON_RANK_TAKEN = 10,        /* a live worker holds this rank */
  DMUON_LIMIT = 11,             /* a limit of the daemon */
  DMUON_DENIED = 12,            /* wrong user, wrong token */
  DMUON_STATE_LOST = 13,        /* the daemon no longer has this job's state */
  DMUON_NUMERICAL = 14,         /* finite input gave a result that is not */
  DMUON_INTERNAL = 15,          /* a bug, or an error without a code of its own */
  DMUON_REATTACHED = 16,        /* fetch the buffers again, then retry. Not from this version;
                                   kept for memory that cannot stay at its address */
  DMUON_PEER_LOST = 17,         /* another node of the job, named in the message, is gone or does not
                                   answer; it was tried again until the timeout */
  DMUON_CHECKPOINT = 18,        /* a checkpoint is missing, damaged, of another model, or cannot be
                                   written; the message says which and why */
  DMUON_ROLLED_BACK = 19        /* a node was lost, and the job went back to the last step that there are
                                   copies of (replication async): dmuon_begin says which, and puts its
                                   parameters into the buffers */
} dmuon_status_t;

typedef enum dmuon_dtype { DMUON_FLOAT32 = 1, DMUON_BFLOAT16 = 2 } dmuon_dtype_t;
typedef enum dmuon_algorithm { DMUON_MUON = 1, DMUON_ADAMW = 2 } dmuon_algorithm_t;
/* 0 in these is the default of the group's variant. */
typedef enum dmuon_momentum {
  DMUON_MOMENTUM_DEFAULT = 0,
  DMUON_EMA = 1,
  DMUON_ACCUMULATE = 2
} dmuon_momentum_t;
typedef enum dmuon_coefficients {
  DMUON_COEFFICIENTS_DEFAULT = 0,
  DMUON_JORDAN = 1,
  DMUON_YOU = 2,
  DMUON_POLAR_EXPRESS = 3
} dmuon_coefficients_t;
typedef enum dmuon_eps_mode {
  DMUON_EPS_DEFAULT = 0,
  DMUON_EPS_NONE = 1,
  DMUON_EPS_ADD = 2,
  DMUON_EPS_CLAMP = 3
} dmuon_eps_mode_t;
typedef enum dmuon_scale {
  DMUON_SCALE_DEFAULT = 0,
  DMUON_SCALE_NONE = 1,             /* 1 */
  DMUON_SCALE_ORIGINAL = 2,         /* sqrt(max(1, rows/cols)) */
  DMUON_SCALE_MATCH_RMS_ADAMW = 3,  /* 0.2 sqrt(max(rows, cols)) */
  DMUON_SCALE_SPECTRAL = 4          /* sqrt(rows/cols) */
} dmuon_scale_t;
typedef enum dmuon_rescale {
  DMUON_RESCALE_DEFAULT = 0,
  DMUON_RESCALE_KEEP_NORM = 1,      /* of an update after its second moment: the norm it had before */
  DMUON_RESCALE_RMS = 2             /* a root mean square of `rms`, and no shape scale */
} dmuon_rescale_t;
typedef enum dmuon_variant {
  DMUON_VARIANT_MUON = 1,
  DMUON_VARIANT_NORMUON = 2,        /* arXiv 2510.05491 */
  DMUON_VARIANT_ADAMUON = 3,        /* arXiv 2507.11005 */
  DMUON_VARIANT_MUON2 = 4,          /* arXiv 2604.09967 */
  DMUON_VARIANT_MUON2_FACTORED = 5,
  DMUON_VARIANT_MONA = 6,           /* arXiv 2605.26842 */
  DMUON_VARIANT_DION2 = 7,          /* arXiv 2512.16928 */
  DMUON_VARIANT_NUMUON = 8          /* arXiv 2603.03597; runs no Newton-Schulz */
} dmuon_variant_t;
typedef enum dmuon_rank_schedule {
  DMUON_RANK_DEFAULT = 0,           /* DMUON_RANK_COSINE */
  DMUON_RANK_COSINE = 1,
  DMUON_RANK_LINEAR = 2
} dmuon_rank_schedule_t;
typedef enum dmuon_precision {
  DMUON_PRECISION_FP32 = 1,
  DMUON_PRECISION_BF16 = 2,
  DMUON_PRECISION_AUTO = 3          /* for each shape the fastest as measured, if it is accurate */
} dmuon_precision_t;
/* Whether nodes measure their kernels before they plan, to choose how each matrix is computed and to balance
 * the owners. The plan keeps the choice, but two runs may choose, and so round, differently. */
typedef enum dmuon_autotune {
  DMUON_AUTOTUNE_DEFAULT = 0,       /* $DMUON_AUTOTUNE (off, cached, on), else cached */
  DMUON_AUTOTUNE_OFF = 1,           /* by operation counts: the same plan on every machine */
  DMUON_AUTOTUNE_CACHED = 2,        /* measured once on each kind of machine */
  DMUON_AUTOTUNE_ON = 3             /* measured anew */
} dmuon_autotune_t;
/* Whether each node of a job keeps a copy of its state in another node's memory, so that a node that is lost costs a
 * pause. Needs workers on two nodes at least. */
typedef enum dmuon_replication {
  DMUON_REPLICATION_NONE = 1,       /* what is not in a checkpoint is lost with its node */
  DMUON_REPLICATION_ASYNC = 2,      /* copies travel until the next step: DMUON_ROLLED_BACK may undo one */
  DMUON_REPLICATION_SYNC = 3        /* a step is over when its copies have arrived: none is ever undone */
} dmuon_replication_t;
typedef enum dmuon_weight_decay {
  DMUON_DECAY_DECOUPLED = 1,
  DMUON_DECAY_CAUTIOUS = 2          /* only where weight and update have one sign; arXiv 2510.12402 */
} dmuon_weight_decay_t;
typedef enum dmuon_view {
  DMUON_VIEW_MATRIX = 0,            /* 2 dimensions; more are refused */
  DMUON_VIEW_FLATTEN = 1,           /* one matrix: the first dimension's rows, all else in a row (convolutions) */
  DMUON_VIEW_EXPERTS = 2            /* a stack: the last two dimensions are a matrix, the others count them */
} dmuon_view_t;
typedef enum dmuon_missing {
  DMUON_MISSING_ERROR = 1,
  DMUON_MISSING_SKIP = 2,
  DMUON_MISSING_ZERO = 3
} dmuon_missing_t;

typedef struct dmuon_client dmuon_client;

/* Behaviour first, then performance. */
typedef struct dmuon_config {
  size_t struct_size;
  const char* address;          /* unix:/path; NULL: DMUON_ADDRESS, else the default socket */
  const char* job_id;           /* required; a restarted trainer repeats it to get its state */
  uint32_t rank;                /* 0..world_size-1 */
  uint32_t world_size;          /* at least 1 */
  double max_grad_norm;         /* global clipping; 0: off */
  dmuon_missing_t missing_gradient;
  int32_t connect_timeout_ms;   /* how long dmuon_open tries; longer rides out a daemon's restart */
  int32_t call_timeout_ms;      /* of one control call, and how long a lost connection is retried.
                                   Above the daemon's step timeout, whose error names the culprit */
  dmuon_autotune_t autotune;    /* equal on all workers */
  /* Checkpoints that the service makes by itself, named step-000000000123; equal on all workers. */
  uint32_t checkpoint_every_steps;    /* 0: never by steps */
  double checkpoint_every_seconds;    /* after the first step that ends so long after the last one, at most 2^31;
                                         0: never by time */
  uint32_t checkpoint_keep;           /* how many of them stay, 1..1000; those that dmuon_save made always do */
  dmuon_replication_t replication;    /* equal on all workers */
} dmuon_config;
#define DMUON_CONFIG_INIT                                                                                       \
  {                                                                                                             \
    sizeof(dmuon_config), NULL, NULL, 0, 1, 0.0, DMUON_MISSING_ERROR, 10000, 120000, DMUON_AUTOTUNE_DEFAULT, 0, \
        0.0, 3, DMUON_REPLICATION_NONE                                                                          \
  }

/* A group of tensors with one optimizer. Fields of the other algorithm are ignored, but weight_decay. For a
 * variant of Muon, a field that is left as DMUON_GROUP_INIT has it is the variant's own; one that means
 * nothing to the variant is refused by dmuon_register. */
typedef struct dmuon_group {
  size_t struct_size;
  const char* name;             /* unique in the job */
  dmuon_algorithm_t algorithm;
  dmuon_momentum_t momentum_form;
  int32_t nesterov;             /* 0 or 1; -1: the variant's own */
  dmuon_coefficients_t coefficients;
  int32_t iterations;           /* Newton-Schulz steps, 1..20; 0: the variant's own */
  dmuon_eps_mode_t eps_mode;
  double newton_schulz_eps;
  dmuon_scale_t scale;
  double adamw_eps;
  dmuon_variant_t variant;
  dmuon_weight_decay_t weight_decay;
  double second_moment_eps;     /* added to the root of a second moment; > 0 */
  int32_t sign;                 /* 0 or 1: orthogonalise the sign of the momentum */
  double selected;              /* share of lines that Dion2 moves, in (0, 1] */
  double slow_beta;             /* of MONA's slow mean, in (0, 1) */
  double acceleration;          /* of MONA; 0: -1 / (2 * (1 - slow_beta)) */
  dmuon_rescale_t rescale;
  double rms;                   /* of DMUON_RESCALE_RMS; > 0 */
  dmuon_precision_t precision;  /* of Newton-Schulz */
  const double* polynomials;    /* instead of `coefficients`: a, b, c of s -> a s + b s^3 + c s^5 for each
                                   iteration; the last repeats. Copied. NULL: the set */
  size_t polynomial_count;      /* triples, 1..20; 0: the set */
  double rank_start;            /* share of singular directions that NuMuon moves, in (0, 1] */
  double rank_end;              /* the share at the end of its schedule */
  int64_t rank_steps;           /* updates of the schedule: from a tenth to eight tenths of them the share
                                   changes; 0: rank_start for ever */
  dmuon_rank_schedule_t rank_schedule;
} dmuon_group;
#define DMUON_GROUP_INIT                                                                          \
  {                                                                                               \
    sizeof(dmuon_group), NULL, DMUON_MUON, DMUON_MOMENTUM_DEFAULT, -1, DMUON_COEFFICIENTS_DEFAULT, 0, \
        DMUON_EPS_DEFAULT, -1.0, DMUON_SCALE_DEFAULT, 1e-8, DMUON_VARIANT_MUON, DMUON_DECAY_DECOUPLED, \
        -1.0, -1, -1.0, -1.0, 0.0, DMUON_RESCALE_DEFAULT, -1.0, DMUON_PRECISION_FP32, NULL, 0, -1.0, -1.0, 0, \
        DMUON_RANK_DEFAULT                                                                        \
  }

/* A piece of a tensor; `ndim` entries of each array count. */
typedef struct dmuon_box {
  int64_t offset[DMUON_MAX_DIMS];
  int64_t length[DMUON_MAX_DIMS];
} dmuon_box;

/* A named parameter and what this worker holds of it. */
typedef struct dmuon_tensor {
  size_t struct_size;
  const char* name;
  int32_t ndim;
  int64_t shape[DMUON_MAX_DIMS];  /* global, rows (fan-out) first */
  dmuon_dtype_t param_dtype;
  dmuon_dtype_t grad_dtype;
  uint32_t group;                 /* index returned by dmuon_add_group */
  dmuon_box grad_box;             /* what this worker submits */
  dmuon_box param_box;            /* what it wants back */
  int32_t reduced;                /* 1: gradients are already reduced over the workers */
  const int64_t* row_blocks;      /* fused matrices: rows of each block, a matrix of its own; NULL: one block */
  size_t row_block_count;         /* at most 4096 */
  dmuon_view_t view;              /* how a tensor of DMUON_MUON is seen as matrices */
  int64_t row_repeats;            /* how often the blocks follow each other down the rows. 1: each lies in one
                                     piece; more: interleaved, and block j is one matrix of all its rows */
} dmuon_tensor;
#define DMUON_TENSOR_INIT                                                                    \
  {                                                                                          \
    sizeof(dmuon_tensor), NULL, 0, {0}, DMUON_FLOAT32, DMUON_FLOAT32, 0, {{0}, {0}},         \
        {{0}, {0}}, 1, NULL, 0, DMUON_VIEW_MATRIX, 1                                         \
  }

/* Hyper-parameters of one group for one step. */
typedef struct dmuon_hyper {
  double lr;
  double weight_decay;
  double momentum;  /* mu of Muon, beta1 of AdamW */
  double beta2;     /* of second moments */
} dmuon_hyper;

/* What the plan says to a worker. */
typedef struct dmuon_plan_info {
  size_t struct_size;
  uint64_t generation;
  uint64_t matrix_units;       /* matrices orthogonalised each step on this node */
  uint64_t elementwise_units;
  uint64_t arena_bytes;
  uint32_t nodes;              /* of the job */
  uint32_t first_rank;         /* lowest rank among the workers of this node */
} dmuon_plan_info;
#define DMUON_PLAN_INFO_INIT { sizeof(dmuon_plan_info), 0, 0, 0, 0, 0, 0 }

/* What became of a step. */
typedef struct dmuon_step_result {
  size_t struct_size;
  uint64_t step;
  int32_t skipped;              /* 1: a gradient was not finite; nothing changed anywhere */
  int32_t replayed;             /* 1: it had been applied before */
  double grad_norm;             /* before clipping; NaN when skipped */
  double clip;                  /* factor applied; 1 when off */
  uint64_t newton_schulz_calls; /* of the job, since its start, on this node */
  double service_seconds;       /* last worker's arrival to the daemon's answer */
} dmuon_step_result;
#define DMUON_STEP_RESULT_INIT { sizeof(dmuon_step_result), 0, 0, 0, 0.0, 0.0, 0, 0.0 }

/* "0.1.0"; static. */
DMUON_API const char* dmuon_version(void);
/* DMUON_ABI_VERSION of the library. */
DMUON_API int32_t dmuon_abi_version(void);
/* "DMUON_COVERAGE"; static. Any value is allowed. */
DMUON_API const char* dmuon_status_name(int32_t status);
/* Message of the last failed call on this thread; valid until its next call into the library. */
DMUON_API const char* dmuon_last_error(void);

/* Connects and makes a session. *client is set only on DMUON_OK. DMUON_UNAVAILABLE names the
 * address; DMUON_RANK_TAKEN comes after a second, in case the rank's last worker has just died. */
DMUON_API dmuon_status_t dmuon_open(const dmuon_config* config, dmuon_client** client);

/* Local; both may be called only before dmuon_register. *index gets 0, 1, 2 ... */
DMUON_API dmuon_status_t dmuon_add_group(dmuon_client* client, const dmuon_group* group,
                                         uint32_t* index);
DMUON_API dmuon_status_t dmuon_add_tensor(dmuon_client* client, const dmuon_tensor* tensor,
                                          uint32_t* index);

/* Sends specification and shards and waits for the plan, which needs every rank of the job. Then
 * maps the arena. Errors that this worker alone can know of come at once, and groups and tensors
 * are fixed from the first call on that has none of them. May be called again after
 * DMUON_STALE_GENERATION; dmuon_begin comes after it then too. `info` may be NULL. */
DMUON_API dmuon_status_t dmuon_register(dmuon_client* client, int32_t timeout_ms,
                                        dmuon_plan_info* info);

/* This worker's piece of a tensor in the arena, row-major in its dtype; 0 bytes (and an address
 * that is not NULL) for an empty box. The gradient buffer is the worker's until dmuon_submit, and
 * again after dmuon_wait. The parameter buffer is the worker's to read after dmuon_begin and after
 * each dmuon_wait. */
DMUON_API dmuon_status_t dmuon_grad_buffer(dmuon_client* client, uint32_t tensor, void** data,
                                           size_t* bytes);
DMUON_API dmuon_status_t dmuon_param_buffer(dmuon_client* client, uint32_t tensor, void** data,
                                            size_t* bytes);

/* The initial parameters are in the parameter buffers. Waits for all ranks of a new job.
 * *last_step: the last applied step, 0 for a new job; *resumed: 1 when the buffers now hold the
 * service's parameters, which the caller must copy into its model. A client that has taken steps
 * counts on their state: DMUON_STATE_LOST when it is gone. */
DMUON_API dmuon_status_t dmuon_begin(dmuon_client* client, int32_t timeout_ms, uint64_t* last_step,
                                     int32_t* resumed);

/* Marks the gradients of `count` tensors as complete for `step`, or as missing in it: all of them
 * or, after an error, none. No RPC. Any thread; not two at once for one tensor. DMUON_NOT_READY
 * while a step is in flight. Tensors of an empty box need no mark. */
DMUON_API dmuon_status_t dmuon_submit(dmuon_client* client, const uint32_t* tensors, size_t count,
                                      uint64_t step);
DMUON_API dmuon_status_t dmuon_submit_missing(dmuon_client* client, const uint32_t* tensors,
                                              size_t count, uint64_t step);

/* Gradients of `step` will be submitted one by one while others are still being computed: the service sums
 * and sends those that all workers of a node have submitted, before dmuon_step. Once a step, before its
 * first dmuon_submit; without it, or on another worker only, all is the same but slower. A gradient that
 * is submitted again for the same step is taken; what was done with the former one was in vain. Any
 * thread. DMUON_NOT_READY while a step is in flight, and before dmuon_begin. */
DMUON_API dmuon_status_t dmuon_expect_gradients(dmuon_client* client, uint64_t step);

/* With the next dmuon_step, after its update: rows first_row + i * rows_each and on, rows_each of them, of the whole
 * `tensor` are multiplied by factors[i], in (0, 1]. For QK-clip (arXiv 2507.20534): factors of the heads whose logits
 * were too large. Any number of calls; dmuon_step forgets them, also when it fails. Equal on all workers, as
 * hyper-parameters are. A skipped step, and a tensor that the step skips, are left alone. */
DMUON_API dmuon_status_t dmuon_multiply_rows(dmuon_client* client, uint32_t tensor, int64_t first_row,
                                             int64_t rows_each, const double* factors, size_t count);

/* Starts the step and returns at once. `hypers`: one a group, in group order. Every gradient has
 * been marked before. DMUON_NOT_READY while an earlier step has not been waited for. */
DMUON_API dmuon_status_t dmuon_step(dmuon_client* client, uint64_t step, const dmuon_hyper* hypers,
                                    size_t count);

/* Waits until the parameter buffers carry `step`. `result` may be NULL. Repeating it for the step
 * answered last gives the same answer. May be called from another thread than dmuon_submit.
 *
 * A lost connection is mended inside, for call_timeout_ms: a new session, the same gradients
 * again. A step that had been applied is only delivered (`replayed`); DMUON_STATE_LOST when the
 * daemon has neither this step nor the one before. DMUON_DEADLINE_EXCEEDED, from this timeout or
 * from the daemon's, and DMUON_PEER_LOST leave the step wanted: call again. After any other error the step is over;
 * it may be started again with dmuon_step. */
DMUON_API dmuon_status_t dmuon_wait(dmuon_client* client, uint64_t step, int32_t timeout_ms,
                                    dmuon_step_result* result);

/* Waits until the parameter buffers of `count` tensors carry the step that is in flight, or was
 * answered last, while others may still be on their way. dmuon_wait still comes after it, and says what
 * became of the step; errors are those of dmuon_wait. Any thread. */
DMUON_API dmuon_status_t dmuon_wait_params(dmuon_client* client, const uint32_t* tensors,
                                           size_t count, uint64_t step, int32_t timeout_ms);

/* Makes a checkpoint of the last applied step: what every worker needs to go on from there, on any number of workers
 * and nodes, in any sharding. All workers call it between the same two steps (one on each node at least). It returns
 * when the state has been copied, in memory; training may go on while it is written. `name`: 1..128 of [a-z0-9._-],
 * the first a letter or digit; a checkpoint of the same name is replaced, once the new one exists.
 *
 * Errors: DMUON_INVALID_ARGUMENT naming the character; DMUON_NOT_READY before dmuon_begin, and while a step is in
 * flight or unanswered; DMUON_CHECKPOINT when the daemon keeps none; DMUON_LIMIT when it lacks the memory for the copy.
 * A lost connection, timeouts and DMUON_STATE_LOST are as for dmuon_wait: after DMUON_DEADLINE_EXCEEDED and
 * DMUON_PEER_LOST call again with this name. */
DMUON_API dmuon_status_t dmuon_save(dmuon_client* client, const char* name, int32_t timeout_ms);

/* Waits until a checkpoint for which dmuon_save of this client was DMUON_OK exists on disk; one of the last 16, at any
 * later time between two steps. Each call asks the daemon anew, for call_timeout_ms at most: DMUON_DEADLINE_EXCEEDED
 * says that it does not exist yet, and nothing keeps running, so that training may go on. Less than 100 ms is 100 ms.
 *
 * DMUON_CHECKPOINT says why it was not written; what was of this name before is as it was. DMUON_NOT_READY for another
 * name, and as dmuon_save. */
DMUON_API dmuon_status_t dmuon_wait_saved(dmuon_client* client, const char* name, int32_t timeout_ms);

/* Puts a checkpoint of this job id in place of the job's state, and its parameters into the parameter buffers, which
 * the caller must copy into its model. All workers call it, as they call dmuon_step. It must exist: after a dmuon_save,
 * dmuon_wait_saved comes first. Tensors are found by name: number of workers, sharding and nodes may differ from when it
 * was saved. *last_step: the step that it is of, before
 * or after the job's; the next one is that + 1. Gradients that were submitted, the answer to the last step, and what
 * dmuon_multiply_rows was called with are forgotten, also when it fails.
 *
 * Errors: DMUON_INVALID_ARGUMENT naming the character; DMUON_NOT_READY before dmuon_begin, and while a step is in
 * flight; DMUON_CHECKPOINT when there is none of this name, when a part of it is missing or damaged, or when it does
 * not fit the job's tensors: nothing has changed. A lost connection is mended inside. After DMUON_DEADLINE_EXCEEDED and
 * DMUON_PEER_LOST call again with this name: some nodes may have restored it. After DMUON_STATE_LOST the way is
 * dmuon_register, dmuon_begin, dmuon_restore. */
DMUON_API dmuon_status_t dmuon_restore(dmuon_client* client, const char* name, int32_t timeout_ms,
                                       uint64_t* last_step);

/* Reads this node's part of the job's state: fp32 master weights and optimizer state as of the last applied step. *data
 * are *bytes bytes of a safetensors file, as dmuon_save writes one (daemon/checkpoint/README.md), and stay there, not to
 * be written to, until dmuon_release_state, the next dmuon_export_state, or dmuon_close; so long the daemon keeps the
 * memory. Any worker of a node may call, between two steps; all that call after the same step share one copy. The parts
 * of all nodes together are the whole state.
 *
 * Errors: DMUON_NOT_READY before dmuon_begin, and while a step is in flight or unanswered; DMUON_LIMIT when the daemon
 * lacks the memory for the copy. A lost connection, timeouts, DMUON_PEER_LOST and DMUON_STATE_LOST are as for dmuon_save. */
DMUON_API dmuon_status_t dmuon_export_state(dmuon_client* client, int32_t timeout_ms, const void** data, size_t* bytes);

/* What dmuon_export_state gave is not needed any more. Harmless when there is nothing. */
DMUON_API dmuon_status_t dmuon_release_state(dmuon_client* client);

/* Puts a state in place of the job's, and its parameters into the parameter buffers, exactly as dmuon_restore does with a
 * checkpoint: all workers call it, and tensors are found by name, whatever job, workers or nodes they come from.
 *
 * fd: a memfd (sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE) with the whole state in one safetensors file as
 * dmuon_export_state gives it; it is duplicated. -1 where another worker of the job
 * brings it: one is enough, and one a node spares the network. digest: SHA-256 of the file's head, its first 8 bytes included, in 64 lower-case hexadecimal digits; equal
 * on all workers. *last_step: the step that the head says.
 *
 * Errors: as dmuon_restore, and DMUON_INVALID_ARGUMENT for a digest or a descriptor that is not as said, or of more bytes
 * than the daemon's memory limit. DMUON_CHECKPOINT names the tensor that is missing, is not the job's, has another shape
 * or optimizer, or is not finite: nothing has changed. */
DMUON_API dmuon_status_t dmuon_import_state(dmuon_client* client, int32_t fd, const char* digest, int32_t timeout_ms,
                                            uint64_t* last_step);

/* Ends the session in order and frees the client; NULL is allowed. When the last worker of a job
 * has closed, the daemon drops the job's state. To leave the state for a successor, end the
 * process without closing. */
DMUON_API void dmuon_close(dmuon_client* client);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* DMUON_DMUON_H_ */
