"""GAE on a GPU: the scan, the thread-a-slot kernel and plain torch, each in a CUDA graph; outputs compared first.

    python profiles/bench/gae.py [--json FILE]

Times are medians of CUDA events around graph replays of 20 launches, divided by 20, warm.
"""

import argparse
import json
import statistics

import torch

from numba_rl.gpu import stream, view
from numba_rl.kernels.gae import launch_gae
from numba_rl.kernels.gae_scan import launch_gae_scan

SIZES = ((500, 128), (512, 4096), (128, 65_536))
REPEAT = 20


def captured(function, repeat):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(repeat):
            function()
    return graph


def median_us(graph, repeat):
    times = []
    for _ in range(23):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / repeat)
    return statistics.median(times[3:])


def plain(rewards, values, ends, final_values, advantages, returns):
    going = (ends == 0).float()
    following = values[1:] * going + torch.where(ends > 0, final_values.gather(0, (ends.long() - 1).clamp_min(0)), 0.0)
    delta = rewards + 0.99 * following - values[:-1]
    running = torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        running = delta[t] + 0.99 * 0.95 * going[t] * running
        advantages[t] = running
    torch.add(advantages, values[:-1], out=returns)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for steps, slots in SIZES:
        random = torch.Generator("cuda").manual_seed(0)
        new = dict(device="cuda", generator=random)
        rewards, values = torch.randn(steps, slots, **new), torch.randn(steps + 1, slots, **new)
        final_values = torch.randn(2, slots, **new)
        ends = torch.zeros(steps, slots, dtype=torch.int16, device="cuda")
        ends[steps // 3] = 1
        ends[steps // 2, ::3] = -1
        inputs = rewards, values, ends, final_values
        results, times = {}, {}
        for name, launcher in (("scan", launch_gae_scan), ("thread a slot", launch_gae), ("plain torch", None)):
            outputs = torch.zeros_like(rewards), torch.zeros_like(rewards)
            if launcher is None:
                graph, repeat = captured(lambda: plain(*inputs, *outputs), 1), 1
            else:
                def call(launcher=launcher, outputs=outputs):
                    at = stream(torch.cuda.current_stream().cuda_stream)
                    launcher(*map(view, inputs), 0.99, 0.95, *map(view, outputs), stream=at)

                graph, repeat = captured(call, REPEAT), REPEAT
            graph.replay()
            torch.cuda.synchronize()
            results[name] = [output.clone() for output in outputs]
            times[name] = median_us(graph, repeat)
        for name in ("scan", "thread a slot"):
            for one, other in zip(results[name], results["plain torch"], strict=True):
                assert (one - other).abs().max() < 1e-3, name
        rows.append({"steps": steps, "slots": slots, **{f"{name}_us": round(time, 2) for name, time in times.items()}})
        print(rows[-1], flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
