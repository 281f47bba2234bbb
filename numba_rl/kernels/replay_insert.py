"""Puts transitions into the ring from device arrays: two launches, one for the rows and one for the sums.

Shapes: states, next_states [n, width], actions, rewards, discounts, flags [n], all i32 (bits of float32 where that is meant);
errors f32 [n] or absent; the ring as in replay_layout. Item k of the launch goes to slot (inserted + k) mod capacity; of more
items than the ring holds only the last `capacity` are written, so no slot has two writers.
First priorities: from |td error| where errors are given, else the largest stored before the call; 1 in an empty ring. An error
that is NaN or infinite takes the largest and is counted.
Launch: a warp a row, then a block for each top that the new rows touch; the last block to finish moves the cursor, which is
a counter in device memory, so that captured graphs go on around the ring. Cost: the rows are read and written once.
"""

import math
from dataclasses import astuple
from functools import lru_cache

from numba import float64

from numba_rl import gpu
from numba_rl.gpu import cuda, float32, int32, int64
from numba_rl.kernel_cache import cached
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.replay_layout import Layout
from numba_rl.kernels.replay_rules import priority_of
from numba_rl.kernels.replay_sample import RingViews
from numba_rl.kernels.replay_sums import resum_top
from numba_rl.kernels.settled import specialised

resum = None  # a device function, bound anew for each layout
_HELD = 4  # words of each state that a lane has under way at once
# Warps take several rows each beyond this many blocks; no launch ever needs more threads than 32 bits count.
_MAX_BLOCKS = 4 if gpu.SIMULATED else 4096


