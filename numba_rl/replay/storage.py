"""A replay on disk: one safetensors file, written and read a stretch of the ring at a time, so that no second copy is held.

Tensors: rows int32 [size, words] (numba_rl.kernels.replay_layout), priorities float32 [size], counters int64, shape int64 [3]
(capacity, state width, mode), order int64 (rank mode), since_sort int64 [1], and last sha256 uint8 [32] of all before it. The
file appears whole or not at all. Loading executes nothing.
"""

import hashlib
import json
import math
import struct
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from numba_rl.errors import CheckpointError, UserError
from numba_rl.files import atomic_file
from numba_rl.kernels import replay_layout as at

CHUNK = 65_536  # rows at a time
_TYPES = {"int32": "I32", "float32": "F32", "int64": "I64", "uint8": "U8"}
_NAMES = ("priorities", "counters", "shape", "order", "since_sort")


def stored_bytes(replay) -> int:
    """Size of the file that `save_replay` would write now, without its header."""
    return len(replay) * (4 * replay.backend.layout.words + 4)


def save_replay(replay, path: str | Path) -> None:
    """Write what a PrioritizedReplay holds. UserError where the file cannot be written; an older one is then intact."""
    backend = replay.backend
    size = backend.size
    small = backend.small_state()
    shapes = {"rows": ("int32", (size, backend.layout.words))} | {name: (str(small[name].dtype), small[name].shape) for name in _NAMES}
    shapes["sha256"] = ("uint8", (32,))
    header, place = {}, 0
    for name, (dtype, shape) in shapes.items():
        end = place + math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _TYPES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    try:
        with atomic_file(path) as stream:

            def write(array):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                digest.update(data)
                stream.write(data)

            stream.write(struct.pack("<Q", len(text)) + text)
            for low in range(0, size, CHUNK):
                write(backend.read_rows(low, min(low + CHUNK, size)))
            for name in _NAMES:
                write(small[name])
            stream.write(digest.digest())
    except OSError as error:
        raise UserError(f"{path}: the replay cannot be written ({error.strerror}); make room, or lower replay.checkpoint_limit_gb") from None


def load_replay(replay, path: str | Path) -> None:
    """Restore what `save_replay` wrote, in a PrioritizedReplay of the same capacity, width and mode. CheckpointError if it does not fit."""
    backend = replay.backend
    try:
        with safe_open(path, "np") as file:
            if set(file.keys()) != {"rows", "sha256", *_NAMES}:
                raise CheckpointError(f"{path}: not a replay saved by this version; remove it and resume with an empty one")
            small = {name: file.get_tensor(name) for name in _NAMES}
            rows = file.get_slice("rows")
            size, words = rows.get_shape()
            wanted = (backend.capacity, backend.state_width, backend.mode)
            if tuple(int(v) for v in small["shape"]) != wanted or words != backend.layout.words:
                raise CheckpointError(
                    f"{path}: holds a replay of capacity, state width and mode {tuple(small['shape'].tolist())}, this run's is {wanted}; "
                    "resume with the same replay settings"
                )
            if size != min(int(small["counters"][at.INSERTED]), backend.capacity) or small["priorities"].shape != (size,):
                raise CheckpointError(f"{path}: damaged; remove it and resume with an empty replay")
            digest = hashlib.sha256()
            for low in range(0, size, CHUNK):
                part = np.ascontiguousarray(rows[low : min(low + CHUNK, size)])
                digest.update(part.reshape(-1).view(np.uint8).data)
                backend.write_rows(low, part)
            for name in _NAMES:
                digest.update(np.ascontiguousarray(small[name]).reshape(-1).view(np.uint8).data)
            if digest.digest() != file.get_tensor("sha256").tobytes():
                raise CheckpointError(f"{path}: damaged (its checksum is not that of its contents); remove it and resume with an empty replay")
            backend.restore(small)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: no replay can be read from it ({' '.join(str(error).split())})") from None

