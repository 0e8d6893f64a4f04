# SPDX-License-Identifier: Apache-2.0
"""The C library (wirepaxos.h), as ctypes sees it."""

import ctypes
import os
import pathlib
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_uint16, c_uint64, c_void_p

# Where a wheel carries the library, and what it is called where it is installed.
BUNDLED = pathlib.Path(__file__).with_name("libwirepaxos.so.1")
SONAME = "libwirepaxos.so.1"
REFUSED, UNKNOWN = 1, 2


class Error(Exception):
    """A call failed; the text says why, and what to do."""


class NotFound(Error):
    """The C library isn't installed."""


class Refused(Error):
    """The commands take effect nowhere, now and later: they may be submitted again."""


class Unknown(Error):
    """Each command may have taken effect, or may yet. Look before you submit it again."""


class Context(Structure):
    """``struct paxos_ctx``."""


_deliver = CFUNCTYPE(None, c_void_p, c_uint64, c_void_p, c_int)
CHECKPOINT = CFUNCTYPE(c_int, c_void_p, c_uint16)
DELIVER_IN = CFUNCTYPE(None, c_void_p, c_uint16, c_uint64, c_void_p, c_int)
READ = CFUNCTYPE(None, c_void_p, c_uint16, c_void_p, c_int, c_void_p)
ENDED = CFUNCTYPE(None, c_void_p, c_char_p)

# The order is that of wirepaxos.h. What has no type here is never set.
Context._fields_ = [
    ("deliver", _deliver),
    ("checkpoint", CHECKPOINT),
    ("deliver_in", DELIVER_IN),
    ("prepare", c_void_p),
    ("combine", c_void_p),
    ("apply", c_void_p),
    ("read", READ),
    ("ended", ENDED),
    ("arg", c_void_p),
    ("private_", c_void_p),
]

_context = POINTER(Context)
_SIGNATURES = {
    "paxos_ctx_new": (_context, [c_char_p, c_char_p]),
    "paxos_ctx_start": (c_int, [_context]),
    "submit_to": (c_int, [_context, POINTER(c_uint16), c_int, c_char_p, c_int]),
    "submit_by_key": (c_int, [_context, c_char_p, c_int, c_char_p, c_int]),
    "paxos_append": (None, [c_void_p, c_char_p, c_int]),
    "paxos_ctx_flush": (c_int, [_context, c_int]),
    "paxos_read": (
        c_int,
        [_context, c_uint16, c_char_p, c_int, c_int, c_int, POINTER(c_void_p)],
    ),
    "paxos_ctx_error": (c_char_p, [_context]),
    "paxos_ctx_outcome": (c_int, [_context]),
    "paxos_ctx_free": (c_int, [_context]),
    "paxos_nodes_new": (c_void_p, [c_char_p]),
    "paxos_nodes_write_file": (c_int, [c_void_p, c_int]),
    "paxos_nodes_start": (c_int, [c_void_p]),
    "paxos_nodes_error": (c_char_p, [c_void_p]),
    "paxos_nodes_free": (c_int, [c_void_p]),
}

_loaded = None


def library():
    """Returns the C library: that of ``WIREPAXOS_LIBRARY``, the wheel's own, or the installed one."""
    global _loaded
    if _loaded is None:
        named = os.environ.get("WIREPAXOS_LIBRARY")
        _loaded = _load(named or (str(BUNDLED) if BUNDLED.exists() else SONAME))
    return _loaded


def _load(path):
    try:
        found = ctypes.CDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as why:
        raise NotFound(
            f"the C library of WirePaxos can't be loaded ({why}): install the package "
            "libwirepaxos1, or name the file by WIREPAXOS_LIBRARY"
        ) from why
    return found


def new_context(cluster_file, node_name=None):
    """Returns a context that isn't started yet."""
    name = None if node_name is None else os.fsencode(node_name)
    context = library().paxos_ctx_new(os.fsencode(cluster_file), name)
    if not context:
        raise Error("the names of the cluster file and the node must be text without NUL")
    return context


def failure(context):
    """Returns the exception for what the last call has said."""
    text = library().paxos_ctx_error(context).decode(errors="replace")
    outcome = library().paxos_ctx_outcome(context)
    return {REFUSED: Refused, UNKNOWN: Unknown}.get(outcome, Error)(text)
