# SPDX-License-Identifier: Apache-2.0
"""Files with the state of a partition.

The first line is JSON: `format`, `instance` (the last one applied, -1 before the first), and the
`sha256` of that number and of what follows, which is the state. A file is replaced as a whole, so a crash at any
moment leaves the old one or the new one.
"""

import hashlib
import json
import os
import re

from wirepaxos._library import Error

_FORMAT = 1
_NAME = re.compile(r"partition-(\d+)\.snapshot")


def partitions(directory):
    """Returns the partitions that have a snapshot."""
    names = os.listdir(directory) if directory.is_dir() else []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)


def load(directory, pid):
    """Returns the last instance and the state; None if there is no snapshot."""
    path = _path(directory, pid)
    try:
        head, _, state = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    except OSError as why:
        raise Error(f"{path}: {why.strerror}") from why
    try:
        known = json.loads(head)
        form, instance, digest = known["format"], int(known["instance"]), known["sha256"]
    except (ValueError, KeyError, TypeError) as why:
        raise Error(_damaged(path)) from why
    if form != _FORMAT:
        raise Error(f"{path} has format {form}, and this version reads {_FORMAT}: install a newer one")
    if _digest(instance, state) != digest:
        raise Error(_damaged(path))
    return instance, state


def store(directory, pid, instance, state):
    """Replaces the snapshot, and returns once it is on the disk."""
    path = _path(directory, pid)
    directory.mkdir(parents=True, exist_ok=True)
    known = {
        "format": _FORMAT,
        "instance": instance,
        "sha256": _digest(instance, state),
    }
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        file.write(json.dumps(known).encode() + b"\n" + state)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    listing = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(listing)
    finally:
        os.close(listing)


def _path(directory, pid):
    return directory / f"partition-{pid}.snapshot"


def _digest(instance, state):
    return hashlib.sha256(b"%d\n" % instance + state).hexdigest()


def _damaged(path):
    return (
        f"{path} is damaged: stop this replica and one that is up to date, replace this one's data "
        "directory by a copy of that one's, and start both"
    )
