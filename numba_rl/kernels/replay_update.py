"""Writes new priorities of a batch and recomputes the sums above them: one launch.

Shapes: slots i64 [B], in any order and with duplicates; errors f32 [B]; stamp i64 [1], the insert counter when the batch was
drawn; peak f32 [1], the largest priority stored then; skip f32 [1]: not 0, nothing is changed; the tree as in replay_layout.
Launch: a block a top. Every block reads the whole batch and keeps what lies under its top, so one block owns each slot and
each sum, and block barriers are the only order that is needed: clear the slots, take the largest of the duplicates by an
integer maximum (which no order of arrival can change), recompute the touched nodes from their leaves, then the top.
Slots are cleared as soon as they are met where nothing was inserted since the draw; else it has to be seen first which are stale.
Cost: B reads a block, then a node of `leaf_fan` slots for each sample: no term in the capacity but the number of tops.
Rules: NaN keeps the old priority; an infinite error takes `peak`; a slot that was overwritten since the batch was drawn, or lies
outside the filled ring, is left alone; all four are counted.
"""

import math
from dataclasses import astuple
from functools import lru_cache

import numpy as np
from numba import float64, uint64

from numba_rl import gpu
from numba_rl.gpu import cuda, float32, int32, int64, uint32
from numba_rl.kernel_cache import cached
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.early import begin_function
from numba_rl.kernels.replay_layout import Layout
from numba_rl.kernels.replay_rules import priority_of, rewritten
from numba_rl.kernels.replay_sample import RingViews
from numba_rl.kernels.replay_sums import resum_top
from numba_rl.kernels.settled import specialised

begin = under = clear = resum = None  # device functions, bound anew for each layout
_AHEAD = 4  # samples that a thread reads at once, so that their latencies overlap
_FEW, _MANY = 8, 16  # warps of a block: _FEW where their threads read the batch at once, which leaves room for the draw that follows
_LISTED = 2048  # samples of one top that are listed; if more of a batch fall under one top, its block goes through all again


