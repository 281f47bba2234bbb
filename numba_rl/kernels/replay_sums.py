"""Recomputing sums and maxima from the level below: the device functions that end every change of priorities.

A block owns one top, so nodes and top follow each other with block barriers and no exchange between blocks. Each sum is
added in one fixed order (neighbours in a lane, then a butterfly over the lanes), whichever kernel asks for it.
"""

from functools import lru_cache

from numba import float64

from numba_rl import gpu
from numba_rl.gpu import cuda, float32, int32, uint32
from numba_rl.kernels.replay_layout import Layout


@lru_cache
def resum_top(layout: Layout, warps: int):
    """Device function for a block of `warps` warps that recomputes the listed nodes of its top, then the top."""
    lanes = layout.lanes
    leaf_fan, node_fan = layout.leaf_fan, layout.node_fan
    leaves_a_lane, nodes_a_lane = leaf_fan // lanes, node_fan // lanes

    @gpu.device
    def resum(top, listed, count, node_sums, node_peaks, leaves, sums, peaks, tops, top_peaks, warp, lane, scratch):
        """node_sums, node_peaks: the top's nodes in shared memory; listed[:count]: which of them to recompute. Barriers inside."""
        first = int32(int32(top) * int32(node_fan))
        i = int32(warp)
        while i < count:
            node = listed[uint32(i)]
            base = uint32(uint32(first + node) * uint32(leaf_fan) + uint32(lane * leaves_a_lane))
            total = float64(0)
            peak = float32(0)
            for k in range(leaves_a_lane):
                value = leaves[uint32(base + k)]
                total += float64(value)
                peak = max(peak, value)
            total = float64(gpu.warp_sum(total, scratch))
            peak = float32(gpu.warp_max(peak, scratch))
            if lane == int32(0):
                place = uint32(first + node)
                node_sums[uint32(node)] = total
                node_peaks[uint32(node)] = peak
                sums[place] = total
                peaks[place] = peak
            i = int32(i + warps)
        cuda.syncthreads()
        if warp == int32(0):
            total = float64(0)
            peak = float32(0)
            for k in range(nodes_a_lane):
                total += node_sums[uint32(lane * nodes_a_lane + k)]
                peak = max(peak, node_peaks[uint32(lane * nodes_a_lane + k)])
            total = float64(gpu.warp_sum(total, scratch))
            peak = float32(gpu.warp_max(peak, scratch))
            if lane == int32(0):
                tops[uint32(top)] = total
                top_peaks[uint32(top)] = peak

    return resum
