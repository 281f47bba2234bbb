"""Finding the slot under a mass: the device functions with which a warp walks down the three levels of sums.

A warp holds the children of one node, `per_lane` neighbouring values a lane, scans them, and picks the first child whose
running sum is strictly greater than the mass. A child that is zero is never picked, whatever rounding does to the running
sums; a mass at or past the total ends in the last child that is not zero. Arithmetic is float64 on purpose (see
replay_layout). Cost: one read and one scan a level, so three dependent reads from L2 for any capacity.
"""

from functools import lru_cache

from numba import float64

from numba_rl import gpu
from numba_rl.gpu import cuda, float32, int32, int64
from numba_rl.kernels.replay_layout import Layout


@lru_cache
def level_search(per_lane: int, lanes: int, by_share: bool):
    """Device function for one level of `per_lane` x `lanes` values. by_share: the mass is given as a share of the level's sum."""
    last_lane = lanes - 1

    @gpu.device
    def search(values, base, mass, lane, scratch):
        """The child of values[base:] that holds `mass`: (child, mass left inside it, its value, sum of all); child -1 if all are zero."""
        own = cuda.local.array(per_lane, float64)
        total = float64(0)
        for k in range(per_lane):
            value = float64(values[base + lane * per_lane + k])
            own[k] = value
            total += value
        filled = total > float64(0)
        running = float64(gpu.warp_scan(total, scratch))
        if by_share:
            total = float64(gpu.warp_broadcast(running, int32(last_lane), scratch))
            mass = mass * total
        holder = int32(gpu.warp_first(filled and running > mass, scratch))
        if holder < int32(0):
            holder = int32(gpu.warp_max(int32(lane) if filled else int32(-1), scratch))
        source = max(holder, int32(0))
        before = float64(gpu.warp_broadcast(running, max(int32(source - 1), int32(0)), scratch))
        left = mass
        if source > int32(0):
            left = max(mass - before, float64(0))  # lanes of zeros may have rounded the running sum up to beyond the mass
        child = int32(-1)
        value = float64(0)
        inside = float64(0)
        found = False
        for k in range(per_lane):
            take = own[k] > float64(0) and not found
            child = int32(lane * per_lane + k) if take else child
            value = own[k] if take else value
            inside = left if take else inside
            left = left - own[k] if take else left
            found = found or (take and left < float64(0))
        child = int32(gpu.warp_broadcast(child, source, scratch))
        value = float64(gpu.warp_broadcast(value, source, scratch))
        inside = float64(gpu.warp_broadcast(inside, source, scratch))
        return child, inside, value, total

    return search


@lru_cache
def slot_search(layout: Layout, by_share: bool):
    """Device function that finds the slot under a mass, or under a share of the total in [0, 1]."""
    lanes, node_fan, leaf_fan = layout.lanes, layout.node_fan, layout.leaf_fan
    search_tops = level_search(layout.padded_tops // lanes, lanes, by_share)
    search_nodes = level_search(node_fan // lanes, lanes, False)
    search_leaves = level_search(leaf_fan // lanes, lanes, False)

    @gpu.device
    def find(leaves, sums, tops, mass, lane, scratch):
        """(slot, its priority, total); slot -1 if every priority is zero. The total is meant only where the mass is a share."""
        top, mass, _, total = search_tops(tops, int64(0), mass, lane, scratch)
        if top < int32(0):
            return int64(-1), float32(0), float64(0)
        first = int64(top) * node_fan
        node, mass, _, _ = search_nodes(sums, first, mass, lane, scratch)
        first = (first + node) * leaf_fan
        leaf, mass, priority, _ = search_leaves(leaves, first, mass, lane, scratch)
        return first + leaf, float32(priority), total

    return find