@lru_cache
def rows_kernel(layout: Layout, warps: int):
    """The kernel that writes rows and their first priorities."""
    lanes, width, padded, capacity = layout.lanes, layout.state_width, layout.padded, layout.capacity
    tops_a_lane = layout.padded_tops // lanes
    rounds = -(-width // lanes)
    held_rounds = min(_HELD, rounds)

    def insert_rows(states, next_states, actions, rewards, discounts, flags, errors, has_errors, skip, count, words, leaves,
                    top_peaks, counters, settings):  # fmt: skip
        scratch = cuda.shared.array(lanes, float64)
        lane = int32(cuda.threadIdx.x % lanes)
        warp = int64(cuda.blockIdx.x) * warps + cuda.threadIdx.x // lanes
        total_warps = int64(cuda.gridDim.x) * warps
        first = (counters[at.INSERTED] + skip) % int64(capacity)
        peak = float32(0)
        for k in range(tops_a_lane):
            peak = max(peak, top_peaks[lane * tops_a_lane + k])
        peak = float32(gpu.warp_max(peak, scratch))
        if not peak > float32(0):
            peak = min(float32(1), float32(settings[at.CAP]))
        here = cuda.local.array(held_rounds, int32)
        there = cuda.local.array(held_rounds, int32)
        for k in range(warp, count, total_warps):
            item = skip + k
            slot = first + k
            if slot >= int64(capacity):
                slot -= int64(capacity)
            for start in range(0, rounds, held_rounds):
                for j in range(held_rounds):
                    word = lane + (start + j) * lanes
                    if word < width:
                        here[j] = states[item, word]
                        there[j] = next_states[item, word]
                for j in range(held_rounds):
                    word = lane + (start + j) * lanes
                    if word < width:
                        words[slot, word] = here[j]
                        words[slot, padded + word] = there[j]
            if lane == int32(0):
                words[slot, 2 * padded] = actions[item]
                words[slot, 2 * padded + 1] = rewards[item]
                words[slot, 2 * padded + 2] = discounts[item]
                words[slot, 2 * padded + 3] = flags[item]
                priority = peak
                if has_errors:
                    error = float32(errors[item])
                    if math.isnan(error) or math.isinf(error):
                        cuda.atomic.add(counters, at.NAN if math.isnan(error) else at.INFINITE, int64(1))
                        counters[at.LAST_BAD] = counters[at.BATCHES]
                    else:
                        priority = float32(
                            priority_of(error, float32(settings[at.ALPHA]), float32(settings[at.EPS]), float32(settings[at.CAP]))
                        )
                leaves[slot] = priority

    return cached(gpu.jit(insert_rows))


@lru_cache
def range_kernel(layout: Layout, warps: int):
    """The kernel that recomputes the sums over a stretch of the ring, from the cursor on."""
    lanes, leaf_fan, node_fan, top_leaves = layout.lanes, layout.leaf_fan, layout.node_fan, layout.top_leaves
    capacity, all_tops = layout.capacity, layout.tops
    threads = warps * lanes
    node_rounds = -(-node_fan // threads)

    def resum_range(skip, count, leaves, sums, peaks, tops, top_peaks, counters, arrivals, advance):
        scratch = cuda.shared.array(lanes, float64)
        node_sums = cuda.shared.array(node_fan, float64)
        node_peaks = cuda.shared.array(node_fan, float32)
        listed = cuda.shared.array(node_fan, int32)
        listed_count = cuda.shared.array(1, int32)
        thread = int32(cuda.threadIdx.x)
        lane = int32(thread % lanes)
        warp = int32(thread // lanes)
        first = (counters[at.INSERTED] + skip) % int64(capacity)
        top = (first // int64(top_leaves) + cuda.blockIdx.x) % int64(all_tops)
        if thread == int32(0):
            listed_count[0] = int32(0)
        cuda.syncthreads()
        for j in range(node_rounds):
            k = thread + j * threads
            if k < node_fan:
                node_sums[k] = sums[top * node_fan + k]
                node_peaks[k] = peaks[top * node_fan + k]
                low = top * int64(top_leaves) + k * int64(leaf_fan)
                high = low + int64(leaf_fan)
                # the stretch [first, first + count) may run past the end of the ring and on from slot 0
                if (low < first + count and high > first) or low < first + count - int64(capacity):
                    listed[cuda.atomic.add(listed_count, 0, int32(1))] = int32(k)
        cuda.syncthreads()
        if listed_count[0] > int32(0):
            resum(top, listed, listed_count[0], node_sums, node_peaks, leaves, sums, peaks, tops, top_peaks, warp, lane, scratch)
        if thread == int32(0) and cuda.atomic.add(arrivals, 0, int32(1)) == int32(cuda.gridDim.x - 1):
            arrivals[0] = int32(0)
            counters[at.INSERTED] += advance

    return cached(gpu.jit(specialised(resum_range, {"resum": resum_top(layout, warps)}, astuple(layout), warps)))


def launch_resum(layout: Layout, ring: RingViews, skip: int, count: int, advance: int, stream, warps: int):
    """Recomputes all sums over the `count` slots from cursor + skip on, then moves the cursor by `advance` items."""
    blocks = min(layout.tops, count // layout.top_leaves + 3)
    range_kernel(layout, warps)[blocks, warps * layout.lanes, stream](
        skip, count, ring.leaves, ring.sums, ring.peaks, ring.tops, ring.top_peaks, ring.counters, ring.arrivals, advance
    )  # fmt: skip


def launch_insert(layout: Layout, ring: RingViews, transitions, errors, count: int, stream, warps: int):
    """Inserts the first `count` of `transitions`, six arrays as in the module's Shapes; errors f32 [n] or None. 0 items: warm-up."""
    skip = max(count - layout.capacity, 0)
    written = count - skip
    blocks = min(gpu.blocks_for(max(written, 1), warps), _MAX_BLOCKS)
    rows_kernel(layout, warps)[blocks, warps * layout.lanes, stream](
        *transitions, errors if errors is not None else ring.leaves, errors is not None, skip, written,
        ring.words, ring.leaves, ring.top_peaks, ring.counters, ring.settings,
    )  # fmt: skip
    launch_resum(layout, ring, skip, written, count, stream, warps)
