"""A replay's content as plain arrays, the same from device and host, for checkpoints and for moving from one to the other.

    states, next_states float32 [size, width]   actions, flags int32 [size]   rewards, discounts, priorities float32 [size]
    counters int64 [COUNTERS] (cursor, batches and samples drawn, rejects: see replay_layout)
    shape int64 [3]: capacity, state width, mode      order int64 [ranked]: slots by priority as last sorted (rank mode)
    since_sort int64 [1]: batches drawn since that sort, -1 if a sort is due

Row k is slot k. The sums are not stored: they are a function of the priorities.
"""

import numpy as np

from numba_rl.errors import CheckpointError
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.replay_layout import Layout


def pack_state(layout: Layout, rows, priorities, counters, mode, order, since_sort) -> dict[str, np.ndarray]:
    """rows: int32 [size, words] as in replay_layout. The result shares no memory with it."""
    width, padded = layout.state_width, layout.padded
    floats = rows.view(np.float32)
    return {
        "states": floats[:, :width].copy(),
        "next_states": floats[:, padded : padded + width].copy(),
        "actions": rows[:, 2 * padded].copy(),
        "rewards": floats[:, 2 * padded + 1].copy(),
        "discounts": floats[:, 2 * padded + 2].copy(),
        "flags": rows[:, 2 * padded + 3].copy(),
        "priorities": priorities.copy(),
        "counters": counters.copy(),
        "shape": np.array([layout.capacity, width, mode], np.int64),
        "order": order.copy(),
        "since_sort": np.array([since_sort], np.int64),
    }


def check_state(state, layout: Layout, mode):
    """(rows, priorities, counters, order, since_sort) of a state for this layout. Raises CheckpointError if it does not fit."""
    wanted = ("states", "next_states", "actions", "rewards", "discounts", "flags", "priorities", "counters", "shape", "order", "since_sort")
    missing = [name for name in wanted if name not in state]
    if missing:
        raise CheckpointError(f"replay state lacks {', '.join(missing)}; it was not saved by this version")
    capacity, width, stored_mode = (int(v) for v in state["shape"])
    if (capacity, width) != (layout.capacity, layout.state_width):
        raise CheckpointError(
            f"replay state holds {capacity} slots of width {width}, this replay has {layout.capacity} of {layout.state_width}; "
            "use the capacity and features that it was saved with"
        )
    counters = np.asarray(state["counters"], np.int64)
    size = min(int(counters[at.INSERTED]), capacity)
    padded = layout.padded
    rows = np.zeros((size, layout.words), np.int32)
    floats = rows.view(np.float32)
    places = {
        "states": (floats, slice(0, width)), "next_states": (floats, slice(padded, padded + width)), "actions": (rows, 2 * padded),
        "rewards": (floats, 2 * padded + 1), "discounts": (floats, 2 * padded + 2), "flags": (rows, 2 * padded + 3),
    }  # fmt: skip
    for name, (target, columns) in places.items():
        if state[name].shape != target[:, columns].shape:
            raise CheckpointError(f"replay state is damaged: {name} has shape {state[name].shape}, expected {target[:, columns].shape}")
        target[:, columns] = state[name]
    priorities = np.asarray(state["priorities"], np.float32)
    if priorities.shape != (size,) or not np.isfinite(priorities).all() or (priorities < 0).any():
        raise CheckpointError(f"replay state is damaged: priorities must be {size} finite numbers >= 0")
    order = np.asarray(state["order"], np.int64)
    if len(order) > size or ((order < 0) | (order >= max(size, 1))).any():
        raise CheckpointError("replay state is damaged: order names slots outside the filled ring")
    same_mode = stored_mode == mode
    return rows, priorities, counters, order if same_mode else order[:0], int(state["since_sort"][0]) if same_mode else -1
