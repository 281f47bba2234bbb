"""Draws a batch from the replay and gathers its rows: one launch.

Shapes (B samples, S the state's width padded to a multiple of 4, rows as in replay_layout):
    in   leaves f32 [leaves], sums f64 [nodes], tops f64 [padded tops], top_peaks f32 [padded tops], rows i64 [capacity, words / 2]
    out  stacked i64 [2 B, S / 2] (states, then next states), or where bf16 is asked for u32 [2 B, >= S / 2], pairs whose columns past S
         are not written; actions, rewards, discounts, flags i32 [B] (bits of float32 where that is meant), slots i64 [B], weights f32 [B],
         stamp i64 [1], peak f32 [1]
Launch: warp w of W draws samples w, w + W, ... Sample q comes from the stratum [q, q + 1) / B, so slots come out in ascending order in
proportional mode. One block more, the last, has no samples: it keeps the books, which are the stamp, the peak and the counters, so that a
captured graph goes on drawing.
Weights: (1 / (N P))^beta over the largest of the batch. As soon as a block knows its weights it posts the largest of them, then takes
what the others have posted, while its rows are under way. A post holds the weight and the number of the launch in one word, so it needs
neither a fence nor clearing; waiting for posts needs all blocks to run at once, so there are no more of them than multiprocessors.
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
from numba_rl.kernels.ptx import post, read_post
from numba_rl.kernels.rank import rank_search
from numba_rl.kernels.replay_layout import Layout
from numba_rl.kernels.replay_rules import beta_at, raw_weight
from numba_rl.kernels.replay_search import slot_search
from numba_rl.kernels.settled import specialised
from numba_rl.rules import philox

begin = load_tops = find_top = find = find_rank = await_posts = None  # device functions, bound anew for each layout
_HELD = 4  # row words a lane keeps in registers while the weights are exchanged; wider rows are finished afterwards
_MOST_WARPS = 32  # of a block


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
    arrivals: Any  # i32 [1]: blocks of a launch that have arrived; zero between launches
    posts: Any  # i64 [posts_for(multiprocessors)]: the number of draws so far, then what the blocks of a draw posted
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
    place = uint32(word)
    if place < uint32(2 * half):
        second = place >= uint32(half)  # the next state's, which lie below the states
        row = uint32(count + q) if second else uint32(q)
        column = uint32(place - half) if second else place
        stacked[row, column] = pack_word(value) if bf16 else value
    else:
        low = int32((value << int64(32)) >> int64(32))
        high = int32(value >> int64(32))
        if place == uint32(2 * half):
            actions[uint32(q)] = low
            rewards[uint32(q)] = high
        else:
            discounts[uint32(q)] = low
            flags[uint32(q)] = high


@gpu.device
def share_of(weight, largest, inverse):
    """weight / largest, exactly 1 for the largest. inverse: 1 / largest, 0 where all are 0."""
    return float32(1) if weight == largest and inverse > float32(0) else weight * inverse


@lru_cache
def sample_kernel(layout: Layout, mode: int, warps: int, bf16: bool = False, early: bool = False, ahead: int = 1, rounds: int = 1):
    """The kernel for one layout; `warps` warps a block. bf16: states are written rounded to it (compute capability 8.0 or newer).
    early: see kernels.early. ahead: posts that a lane reads, enough for those of all blocks. rounds: samples that a warp draws at most."""
    lanes = layout.lanes
    threads, capacity = warps * lanes, layout.capacity
    half = layout.padded // 2
    words = layout.words // 2
    held_words = min(_HELD, -(-words // lanes))
    tops_a_lane = layout.padded_tops // lanes

    @gpu.device
    def largest_posted(posts, number, expected, lane, scratch):
        """The largest of the `expected` posts of launch `number`, as bits, for a warp that waits until they are there."""
        found = cuda.local.array(ahead, int64)
        largest = int32(0)
        missing = True
        while missing:
            for k in range(ahead):  # past the end, the last one again: no branch between the reads
                found[k] = read_post(posts, int64(min(int32(lane + k * lanes), int32(expected - 1)) + 1))
            missing = False
            for k in range(ahead):
                missing = missing or int32(found[k] >> int64(32)) != number
                largest = max(largest, int32(found[k] & int64(0xFFFFFFFF)) if not missing else int32(0))
        return int32(gpu.warp_max(largest, scratch))

    def sample(
        leaves, sums, tops, top_peaks, rows, counters, settings, posts, order, cumulated, ranked, seed, count, inverse,
        stacked, actions, rewards, discounts, flags, slots, raw, weights, stamp, peak,
    ):  # fmt: skip
        begin()
        scratch = cuda.shared.array(lanes, float64)
        block_largest = cuda.shared.array(1, int32)
        batch_largest = cuda.shared.array(2, float32)  # and its inverse
        thread = int32(cuda.threadIdx.x)
        lane = int32(uint32(thread) % uint32(lanes))
        warp = int32(uint32(thread) // uint32(lanes))
        batch = int32(count)
        blocks = int32(cuda.gridDim.x) - int32(1)  # that draw
        strands = int32(blocks * warps)
        first = int32(cuda.blockIdx.x * warps + warp)
        number = int32(posts[0]) + int32(1)
        inserted = counters[at.INSERTED]

        if int32(cuda.blockIdx.x) == blocks:
            if warp > int32(0):
                return
            stored = float32(0)
            for k in range(tops_a_lane):
                stored = max(stored, top_peaks[uint32(lane * tops_a_lane + k)])
            stored = float32(gpu.warp_max(stored, scratch))
            await_posts(posts, number, blocks, lane, scratch)
            if lane == int32(0):  # every warp has read the counters: its block posted afterwards
                peak[0] = stored
                stamp[0] = inserted
                posts[0] = int64(number)
                counters[at.BATCHES] += int64(1)
                counters[at.DRAWN] += int64(count)
            return

        held_tops = cuda.local.array(tops_a_lane, float64)
        if mode == at.PROPORTIONAL:
            load_tops(tops, int64(0), lane, held_tops)
        if thread == int32(0):
            block_largest[0] = int32(0)
        cuda.syncthreads()
        alpha = float32(settings[at.ALPHA])
        beta_start = float32(settings[at.BETA_START])
        beta_end = float32(settings[at.BETA_END])
        beta = float32(beta_at(counters[at.BATCHES], beta_start, beta_end, int64(settings[at.BETA_STEPS])))
        drawn = counters[at.DRAWN]
        size = min(inserted, int64(capacity))
        weight = float32(0)
        highest = float32(0)
        held = cuda.local.array(held_words, int64)
        for turn in range(rounds):
            own = int32(first + turn * strands)
            active = own < batch
            q = int32(min(own, int32(batch - 1)))  # a warp without a sample repeats the last one and writes nothing
            word = philox.bits(uint32(seed), int32(philox.REPLAY), q, int32(0), drawn, int32(0))
            share = (float64(q) + float64(uint32(word)) * float64(2.0**-32)) * inverse
            slot = int64(-1)
            priority = float32(1)
            scale = float32(0)
            if mode == at.PROPORTIONAL:
                top, mass, total = find_top(held_tops, share, lane, scratch)
                scale = float32(size) / float32(total) if total > float64(0) else float32(0)
                slot, priority = find(leaves, sums, top, mass, lane, scratch)
            elif mode == at.RANK:
                slot, priority, total = find_rank(order, cumulated, ranked[0], alpha, share, lane, scratch)
                scale = float32(ranked[0]) / float32(total) if total > float64(0) else float32(0)
            weight = float32(1)
            nowhere = slot < int64(0)  # uniform mode, or nothing has a priority: any filled slot
            if nowhere:
                slot = max(min(int64(share * float64(size)), size - int64(1)), int64(0))
                weight = float32(1) if size > int64(0) else float32(0)
            for k in range(held_words):  # a lane past the end reads the last word again: no branch between the reads
                held[k] = rows[uint32(slot), uint32(min(uint32(lane + k * lanes), uint32(words - 1)))]
            if mode != at.UNIFORM and not nowhere:
                weight = float32(raw_weight(priority, scale, beta))
            highest = max(highest, weight)
            if turn == rounds - 1:
                if lane == int32(0):
                    cuda.atomic.max(block_largest, 0, highest.view(np.int32))  # positive floats keep their order as integers
                cuda.syncthreads()
                if warp == int32(0):
                    if lane == int32(0):
                        post(posts, int64(cuda.blockIdx.x) + int64(1), (int64(number) << int64(32)) | int64(block_largest[0]))
                    gpu.warp_sync()
                    highest = await_posts(posts, number, blocks, lane, scratch).view(np.float32)
                    if lane == int32(0):
                        batch_largest[0] = highest
                        batch_largest[1] = float32(1) / highest if highest > float32(0) else float32(0)
            if active:
                if lane == int32(0):
                    raw[uint32(q)] = weight
                    slots[uint32(q)] = slot
                for k in range(held_words):
                    at_word = int32(lane + k * lanes)
                    if at_word < int32(words):
                        scatter_word(held[k], at_word, q, batch, half, bf16, stacked, actions, rewards, discounts, flags)
                if held_words * lanes < words:
                    for at_word in range(lane + held_words * lanes, words, lanes):
                        scatter_word(rows[uint32(slot), uint32(at_word)], at_word, q, batch, half, bf16, stacked, actions, rewards, discounts, flags)

        cuda.syncthreads()
        if lane == int32(0):
            for turn in range(rounds):
                own = int32(first + turn * strands)
                if own < batch:
                    value = weight if turn == rounds - 1 else raw[uint32(own)]
                    weights[uint32(own)] = share_of(value, batch_largest[0], batch_largest[1])

    load, search_tops, search = slot_search(layout, True)
    parts = {
        "begin": begin_function(early), "load_tops": load, "find_top": search_tops, "find": search, "find_rank": rank_search(lanes),
        "await_posts": largest_posted,
    }  # fmt: skip
    kernel = specialised(sample, parts, astuple(layout), mode, warps, int(bf16), int(early), ahead, rounds)
    return cached(gpu.jit(kernel, max_registers=gpu.most_registers(threads)))


def _most_blocks(multiprocessors: int) -> int:
    """Blocks of a launch that draw: with the one that keeps the books all run at once."""
    return max(multiprocessors - 1, 1)


def posts_for(multiprocessors: int) -> int:
    """Numbers that the exchange of a card of so many multiprocessors needs."""
    return 1 + _most_blocks(multiprocessors)


def launch_sample(
    layout: Layout, mode: int, ring: RingViews, batch: BatchViews, seed: int, stream, warps: int, multiprocessors: int,
    bf16: bool = False, early: bool = False,
):  # fmt: skip
    """Draws a batch of len(batch.slots) samples into its buffers. See the module for shapes; asynchronous on `stream`.

    warps: of a block, more where the batch asks for it; multiprocessors: of the card, 1 in the simulator, whose blocks run in turn.
    """
    count, most = batch.slots.shape[0], _most_blocks(multiprocessors)
    if count > warps * most and not gpu.SIMULATED:  # several samples a warp take more registers than a thread of the largest block has
        warps = _MOST_WARPS if count <= _MOST_WARPS * most else _MOST_WARPS // 2
    blocks = min(gpu.blocks_for(count, warps), most)
    ahead, rounds = gpu.blocks_for(blocks, layout.lanes), gpu.blocks_for(count, blocks * warps)
    kernel = sample_kernel(layout, mode, warps, bf16, early, ahead, rounds)
    if early:
        start_early(stream)
    kernel[blocks + 1, warps * layout.lanes, stream](
        ring.leaves, ring.sums, ring.tops, ring.top_peaks, ring.rows, ring.counters, ring.settings, ring.posts,
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
            top, mass, _ = find_top(held_tops, masses[q], lane, scratch)
            slot, _ = find(leaves, sums, top, mass, lane, scratch)
            if lane == int32(0):
                slots[q] = slot

    load, search_tops, search = slot_search(layout, False)
    return cached(gpu.jit(specialised(locate, {"load_tops": load, "find_top": search_tops, "find": search}, astuple(layout), warps)))


def launch_locate(layout: Layout, ring: RingViews, masses, slots, stream, warps: int):
    """slots i64 [n]: the slot under each mass f64 [n] of [0, total), or -1 if every priority is zero."""
    count = masses.shape[0]
    kernel = locate_kernel(layout, warps)
    kernel[gpu.blocks_for(count, warps), warps * layout.lanes, stream](ring.leaves, ring.sums, ring.tops, masses, count, slots)
