# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""The C ABI of libdmuon for ctypes: constants, structs and prototypes of dmuon.h, nothing more.

Names are those of the header, so that the two can be compared line by line.
"""

import ctypes
import os
import pathlib
from ctypes import c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

DMUON_ABI_VERSION = 8
DMUON_MAX_DIMS = 8

# dmuon_status
DMUON_OK = 0
DMUON_INVALID_ARGUMENT = 1
DMUON_NOT_READY = 2
DMUON_UNAVAILABLE = 3
DMUON_DEADLINE_EXCEEDED = 4
DMUON_STALE_GENERATION = 5
DMUON_SPEC_MISMATCH = 6
DMUON_COVERAGE = 7
DMUON_STEP_OUT_OF_ORDER = 8
DMUON_MISSING_GRADIENT = 9
DMUON_RANK_TAKEN = 10
DMUON_LIMIT = 11
DMUON_DENIED = 12
DMUON_STATE_LOST = 13
DMUON_NUMERICAL = 14
DMUON_INTERNAL = 15
DMUON_REATTACHED = 16
DMUON_PEER_LOST = 17
DMUON_CHECKPOINT = 18
DMUON_ROLLED_BACK = 19

# dmuon_dtype
DMUON_FLOAT32 = 1
DMUON_BFLOAT16 = 2

# dmuon_algorithm
DMUON_MUON = 1
DMUON_ADAMW = 2

# dmuon_momentum
DMUON_MOMENTUM_DEFAULT = 0
DMUON_EMA = 1
DMUON_ACCUMULATE = 2

# dmuon_coefficients
DMUON_COEFFICIENTS_DEFAULT = 0
DMUON_JORDAN = 1
DMUON_YOU = 2
DMUON_POLAR_EXPRESS = 3

# dmuon_eps_mode
DMUON_EPS_DEFAULT = 0
DMUON_EPS_NONE = 1
DMUON_EPS_ADD = 2
DMUON_EPS_CLAMP = 3

# dmuon_scale
DMUON_SCALE_DEFAULT = 0
DMUON_SCALE_NONE = 1
DMUON_SCALE_ORIGINAL = 2
DMUON_SCALE_MATCH_RMS_ADAMW = 3
DMUON_SCALE_SPECTRAL = 4

# dmuon_rescale
DMUON_RESCALE_DEFAULT = 0
DMUON_RESCALE_KEEP_NORM = 1
DMUON_RESCALE_RMS = 2

# dmuon_variant
DMUON_VARIANT_MUON = 1
DMUON_VARIANT_NORMUON = 2
DMUON_VARIANT_ADAMUON = 3
DMUON_VARIANT_MUON2 = 4
DMUON_VARIANT_MUON2_FACTORED = 5
DMUON_VARIANT_MONA = 6
DMUON_VARIANT_DION2 = 7
DMUON_VARIANT_NUMUON = 8

# dmuon_rank_schedule
DMUON_RANK_DEFAULT = 0
DMUON_RANK_COSINE = 1
DMUON_RANK_LINEAR = 2

# dmuon_precision
DMUON_PRECISION_FP32 = 1
DMUON_PRECISION_BF16 = 2
DMUON_PRECISION_AUTO = 3

# dmuon_autotune
DMUON_AUTOTUNE_DEFAULT = 0
DMUON_AUTOTUNE_OFF = 1
DMUON_AUTOTUNE_CACHED = 2
DMUON_AUTOTUNE_ON = 3

# dmuon_replication
DMUON_REPLICATION_NONE = 1
DMUON_REPLICATION_ASYNC = 2
DMUON_REPLICATION_SYNC = 3

# dmuon_weight_decay
DMUON_DECAY_DECOUPLED = 1
DMUON_DECAY_CAUTIOUS = 2

# dmuon_view
DMUON_VIEW_MATRIX = 0
DMUON_VIEW_FLATTEN = 1
DMUON_VIEW_EXPERTS = 2

# dmuon_missing
DMUON_MISSING_ERROR = 1
DMUON_MISSING_SKIP = 2
DMUON_MISSING_ZERO = 3


class dmuon_config(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("address", c_char_p),
        ("job_id", c_char_p),
        ("rank", c_uint32),
        ("world_size", c_uint32),
        ("max_grad_norm", c_double),
        ("missing_gradient", c_int32),
        ("connect_timeout_ms", c_int32),
        ("call_timeout_ms", c_int32),
        ("autotune", c_int32),
        ("checkpoint_every_steps", c_uint32),
        ("checkpoint_every_seconds", c_double),
        ("checkpoint_keep", c_uint32),
        ("replication", c_int32),
    ]


class dmuon_group(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("algorithm", c_int32),
        ("momentum_form", c_int32),
        ("nesterov", c_int32),
        ("coefficients", c_int32),
        ("iterations", c_int32),
        ("eps_mode", c_int32),
        ("newton_schulz_eps", c_double),
        ("scale", c_int32),
        ("adamw_eps", c_double),
        ("variant", c_int32),
        ("weight_decay", c_int32),
        ("second_moment_eps", c_double),
        ("sign", c_int32),
        ("selected", c_double),
        ("slow_beta", c_double),
        ("acceleration", c_double),
        ("rescale", c_int32),
        ("rms", c_double),
        ("precision", c_int32),
        ("polynomials", ctypes.POINTER(c_double)),
        ("polynomial_count", c_size_t),
        ("rank_start", c_double),
        ("rank_end", c_double),
        ("rank_steps", c_int64),
        ("rank_schedule", c_int32),
    ]


# Beside struct_size, name and polynomials.
DMUON_GROUP_INIT = {
    "algorithm": DMUON_MUON, "momentum_form": DMUON_MOMENTUM_DEFAULT, "nesterov": -1,
    "coefficients": DMUON_COEFFICIENTS_DEFAULT, "iterations": 0, "eps_mode": DMUON_EPS_DEFAULT,
    "newton_schulz_eps": -1.0, "scale": DMUON_SCALE_DEFAULT, "adamw_eps": 1e-8, "variant": DMUON_VARIANT_MUON,
    "weight_decay": DMUON_DECAY_DECOUPLED, "second_moment_eps": -1.0, "sign": -1, "selected": -1.0,
    "slow_beta": -1.0, "acceleration": 0.0, "rescale": DMUON_RESCALE_DEFAULT, "rms": -1.0,
    "precision": DMUON_PRECISION_FP32, "rank_start": -1.0, "rank_end": -1.0, "rank_steps": 0,
    "rank_schedule": DMUON_RANK_DEFAULT}


class dmuon_box(ctypes.Structure):
    _fields_ = [
        ("offset", c_int64 * DMUON_MAX_DIMS),
        ("length", c_int64 * DMUON_MAX_DIMS),
    ]


class dmuon_tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("ndim", c_int32),
        ("shape", c_int64 * DMUON_MAX_DIMS),
        ("param_dtype", c_int32),
        ("grad_dtype", c_int32),
        ("group", c_uint32),
        ("grad_box", dmuon_box),
        ("param_box", dmuon_box),
        ("reduced", c_int32),
        ("row_blocks", ctypes.POINTER(c_int64)),
        ("row_block_count", c_size_t),
        ("view", c_int32),
        ("row_repeats", c_int64),
    ]


class dmuon_hyper(ctypes.Structure):
    _fields_ = [
        ("lr", c_double),
        ("weight_decay", c_double),
        ("momentum", c_double),
        ("beta2", c_double),
    ]


class dmuon_plan_info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("generation", c_uint64),
        ("matrix_units", c_uint64),
        ("elementwise_units", c_uint64),
        ("arena_bytes", c_uint64),
        ("nodes", c_uint32),
        ("first_rank", c_uint32),
    ]


class dmuon_step_result(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_uint64),
        ("skipped", c_int32),
        ("replayed", c_int32),
        ("grad_norm", c_double),
        ("clip", c_double),
        ("newton_schulz_calls", c_uint64),
        ("service_seconds", c_double),
    ]


_POINTER = ctypes.POINTER
# name -> (result, arguments). A dmuon_client* is a void*.
PROTOTYPES = {
    "dmuon_version": (c_char_p, []),
    "dmuon_abi_version": (c_int32, []),
    "dmuon_status_name": (c_char_p, [c_int32]),
    "dmuon_last_error": (c_char_p, []),
    "dmuon_open": (c_int32, [_POINTER(dmuon_config), _POINTER(c_void_p)]),
    "dmuon_add_group": (c_int32, [c_void_p, _POINTER(dmuon_group), _POINTER(c_uint32)]),
    "dmuon_add_tensor": (c_int32, [c_void_p, _POINTER(dmuon_tensor), _POINTER(c_uint32)]),
    "dmuon_register": (c_int32, [c_void_p, c_int32, _POINTER(dmuon_plan_info)]),
    "dmuon_grad_buffer": (c_int32, [c_void_p, c_uint32, _POINTER(c_void_p), _POINTER(c_size_t)]),
    "dmuon_param_buffer": (c_int32, [c_void_p, c_uint32, _POINTER(c_void_p), _POINTER(c_size_t)]),
    "dmuon_begin": (c_int32, [c_void_p, c_int32, _POINTER(c_uint64), _POINTER(c_int32)]),
    "dmuon_submit": (c_int32, [c_void_p, _POINTER(c_uint32), c_size_t, c_uint64]),
    "dmuon_submit_missing": (c_int32, [c_void_p, _POINTER(c_uint32), c_size_t, c_uint64]),
    "dmuon_expect_gradients": (c_int32, [c_void_p, c_uint64]),
    "dmuon_multiply_rows": (c_int32, [c_void_p, c_uint32, c_int64, c_int64, _POINTER(c_double), c_size_t]),
    "dmuon_step": (c_int32, [c_void_p, c_uint64, _POINTER(dmuon_hyper), c_size_t]),
    "dmuon_wait": (c_int32, [c_void_p, c_uint64, c_int32, _POINTER(dmuon_step_result)]),
    "dmuon_wait_params": (c_int32, [c_void_p, _POINTER(c_uint32), c_size_t, c_uint64, c_int32]),
    "dmuon_save": (c_int32, [c_void_p, c_char_p, c_int32]),
    "dmuon_wait_saved": (c_int32, [c_void_p, c_char_p, c_int32]),
    "dmuon_restore": (c_int32, [c_void_p, c_char_p, c_int32, _POINTER(c_uint64)]),
    "dmuon_export_state": (c_int32, [c_void_p, c_int32, _POINTER(c_void_p), _POINTER(c_size_t)]),
    "dmuon_release_state": (c_int32, [c_void_p]),
    "dmuon_import_state": (c_int32, [c_void_p, c_int32, c_char_p, c_int32, _POINTER(c_uint64)]),
    "dmuon_close": (None, [c_void_p]),
}


def find_library() -> pathlib.Path:
    """DMUON_LIBRARY, else beside this package, else build/release/lib of a folder above it."""
    if chosen := os.environ.get("DMUON_LIBRARY"):
        return pathlib.Path(chosen)
    here = pathlib.Path(__file__).resolve().parent
    places = [here / "libdmuon.so"]
    places += [above / "build" / "release" / "lib" / "libdmuon.so" for above in here.parents]
    for place in places:
        if place.exists():
            return place
    raise FileNotFoundError(
        f"libdmuon.so is not in {here}, nor in build/release/lib of a folder above it; "
        "build it, or set DMUON_LIBRARY to its path"
    )


def load() -> ctypes.CDLL:
    """Loads libdmuon and types its functions.

    RTLD_DEEPBIND makes the library prefer its own gRPC and protobuf to those that torch or grpcio
    have brought into the process, whichever was imported first.
    """
    path = find_library()
    library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW | os.RTLD_DEEPBIND)
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    version = library.dmuon_abi_version()
    if version != DMUON_ABI_VERSION:
        raise ImportError(f"{path} has ABI version {version}; this package needs {DMUON_ABI_VERSION}")
    return library
