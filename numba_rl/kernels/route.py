"""Routing the values of 5 exposures to the 45 actions: each exposure's value goes to the action that rules.routing picks for it.

q float32 [N, 5]; held float64 [N], the exposure held; volatility float32 [N], feature 41 unscaled; out float32 [N, 45], -inf
where no exposure leads to. Greedy and softmax choices over the 45 are then those over the exposures. Launch: a thread a row.
"""

import math

from numba import njit
from numpy import float32

from numba_rl.gpu import blocks_for, both, cuda, jit, rebound
from numba_rl.kernel_cache import cached
from numba_rl.rules.actions import ACTIONS, EXPOSURES
from numba_rl.rules.routing import route


@both()
def route_row(n, q, held, volatility, out):
    """Row n."""
    for action in range(ACTIONS):
        out[n, action] = float32(-math.inf)
    for exposure in range(EXPOSURES):
        out[n, int(route(exposure, held[n], volatility[n]))] = q[n, exposure]


def _route_all(q, held, volatility, out):
    for n in range(q.shape[0]):
        route_row(n, q, held, volatility, out)


def _route_on_gpu(q, held, volatility, out):
    n = cuda.grid(1)
    if n < q.shape[0]:
        route_row(n, q, held, volatility, out)


route_cpu = cached(njit(error_model="numpy")(rebound(_route_all, {"route_row": route_row.cpu})))
route_kernel = cached(jit(rebound(_route_on_gpu, {"route_row": route_row.device})))


def launch_route(q, held, volatility, out, stream=0, threads=64):
    """Fill `out` on a GPU or in the simulator."""
    route_kernel[blocks_for(q.shape[0], threads), threads, stream](q, held, volatility, out)
