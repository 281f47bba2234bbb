"""Draws a batch from the replay and gathers its rows: one launch.

Shapes (B samples, S the state's width padded to a multiple of 4, rows as in replay_layout):
    in   leaves f32 [leaves], sums f64 [nodes], tops f64 [padded tops], top_peaks f32 [padded tops], rows i64 [capacity, words / 2]
    out  stacked i64 [2 B, S / 2] (states, then next states), or where bf16 is asked for u32 [2 B, >= S / 2], pairs whose columns past S
         are not written; actions, rewards, discounts, flags i32 [B] (bits of float32 where that is meant), slots i64 [B], weights f32 [B],
         stamp i64 [1], peak f32 [1]
Launch: a warp a sample. Warp q draws from the stratum [q, q + 1) / B, so slots come out in ascending order in proportional mode.
Weights: (1 / (N P))^beta over the largest of the batch. The last block to finish its search divides; it asks for the weights before it
writes its rows. It also advances the counters, so a captured graph goes on drawing.
Cost: four dependent reads (tops, nodes, leaves, row) and an exchange between blocks, whatever the capacity.
"""

from dataclasses import astuple
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numba import float64

from numba_rl import gpu
from numba_rl.gpu import cuda, float32, int32, int64, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.bf16 import pack_word
from numba_rl.kernels.early import begin_function, start_early
from numba_rl.kernels.rank import rank_search
from numba_rl.kernels.replay_layout import Layout
from numba_rl.kernels.replay_rules import beta_at, raw_weight
from numba_rl.kernels.replay_search import slot_search
from numba_rl.kernels.settled import specialised
from numba_rl.rules import philox

_FEW, _MANY = 4, 16  # weights that a thread of the last block holds: _FEW where these are enough for the batch
begin = load_tops = find = find_rank = None  # device functions, bound anew for each layout
_HELD = 4  # row words a lane keeps in registers while the weights are exchanged; wider rows are finished afterwards


class RingViews(NamedTuple):
    """The replay's arrays as kernel arguments; `bits`, `rows` and `words` are the same memory under other types."""

    leaves: Any  # f32 [leaves], priorities
    bits: Any  # i32 [leaves], the same
    sums: Any  # f64 [nodes]
    peaks: Any  # f32 [nodes]
    tops: Any  # f64 [padded tops]
    top_peaks: Any  # f32 [padded tops]
    rows: Any  # i64 [capacity, words / 2]
    words: Any  # i32 [capacity, words]
    counters: Any  # i64 [COUNTERS]
    settings: Any  # f64 [SETTINGS]
    arrivals: Any  # i32 [1]: blocks of the launch that have arrived; zero between launches
    order: Any  # i64 [capacity] in rank mode, else [1]
    cumulated: Any  # f64 [capacity] in rank mode, else [1]
    ranked: Any  # i64 [1]


class BatchViews(NamedTuple):
    """One batch's buffers as kernel arguments."""

    stacked: Any
    actions: Any
    rewards: Any
    discounts: Any
    flags: Any
    slots: Any  # i64 [B]
    raw: Any  # f32 [B], weights before the division
    weights: Any  # f32 [B]
    stamp: Any  # i64 [1], transitions inserted when the batch was drawn
    peak: Any  # f32 [1], largest priority stored when the batch was drawn


@gpu.device
def scatter_word(value, word, q, count, half, bf16, stacked, actions, rewards, discounts, flags):
    """Writes the 64-bit word number `word` of sample q's row to where it belongs in the batch; bf16: states as pairs of it."""
    sample = uint32(q)
    if word < 2 * half:
        second = word >= half  # the next state's, which lie below the states
        row = uint32(count + q) if second else sample
        column = uint32(word - half) if second else uint32(word)
        stacked[row, column] = pack_word(value) if bf16 else value
    else:
        low = int32((value << int64(32)) >> int64(32))
        high = int32(value >> int64(32))
        if word == 2 * half:
            actions[sample] = low
            rewards[sample] = high
        else:
            discounts[sample] = low
            flags[sample] = high


@gpu.device
def share_of(weight, largest, inverse):
    """weight / largest, exactly 1 for the largest. inverse: 1 / largest, 0 where all are 0."""
    return float32(1) if weight == largest and inverse > float32(0) else weight * inverse