@lru_cache
def update_kernel(layout: Layout, warps: int, early: bool = False):
    """The kernel for one layout; `warps` warps a block. early: the draw that follows may be set up meanwhile (kernels.early)."""
    lanes, leaf_fan, node_fan, top_leaves = layout.lanes, layout.leaf_fan, layout.node_fan, layout.top_leaves
    threads = warps * lanes
    capacity, all_leaves, last_top = layout.capacity, layout.leaves, layout.tops - 1
    node_rounds = -(-node_fan // threads)

    @gpu.device
    def place_under(slot, first_leaf):
        """Place of `slot` under the top whose slots begin at first_leaf; -1 if it belongs to another top.

        Slots that no top has are one past the last top's places, for its block to count them.
        """
        place = uint64((slot if uint64(slot) < uint64(all_leaves) else int64(all_leaves)) - first_leaf)
        return int32(place) if place <= uint64(top_leaves) else int32(-1)

    @gpu.device
    def clear_slot(place, slot, bits, touched, listed, counts):
        """Takes a slot's priority away and lists its node, once."""
        bits[slot] = int32(0)
        node = uint32(uint32(place) // uint32(leaf_fan))
        if cuda.atomic.exch(touched, node, int32(1)) == int32(0):
            listed[uint32(cuda.atomic.add(counts, 1, int32(1)))] = int32(node)

    def update(slots, errors, count, stamp, peak, skip, leaves, bits, sums, peaks, tops, top_peaks, counters, settings):
        begin()
        scratch = cuda.shared.array(lanes, float64)
        node_sums = cuda.shared.array(node_fan, float64)
        node_peaks = cuda.shared.array(node_fan, float32)
        touched = cuda.shared.array(node_fan, int32)
        listed = cuda.shared.array(node_fan, int32)
        place_of = cuda.shared.array(_LISTED, int32)  # of the samples under this top
        error_of = cuda.shared.array(_LISTED, float32)
        counts = cuda.shared.array(2, int32)  # samples under this top, nodes to recompute
        thread = int32(cuda.threadIdx.x)
        lane = int32(uint32(thread) % uint32(lanes))
        warp = int32(uint32(thread) // uint32(lanes))
        step = int32(cuda.blockDim.x)  # a number that the compiler does not know, so that it unrolls no loop: small code starts sooner
        top = int64(cuda.blockIdx.x)
        first_leaf = top * int64(top_leaves)
        first_node = int32(top) * int32(node_fan)
        places = int32(top_leaves + 1) if top == int64(last_top) else int32(top_leaves)

        # All that is read without knowing anything is asked for at once: a second wait would cost as much as all that is computed.
        some_slots = cuda.local.array(_AHEAD, int64)
        some_errors = cuda.local.array(_AHEAD, float32)
        batch = int32(count)
        for j in range(_AHEAD):
            k = uint32(min(int32(thread + j * threads), int32(batch - 1)))
            some_slots[j] = slots[k]
            some_errors[j] = errors[k]
        known = batch if skip[0] == float32(0) else int32(0)
        then = stamp[0]
        now = counters[at.INSERTED]
        fresh = then == now
        filled = int32(max(min(min(now, int64(capacity)) - first_leaf, int64(top_leaves)), int64(0)))  # of this top's places
        largest = peak[0]
        alpha = float32(settings[at.ALPHA])
        eps = float32(settings[at.EPS])
        cap = float32(settings[at.CAP])
        for j in range(node_rounds):
            k = uint32(thread + j * threads)
            if k < uint32(node_fan):
                node_sums[k] = sums[uint32(uint32(first_node) + k)]
                node_peaks[k] = peaks[uint32(uint32(first_node) + k)]
                touched[k] = int32(0)
        if thread == int32(0):
            counts[0] = int32(0)
            counts[1] = int32(0)
        cuda.syncthreads()

        # Which samples are under this top.
        start = int32(0)
        while start < batch:
            if start > int32(0):
                for j in range(_AHEAD):
                    k = uint32(min(int32(start + thread + j * threads), int32(batch - 1)))
                    some_slots[j] = slots[k]
                    some_errors[j] = errors[k]
            for j in range(_AHEAD):
                place = int32(under(some_slots[j], first_leaf))
                if int32(start + thread + j * threads) < known and uint32(place) < uint32(places):
                    entry = cuda.atomic.add(counts, 0, int32(1))
                    if entry < int32(_LISTED):
                        place_of[uint32(entry)] = place
                        error_of[uint32(entry)] = some_errors[j]
                    if fresh and place < filled and not math.isnan(some_errors[j]):
                        clear(place, uint32(first_leaf + place), bits, touched, listed, counts)
            start = int32(start + step * _AHEAD)
        cuda.syncthreads()
        if counts[0] == int32(0):
            return
        crowded = counts[0] > int32(_LISTED)
        entries = batch if crowded else counts[0]

        if not fresh:
            entry = thread
            while entry < entries:
                place = int32(under(slots[uint32(entry)], first_leaf) if crowded else place_of[uint32(entry)])
                error = float32(errors[uint32(entry)] if crowded else error_of[uint32(entry)])
                if uint32(place) < uint32(filled) and not math.isnan(error):
                    if not rewritten(first_leaf + place, then, now, int64(capacity)):
                        clear(place, uint32(first_leaf + place), bits, touched, listed, counts)
                entry = int32(entry + step)
            cuda.syncthreads()

        # The largest of the duplicates: as integers, positive floats keep their order. What is rejected is counted.
        entry = thread
        while entry < entries:
            place = int32(under(slots[uint32(entry)], first_leaf) if crowded else place_of[uint32(entry)])
            error = float32(errors[uint32(entry)] if crowded else error_of[uint32(entry)])
            if uint32(place) < uint32(places):
                if place >= filled:
                    cuda.atomic.add(counters, at.OUTSIDE, int64(1))
                elif not fresh and rewritten(first_leaf + place, then, now, int64(capacity)):
                    cuda.atomic.add(counters, at.STALE, int64(1))
                elif math.isnan(error):
                    cuda.atomic.add(counters, at.NAN, int64(1))
                    counters[at.LAST_BAD] = counters[at.BATCHES]
                else:
                    priority = float32(priority_of(error, alpha, eps, cap))
                    if math.isinf(error):
                        priority = largest
                        cuda.atomic.add(counters, at.INFINITE, int64(1))
                        counters[at.LAST_BAD] = counters[at.BATCHES]
                    cuda.atomic.max(bits, uint32(first_leaf + place), float32(priority).view(np.int32))
            entry = int32(entry + step)
        cuda.syncthreads()
        resum(int32(top), listed, counts[1], node_sums, node_peaks, leaves, sums, peaks, tops, top_peaks, warp, lane, scratch)

    parts = {"begin": begin_function(early), "under": place_under, "clear": clear_slot, "resum": resum_top(layout, warps)}
    kernel = specialised(update, parts, astuple(layout), warps, int(early))
    return cached(gpu.jit(kernel))


def launch_update(layout: Layout, ring: RingViews, slots, errors, stamp, peak, skip, stream, warps: int | None, early: bool = False):
    """Applies td errors f32 [B] to slots i64 [B] unless skip f32 [1] is set; `stamp` and `peak` belong to the batch. Asynchronous on `stream`.

    warps: of a block; None: what suits the batch.
    """
    warps = warps or (_FEW if slots.shape[0] <= _FEW * layout.lanes * _AHEAD else _MANY)
    kernel = update_kernel(layout, warps, early)
    kernel[layout.tops, warps * layout.lanes, stream](
        slots, errors, slots.shape[0], stamp, peak, skip,
        ring.leaves, ring.bits, ring.sums, ring.peaks, ring.tops, ring.top_peaks, ring.counters, ring.settings,
    )  # fmt: skip


@lru_cache
def peak_kernel(layout: Layout):
    """The kernel that finds the largest priority stored: one warp."""
    lanes = layout.lanes
    tops_a_lane = layout.padded_tops // lanes

    def find_peak(top_peaks, peak):
        scratch = cuda.shared.array(lanes, float64)
        lane = int32(cuda.threadIdx.x)
        largest = float32(0)
        for k in range(tops_a_lane):
            largest = max(largest, top_peaks[lane * tops_a_lane + k])
        largest = float32(gpu.warp_max(largest, scratch))
        if lane == int32(0):
            peak[0] = largest

    return cached(gpu.jit(find_peak))


def launch_peak(layout: Layout, ring: RingViews, peak, stream):
    """peak f32 [1]: the largest priority stored, 0 in an empty ring."""
    peak_kernel(layout)[1, layout.lanes, stream](ring.top_peaks, peak)
