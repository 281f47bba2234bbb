"""The replay's operations for a CPU: the same rules, levels and random numbers as the kernels, as plain loops.

Arrays as in replay_layout (rows i32 [capacity, words]). The draws are those of the GPU but where a mass lies within rounding
(1e-15 of the total) of an edge. Costs: a sample looks through leaf_fan + node_fan values and the tops; an update recomputes the nodes
that it touched.
"""

import math

import numpy as np
from numba import float32, float64, int64, njit

from numba_rl.kernel_cache import cached
from numba_rl.kernels import replay_layout as at
from numba_rl.kernels.replay_rules import beta_at, priority_of, raw_weight, rewritten
from numba_rl.rules import philox


@cached
@njit(error_model="numpy")
def _child(values, base, count, mass):
    """(child, mass left in it) of values[base : base + count]: the first whose running sum exceeds the mass, else the last not zero."""
    last, inside = -1, mass
    for k in range(count):
        value = float64(values[base + k])
        if value > 0.0:
            last, inside = k, mass
            if mass < value:
                break
            mass -= value
    return last, inside


@cached
@njit(error_model="numpy")
def slot_at(leaves, sums, tops, leaf_fan, node_fan, mass):
    """The slot under a mass of [0, total), -1 if every priority is zero."""
    top, mass = _child(tops, 0, len(tops), mass)
    if top < 0:
        return int64(-1)
    node, mass = _child(sums, top * node_fan, node_fan, mass)
    node += top * node_fan
    leaf, mass = _child(leaves, node * leaf_fan, leaf_fan, mass)
    return int64(node * leaf_fan + leaf)


@cached
@njit(error_model="numpy")
def locate(leaves, sums, tops, leaf_fan, node_fan, masses, slots):
    """slots i64 [n]: the slot under each mass f64 [n]."""
    for k in range(len(masses)):
        slots[k] = slot_at(leaves, sums, tops, leaf_fan, node_fan, masses[k])


@cached
@njit(error_model="numpy")
def draw(leaves, sums, tops, top_peaks, leaf_fan, node_fan, capacity, counters, settings, mode, order, cumulated, ranked, seed,
         slots, raw, weights, stamp, peak):  # fmt: skip
    """Stratified draw of len(slots) slots with their weights; advances the counters. Twin of the sample kernel, without the gather."""
    count = len(slots)
    size = min(counters[at.INSERTED], capacity)
    steps = int64(settings[at.BETA_STEPS])
    beta = float32(beta_at(counters[at.BATCHES], float32(settings[at.BETA_START]), float32(settings[at.BETA_END]), steps))
    alpha = float32(settings[at.ALPHA])
    total = 0.0
    filled = size
    if mode == at.PROPORTIONAL:
        for value in tops:
            total += value
    elif mode == at.RANK:
        filled = ranked
        total = cumulated[ranked - 1] if ranked > 0 else 0.0
    largest = float32(0)
    inverse = 1.0 / count
    for q in range(count):
        word = philox.bits(np.uint32(seed), np.int32(philox.REPLAY), q, np.int32(0), counters[at.DRAWN], np.int32(0))
        share = (q + float64(word) * 2.0**-32) * inverse
        slot = int64(-1)
        priority = float32(1)
        if total > 0.0 and mode == at.PROPORTIONAL:
            slot = slot_at(leaves, sums, tops, leaf_fan, node_fan, share * total)
            priority = leaves[slot]
        elif total > 0.0:
            place = min(np.searchsorted(cumulated[:ranked], share * total, side="right"), ranked - 1)
            slot = order[place]
            priority = float32(place + 1) ** -alpha
        weight = float32(1)
        if slot < 0:  # uniform mode, or nothing has a priority: any filled slot
            slot = min(int64(share * float64(size)), size - 1)
        else:
            weight = float32(raw_weight(priority, float32(filled) / float32(total), beta))
        slots[q] = slot
        raw[q] = weight
        largest = max(largest, weight)
    for q in range(count):
        weights[q] = raw[q] / largest
    stamp[0] = counters[at.INSERTED]
    peak[0] = top_peaks.max()
    counters[at.BATCHES] += 1
    counters[at.DRAWN] += count