@lru_cache
def sample_kernel(layout: Layout, mode: int, warps: int, bf16: bool = False, early: bool = False, ahead: int = _FEW):
    """The kernel for one layout; `warps` samples a block. bf16: states are written rounded to it (compute capability 8.0 or newer).
    early: see kernels.early. ahead: weights that a thread of the last block has on their way together."""
    lanes = layout.lanes
    threads, capacity = warps * lanes, layout.capacity
    half = layout.padded // 2
    words = layout.words // 2
    held_words = min(_HELD, -(-words // lanes))
    tops_a_lane = layout.padded_tops // lanes

    def sample(
        leaves, sums, tops, top_peaks, rows, counters, settings, arrivals, order, cumulated, ranked, seed, count, inverse,
        stacked, actions, rewards, discounts, flags, slots, raw, weights, stamp, peak,
    ):  # fmt: skip
        begin()
        scratch = cuda.shared.array(lanes, float64)
        warp_largest = cuda.shared.array(warps, float32)
        is_last = cuda.shared.array(1, int32)
        thread = int32(cuda.threadIdx.x)
        lane = int32(thread % lanes)
        warp = int32(thread // lanes)
        own = int64(cuda.blockIdx.x) * warps + warp
        active = own < count
        q = min(own, int64(count - 1))  # idle warps of the last block repeat the last sample and write nothing

        held_tops = cuda.local.array(tops_a_lane, float64)
        if mode == at.PROPORTIONAL:
            load_tops(tops, int64(0), lane, held_tops)
        inserted = counters[at.INSERTED]
        alpha = float32(settings[at.ALPHA])
        beta_start = float32(settings[at.BETA_START])
        beta_end = float32(settings[at.BETA_END])
        beta = float32(beta_at(counters[at.BATCHES], beta_start, beta_end, int64(settings[at.BETA_STEPS])))
        size = min(inserted, int64(capacity))
        word = philox.bits(uint32(seed), int32(philox.REPLAY), q, int32(0), counters[at.DRAWN], int32(0))
        share = (float64(q) + float64(uint32(word)) * float64(2.0**-32)) * inverse
        filled = size
        slot = int64(-1)
        priority = float32(1)
        total = float64(0)
        if mode == at.PROPORTIONAL:
            slot, priority, total = find(leaves, sums, held_tops, share, lane, scratch)
        elif mode == at.RANK:
            filled = ranked[0]
            slot, priority, total = find_rank(order, cumulated, filled, alpha, share, lane, scratch)
        weight = float32(1)
        if slot < int64(0):  # uniform mode, or nothing has a priority: any filled slot
            slot = max(min(int64(share * float64(size)), size - int64(1)), int64(0))
            weight = float32(1) if size > int64(0) else float32(0)

        held = cuda.local.array(held_words, int64)
        for k in range(held_words):  # a lane past the end reads the last word again: no branch between the reads
            held[k] = rows[uint32(slot), uint32(min(int32(lane + k * lanes), int32(words - 1)))]
        if total > float64(0):
            weight = float32(raw_weight(priority, float32(total), float32(filled), beta))
        if active and lane == int32(0):
            raw[uint32(q)] = weight
            slots[uint32(q)] = slot

        # From here on the last block to arrive decides how long the launch takes: what it need not do is done by then, or while it waits.
        cuda.syncthreads()
        if thread == int32(0):
            cuda.threadfence()
            is_last[0] = int32(1) if cuda.atomic.add(arrivals, 0, int32(1)) == int32(cuda.gridDim.x - 1) else int32(0)
        cuda.syncthreads()
        is_mine = is_last[0] != int32(0)
        mine = cuda.local.array(ahead, float32)
        if is_mine:
            cuda.threadfence()
            for k in range(ahead):  # past the end, the last one again: no branch between the reads
                mine[k] = raw[uint32(min(thread + k * threads, count - 1))]
        if active:
            for k in range(held_words):
                at_word = lane + k * lanes
                if at_word < words:
                    scatter_word(held[k], at_word, q, count, half, bf16, stacked, actions, rewards, discounts, flags)
            if held_words * lanes < words:
                for at_word in range(lane + held_words * lanes, words, lanes):
                    scatter_word(rows[uint32(slot), uint32(at_word)], at_word, q, count, half, bf16, stacked, actions, rewards, discounts, flags)
        if own == int64(0):
            largest = float32(0)
            for k in range(tops_a_lane):
                largest = max(largest, top_peaks[uint32(lane * tops_a_lane + k)])
            largest = float32(gpu.warp_max(largest, scratch))
            if lane == int32(0):
                peak[0] = largest
                stamp[0] = inserted
        if not is_mine:
            return
        largest = float32(0)
        for k in range(ahead):
            largest = max(largest, mine[k])
        for start in range(threads * ahead, count, threads):
            largest = max(largest, raw[uint32(min(start + thread, count - 1))])
            gpu.warp_sync()  # (also keeps the compiler from unrolling: less code is sooner there)
        largest = float32(gpu.warp_max(largest, scratch))
        if lane == int32(0):
            warp_largest[warp] = largest
        cuda.syncthreads()
        for k in range(warps):
            largest = max(largest, warp_largest[k])
        inverse = float32(1) / largest if largest > float32(0) else float32(0)
        for k in range(ahead):
            if thread + k * threads < count:
                weights[uint32(thread + k * threads)] = share_of(mine[k], largest, inverse)
        for start in range(threads * ahead, count, threads):
            if start + thread < count:
                weights[uint32(start + thread)] = share_of(raw[uint32(start + thread)], largest, inverse)
            gpu.warp_sync()
        if thread == int32(0):
            arrivals[0] = int32(0)
            counters[at.BATCHES] += int64(1)
            counters[at.DRAWN] += int64(count)

    load, search = slot_search(layout, True)
    parts = {"begin": begin_function(early), "load_tops": load, "find": search, "find_rank": rank_search(lanes)}
    return cached(gpu.jit(specialised(sample, parts, astuple(layout), mode, warps, int(bf16), int(early), ahead)))


def launch_sample(
    layout: Layout, mode: int, ring: RingViews, batch: BatchViews, seed: int, stream, warps: int, bf16: bool = False, early: bool = False
):  # fmt: skip
    """Draws a batch of len(batch.slots) samples into its buffers. See the module for shapes; asynchronous on `stream`."""
    count = batch.slots.shape[0]
    kernel = sample_kernel(layout, mode, warps, bf16, early, _FEW if count <= _FEW * warps * layout.lanes else _MANY)
    if early:
        start_early(stream)
    kernel[gpu.blocks_for(count, warps), warps * layout.lanes, stream](
        ring.leaves, ring.sums, ring.tops, ring.top_peaks, ring.rows, ring.counters, ring.settings, ring.arrivals,
        ring.order, ring.cumulated, ring.ranked, np.uint32(seed), count, 1.0 / count, *batch,
    )  # fmt: skip


@lru_cache
def locate_kernel(layout: Layout, warps: int):
    """The kernel that answers which slot lies under each of given masses."""
    lanes = layout.lanes
    tops_a_lane = layout.padded_tops // lanes

    def locate(leaves, sums, tops, masses, count, slots):
        scratch = cuda.shared.array(lanes, float64)
        lane = int32(cuda.threadIdx.x % lanes)
        q = int64(cuda.blockIdx.x) * warps + cuda.threadIdx.x // lanes
        if q < count:
            held_tops = cuda.local.array(tops_a_lane, float64)
            load_tops(tops, int64(0), lane, held_tops)
            slot, _, _ = find(leaves, sums, held_tops, masses[q], lane, scratch)
            if lane == int32(0):
                slots[q] = slot

    load, search = slot_search(layout, False)
    return cached(gpu.jit(specialised(locate, {"load_tops": load, "find": search}, astuple(layout), warps)))


def launch_locate(layout: Layout, ring: RingViews, masses, slots, stream, warps: int):
    """slots i64 [n]: the slot under each mass f64 [n] of [0, total), or -1 if every priority is zero."""
    count = masses.shape[0]
    kernel = locate_kernel(layout, warps)
    kernel[gpu.blocks_for(count, warps), warps * layout.lanes, stream](ring.leaves, ring.sums, ring.tops, masses, count, slots)
