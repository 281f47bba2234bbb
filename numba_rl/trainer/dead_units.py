"""The share of hidden units that are 0 for every state they are shown: ReLUs that no gradient reaches any more."""

import torch
from torch import nn

ROWS = 2048  # states looked at, spread evenly over those given


@torch.no_grad()
def dead_units(network: nn.Module, states: torch.Tensor) -> float:
    """states float32 [S, F + 3], on the network's device. nan where the network has no hidden layer.

    A hidden unit is an output of a Linear layer that is none of the network's outputs; it is dead where its pre-activation is never above 0.
    """
    hidden = [layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and not name.endswith("output")]
    alive: dict[nn.Module, torch.Tensor] = {}

    def look(layer, _inputs, output):
        alive[layer] = (output > 0).reshape(-1, output.shape[-1]).any(0)

    hooks = [layer.register_forward_hook(look) for layer in hidden]
    try:
        network(states)
    finally:
        for hook in hooks:
            hook.remove()
    seen = torch.cat(list(alive.values())) if alive else torch.zeros(0, dtype=torch.bool)
    return float((~seen).float().mean()) if len(seen) else float("nan")


def seen_states(collector) -> torch.Tensor:
    """States float32 [<= 2 ROWS, F + 3] of the collector's last rollout, evenly spread over it."""
    rollout = collector.rollout
    samples = rollout.bars.numel()
    picked = torch.arange(0, samples, max(1, samples // ROWS), device=rollout.bars.device)
    if not hasattr(rollout, "account"):
        return rollout.states[:-1].reshape(samples, -1)[picked]
    accounts = rollout.account[:-1].reshape(samples, -1)[picked]  # the fused collector keeps no features but their bars
    return torch.cat([collector.features[rollout.bars.reshape(-1)[picked].long()], accounts], dim=1)