@cached
@njit(error_model="numpy")
def gather(rows, slots, padded, stacked, actions, rewards, discounts, flags):
    """Copies the rows of `slots` into a batch (all i32, bits of float32 where that is meant)."""
    count = len(slots)
    for q in range(count):
        row = rows[slots[q]]
        stacked[q] = row[:padded]
        stacked[count + q] = row[padded : 2 * padded]
        actions[q] = row[2 * padded]
        rewards[q] = row[2 * padded + 1]
        discounts[q] = row[2 * padded + 2]
        flags[q] = row[2 * padded + 3]


@cached
@njit(error_model="numpy")
def _resum_node(node, leaves, sums, peaks, leaf_fan):
    total = 0.0
    peak = float32(0)
    for value in leaves[node * leaf_fan : (node + 1) * leaf_fan]:
        total += float64(value)
        peak = max(peak, value)
    sums[node] = total
    peaks[node] = peak


@cached
@njit(error_model="numpy")
def _resum_top(top, sums, peaks, tops, top_peaks, node_fan):
    total = 0.0
    peak = float32(0)
    for k in range(top * node_fan, (top + 1) * node_fan):
        total += sums[k]
        peak = max(peak, peaks[k])
    tops[top] = total
    top_peaks[top] = peak


@cached
@njit(error_model="numpy")
def resum_slots(first, count, leaves, sums, peaks, tops, top_peaks, leaf_fan, node_fan, capacity):
    """Recomputes everything above the `count` slots from `first` on, around the end of the ring. count <= capacity."""
    pieces = ((first, min(first + count, capacity)), (0, max(first + count - capacity, 0)))
    for low, high in pieces:
        if high > low:
            for node in range(low // leaf_fan, (high - 1) // leaf_fan + 1):
                _resum_node(node, leaves, sums, peaks, leaf_fan)
            for top in range(low // (leaf_fan * node_fan), (high - 1) // (leaf_fan * node_fan) + 1):
                _resum_top(top, sums, peaks, tops, top_peaks, node_fan)


@cached
@njit(error_model="numpy")
def update(slots, errors, stamp, peak, leaves, sums, peaks, tops, top_peaks, leaf_fan, node_fan, capacity, counters, settings):
    """New priorities from td errors f32 [B] for slots i64 [B]; rules as in replay_update."""
    alpha, eps, cap = float32(settings[at.ALPHA]), float32(settings[at.EPS]), float32(settings[at.CAP])
    size = min(counters[at.INSERTED], capacity)
    taken = np.zeros(len(slots), np.uint8)
    for k in range(len(slots)):
        slot = slots[k]
        if slot < 0 or slot >= size:
            counters[at.OUTSIDE] += 1
        elif rewritten(slot, stamp, counters[at.INSERTED], capacity):
            counters[at.STALE] += 1
        elif math.isnan(errors[k]):
            counters[at.NAN] += 1
            counters[at.LAST_BAD] = counters[at.BATCHES]
        else:
            taken[k] = 1
            leaves[slot] = float32(0)
    for k in range(len(slots)):
        if taken[k]:
            if math.isinf(errors[k]):
                priority = peak
                counters[at.INFINITE] += 1
                counters[at.LAST_BAD] = counters[at.BATCHES]
            else:
                priority = float32(priority_of(errors[k], alpha, eps, cap))
            leaves[slots[k]] = max(leaves[slots[k]], priority)
    for k in range(len(slots)):
        if taken[k]:
            _resum_node(slots[k] // leaf_fan, leaves, sums, peaks, leaf_fan)
    for k in range(len(slots)):
        if taken[k]:
            _resum_top(slots[k] // (leaf_fan * node_fan), sums, peaks, tops, top_peaks, node_fan)


@cached
@njit(error_model="numpy")
def first_priorities(errors, peak, settings, counters, priorities):
    """Priorities f32 [n] of new items from td errors f32 [n]; NaN and infinite ones take `peak` and are counted."""
    for k in range(len(errors)):
        if math.isnan(errors[k]) or math.isinf(errors[k]):
            counters[at.NAN if math.isnan(errors[k]) else at.INFINITE] += 1
            counters[at.LAST_BAD] = counters[at.BATCHES]
            priorities[k] = peak
        else:
            priorities[k] = priority_of(errors[k], settings[at.ALPHA], settings[at.EPS], settings[at.CAP])
