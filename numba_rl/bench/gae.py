"""Generalised advantage estimation: the scan on a GPU, the parallel loop on the CPU, beside a loop of torch operations."""

from collections.abc import Iterator, Sequence

import torch

from numba_rl.bench import plain
from numba_rl.bench.rows import Row, require
from numba_rl.bench.timing import Clock
from numba_rl.gpu import stream, view
from numba_rl.kernels.gae import gae_cpu
from numba_rl.kernels.gae_scan import launch_gae_scan

SIZES = {kind: ((128, 500), (4096, 512), (65_536, 128)) for kind in ("cuda", "cpu")}
GOALS = {(128, 500): 15e-6, (4096, 512): 20e-6, (65_536, 128): 80e-6}
TIMED = 2  # of each size
GAMMA, LAMBDA = 0.99, 0.95
REPEAT = 20  # launches in a graph


def run(clock: Clock, sizes: Sequence[tuple[int, ...]]) -> Iterator[Row]:
    """A row for each size (episodes, steps)."""
    device = clock.device
    for slots, steps in sizes:
        random = torch.Generator(device).manual_seed(0)
        rewards, values = (torch.randn(rows, slots, device=device, generator=random) for rows in (steps, steps + 1))
        final_values = torch.randn(2, slots, device=device, generator=random)
        ends = torch.zeros(steps, slots, dtype=torch.int16, device=device)
        ends[steps // 3] = 1
        ends[steps // 2, ::3] = -1
        inputs = rewards, values, ends, final_values
        outputs, naive = ([torch.zeros_like(rewards) for _ in range(2)] for _ in range(2))

        def ours(inputs=inputs, outputs=outputs):
            if device.type == "cpu":
                scalar = inputs[0].numpy().dtype.type
                gae_cpu(*(part.numpy() for part in inputs), scalar(GAMMA), scalar(LAMBDA), *(part.numpy() for part in outputs))
            else:
                at = stream(torch.cuda.current_stream().cuda_stream)
                launch_gae_scan(*map(view, inputs), GAMMA, LAMBDA, *map(view, outputs), stream=at)

        ours()
        exact = [torch.zeros_like(rewards, dtype=torch.float64) for _ in range(2)]
        plain.gae(rewards.double(), values.double(), ends, final_values.double(), GAMMA, LAMBDA, *exact)
        error = max(float((one - other).abs().max()) for one, other in zip(outputs, exact, strict=True))
        work = f"advantages {slots:,} x {steps}"
        checks = require(error < 1e-4, work, {"error": error})
        del exact
        seconds = clock.time(ours, repeat=REPEAT)
        naive_seconds = clock.time(lambda inputs=inputs, naive=naive: plain.gae(*inputs, GAMMA, LAMBDA, *naive))
        yield Row(work, seconds, slots * steps, "steps", naive_seconds, GOALS.get((slots, steps)), checks)
