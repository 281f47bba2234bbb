"""Finding the slot under a mass: the device functions with which a warp walks down the three levels of sums.

A warp holds the children of one node, `per_lane` neighbouring values a lane, scans them, and picks the first child whose
running sum is strictly greater than the mass. A child that is zero is never picked, whatever rounding does to the running
sums; a mass at or past the total ends in the last child that is not zero. Arithmetic is float64 on purpose (see
replay_layout). Cost: one read and one scan a level, so three dependent reads from L2 for any capacity.

Places in arrays are uint32 in these kernels: for a signed one Numba also emits the code of negative indices, and a launch that is over in
microseconds takes as long as one thread needs for its instructions.
"""

from functools import lru_cache

from numba import float64

from numba_rl import gpu
from numba_rl.gpu import cuda, float32, int32, int64, uint32
from numba_rl.kernels.replay_layout import Layout


@lru_cache
def level_search(per_lane: int, lanes: int, by_share: bool, valued: bool = False):
    """Device functions (load, search) for one level of `per_lane` x `lanes` values. by_share: the mass is given as a share of its sum;
    valued: the child's value is asked for."""
    last_lane = lanes - 1

    @gpu.device
    def load(values, base, lane, own):
        """This lane's values of values[base:], to own float64 [per_lane] (local)."""
        for k in range(per_lane):
            own[k] = float64(values[uint32(base + lane * per_lane + k)])

    @gpu.device
    def search(own, mass, lane, scratch):
        """The child that holds `mass`: (child, mass left inside it, its value if valued, sum of all if by_share); child -1 if all are zero."""
        up_to = cuda.local.array(per_lane, float64)  # sums of this lane's first values
        total = float64(0)
        for k in range(per_lane):
            total += own[k]
            up_to[k] = total
        filled = total > float64(0)
        running = float64(gpu.warp_scan(total, scratch))
        if by_share:
            total = float64(gpu.warp_broadcast(running, int32(last_lane), scratch))
            mass = mass * total
        # Each lane looks for the child as if it held the mass, while it is found out which one does.
        before = float64(gpu.warp_broadcast(running, max(int32(lane - 1), int32(0)), scratch))
        # Not below 0: lanes of zeros may have rounded the running sum up to beyond the mass, and a mass may be negative.
        left = max(mass - before if lane > int32(0) else mass, float64(0))
        # The first value whose sum exceeds what is left, or the last that is not zero. No comparison waits for another one.
        child = int32(-1)
        value = float64(0)
        inside = float64(0)
        for k in range(per_lane):
            below = up_to[k - 1] if k > 0 else float64(0)
            take = own[k] > float64(0) and (k == 0 or left >= below)
            child = int32(lane * per_lane + k) if take else child
            value = own[k] if take else value
            inside = left - below if take else inside
        holder = int32(gpu.warp_first(filled and running > mass, scratch))
        if holder < int32(0):
            holder = max(int32(gpu.warp_max(int32(lane) if filled else int32(-1), scratch)), int32(0))
        child = int32(gpu.warp_broadcast(child, holder, scratch))
        inside = float64(gpu.warp_broadcast(inside, holder, scratch))
        if valued:
            value = float64(gpu.warp_broadcast(value, holder, scratch))
        return child, inside, value, total

    return load, search


@lru_cache
def slot_search(layout: Layout, by_share: bool):
    """Device functions (load, find_top, find) that find the slot under a mass, or under a share of the total in [0, 1].

    load(tops, 0, lane, held) reads the top level into held float64 [padded tops / lanes] (local). Callers do so first of all, so that
    this read is under way while they work out the mass.
    """
    lanes, node_fan, leaf_fan = layout.lanes, layout.node_fan, layout.leaf_fan
    nodes_a_lane, leaves_a_lane = node_fan // lanes, leaf_fan // lanes
    load_tops, search_tops = level_search(layout.padded_tops // lanes, lanes, by_share)
    load_nodes, search_nodes = level_search(nodes_a_lane, lanes, False)
    load_leaves, search_leaves = level_search(leaves_a_lane, lanes, False, True)

    @gpu.device
    def find_top(held, mass, lane, scratch):
        """(top, mass left inside it, total); top -1 if every priority is zero. The total is meant only where the mass is a share."""
        top, mass, _, total = search_tops(held, mass, lane, scratch)
        return top, mass, total

    @gpu.device
    def find(leaves, sums, top, mass, lane, scratch):
        """(slot, its priority) for the mass left inside a top; slot -1 for top -1."""
        if top < int32(0):
            return int64(-1), float32(0)
        nodes = cuda.local.array(nodes_a_lane, float64)
        first = int32(top * node_fan)
        load_nodes(sums, first, lane, nodes)
        node, mass, _, _ = search_nodes(nodes, mass, lane, scratch)
        few = cuda.local.array(leaves_a_lane, float64)
        first = uint32(uint32(first + node) * uint32(leaf_fan))
        load_leaves(leaves, first, lane, few)
        leaf, mass, priority, _ = search_leaves(few, mass, lane, scratch)
        return int64(uint32(first + leaf)), float32(priority)

    return load_tops, find_top, find
