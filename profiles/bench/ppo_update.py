"""The written-out PPO update, captured, beside autograd in plain torch; gradients are checked first (tests/trainer).

    python profiles/bench/ppo_update.py [--json FILE]

Times are medians of CUDA events around graph replays, warm. Needs an NVIDIA GPU of compute capability 8.0 or newer.
"""

import argparse
import json
import statistics

import torch
from torch import nn

from numba_rl.config import PpoConfig
from numba_rl.trainer.fused_update import GROUPS, FusedUpdate

SIZES = {"128 x 500": 64_000, "4,096 x 128": 524_288}


def networks(device):
    def layers(sizes):
        return [nn.Linear(a, b).to(device) for a, b in zip(sizes[:-1], sizes[1:], strict=True)]

    return layers([54, 128, 64, 45]), layers([54, 512, 384, 256, 128, 64, 1])


def captured(function, warm=2):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        function()
    return graph


def median_ms(run, repeats=20):
    times = []
    for _ in range(3):
        run()
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def kernel_table(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return profile.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60)


def data_of(samples, bars=20_000):
    random = torch.Generator(device="cuda").manual_seed(0)
    new = dict(device="cuda", generator=random)
    account = torch.stack([1 + 0.1 * torch.randn(samples, **new), torch.randn(samples, **new), torch.full((samples,), 1e-4, device="cuda")], 1)
    return (
        torch.randn(bars, 51, **new),
        torch.randint(0, bars, (samples,), dtype=torch.int32, **new),
        account.contiguous(),
        torch.randint(0, 45, (samples,), dtype=torch.int32, **new),
        torch.full((samples,), -3.8, device="cuda") + 0.1 * torch.randn(samples, **new),
        torch.randn(samples, **new),
        torch.randn(samples, **new),
    )


def plain_torch(samples, table, bars, account, actions, old, advantages, returns, config):
    actor, critic = networks("cuda")
    modules = [nn.Sequential(*[part for layer in net[:-1] for part in (layer, nn.ReLU())], net[-1]) for net in (actor, critic)]
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5, capturable=True, fused=True)
    states = torch.cat([table[bars.long()], account], 1)

    def update():
        for _ in range(config.epochs):
            for part in torch.randperm(samples, device="cuda").chunk(config.minibatches):
                a = advantages[part]
                a = (a - a.mean()) / (a.std() + 1e-8)
                log_pi = torch.log_softmax(modules[0](states[part]), -1)
                ratio = (log_pi.gather(1, actions[part].long()[:, None])[:, 0] - old[part]).exp()
                policy = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                entropy = -(log_pi.exp() * log_pi).sum(-1).mean()
                value = (modules[1](states[part])[:, 0] - returns[part]).square().mean()
                loss = policy + config.value_coef * value - config.entropy_coef * entropy
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
                optimizer.step()

    return update


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--profile", action="store_true", help="print the kernels of one captured update by time")
    parser.add_argument("--groups", type=int, default=GROUPS, help="rows of partial sums")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    config, rows = PpoConfig(), []
    for label, samples in SIZES.items():
        table, *data = data_of(samples)
        actor, critic = networks("cuda")
        update = FusedUpdate(actor, critic, table, config, samples, seed=0, groups=options.groups)
        graph = captured(lambda: update.update(*data))
        values = torch.zeros(samples, device="cuda")
        critic_graph = captured(lambda: update.critic_values(data[0], data[1], values))
        ours = median_ms(graph.replay)
        assert int(update.counts[2]) == 0 and torch.isfinite(update.weights).all()
        critic_ms = median_ms(critic_graph.replay)
        if options.profile:
            print(kernel_table(graph.replay), flush=True)
        plain = captured(plain_torch(samples, table, *data, config))
        rows.append(
            {"size": label, "samples": samples, "update_ms": ours, "critic_ms": critic_ms, "plain_torch_graph_tf32_ms": median_ms(plain.replay)}
        )
        print(rows[-1], flush=True)
        del graph, critic_graph, plain, update
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
