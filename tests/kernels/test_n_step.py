"""n-step transitions across launches against the definition, on the CPU path and as a kernel in the simulator."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reference.dqn import n_step

from numba_rl import gpu
from numba_rl.collect.batched import PORTFOLIO_FEATURES, Rollout
from numba_rl.collect.experience import Experience
from numba_rl.kernels import n_step as kernel
from numba_rl.replay import TERMINATED, TRUNCATED

WIDTH, GAMMA = 3, 0.9


def episodes(launches, steps, slots, seed):
    """Rollouts whose states tell where they come from: (slot, step played, kind) with kind 0 for rows, 1 for final states."""
    rng = np.random.default_rng(seed)
    for launch in range(launches):
        played = launch * steps + np.arange(steps + 1)
        states = np.zeros((steps + 1, slots, WIDTH), np.float32)
        states[..., 0], states[..., 1] = np.arange(slots), played[:, None]
        ends, finals = np.zeros((steps, slots), np.int16), np.zeros((steps + 1, slots, WIDTH), np.float32)
        for e in range(slots):
            number = 0
            for t in range(steps):
                draw = rng.random()
                if draw < 0.1:
                    ends[t, e] = -1
                elif draw < 0.25:
                    finals[number, e] = e, played[t] + 1, 1
                    number += 1
                    ends[t, e] = number
        rewards = rng.standard_normal((steps, slots)).astype(np.float32)
        actions = rng.integers(0, 45, (steps, slots)).astype(np.int32)
        parts = {"states": states, "actions": actions, "rewards": rewards, "ends": ends, "final_states": finals}
        tensors = {name: torch.from_numpy(value) for name, value in parts.items()}
        yield Rollout(**tensors, log_probs=None, bars=None, finals=None, status=None)


def collector(steps, slots):
    features = torch.zeros(1, WIDTH - PORTFOLIO_FEATURES)
    return SimpleNamespace(device=torch.device("cpu"), steps=steps, episodes=slots, features=features)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
@pytest.mark.parametrize(("steps", "slots"), [(4, 3), (7, 2), (1, 2), (2, 1)])
def test_every_step_is_stored_once_with_its_return(n, steps, slots):
    launches = 6
    experience = Experience(collector(steps, slots), n, GAMMA)
    rollouts = list(episodes(launches, steps, slots, seed=n * 100 + steps))
    stored, count = {}, 0
    for rollout in rollouts:
        for state, following, action, reward, discount, flag in zip(*(t.clone() for t in experience.add(rollout, rollout.rewards)), strict=True):
            stored[int(state[0]), int(state[1])] = (following.tolist(), int(action), float(reward), float(discount), int(flag))
            count += 1
    rewards, ends, actions = (np.concatenate([getattr(r, name).numpy() for r in rollouts]) for name in ("rewards", "ends", "actions"))
    total = launches * steps
    for e in range(slots):
        for t, wanted in enumerate(n_step(rewards[:, e].astype(float), ends[:, e], n, GAMMA)):
            if t + n > total:
                assert (e, t) not in stored  # it waits, even where its episode is over
                continue
            following, action, reward, discount, flag = stored[e, t]
            value, gamma_k, k, end = wanted
            assert action == actions[t, e]
            assert reward == pytest.approx(value, rel=1e-5, abs=1e-6) and discount == pytest.approx(gamma_k, rel=1e-6)
            assert flag == (TERMINATED if end < 0 else TRUNCATED if end > 0 else 0)
            if end >= 0:
                assert following == [e, t + k, 1 if end > 0 else 0]
    assert count == len(stored) == max(total - n + 1, 0) * slots


def test_what_waits_survives_a_save():
    steps, slots, n = 4, 2, 3
    one, other = (Experience(collector(steps, slots), n, GAMMA) for _ in range(2))
    first, second = episodes(2, steps, slots, 0)
    one.add(first, first.rewards)
    other.load({name: tensor.clone() for name, tensor in one.state().items()})
    for found, wanted in zip(other.add(second, second.rewards), one.add(second, second.rewards), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.skipif(not gpu.SIMULATED, reason="launches kernels on CPU arrays, which only the simulator can")
@pytest.mark.parametrize(("held", "lanes"), [(0, 1), (2, 2), (1, 4)])
def test_the_kernel_gives_the_same(held, lanes):
    steps, slots, n = 5, 3, 3
    before, rollout = episodes(2, steps, slots, 4)
    tail = [a.numpy()[-2:].copy() for a in (before.states[:-1], before.states[1:], before.actions, before.rewards, before.ends)]
    launch = [t.numpy() for t in (rollout.states, rollout.final_states, rollout.actions, rollout.rewards, rollout.ends)]
    count = (held + steps - n + 1) * slots
    outs = []
    for run in (kernel.transitions_cpu, lambda *a: kernel.launch_transitions(*a, lanes=lanes, threads=8)):
        out = [np.zeros((count, WIDTH), np.float32), np.zeros((count, WIDTH), np.float32), np.zeros(count, np.int32)]
        out += [np.zeros(count, np.float32), np.zeros(count, np.float32), np.zeros(count, np.int32)]
        run(count, n, GAMMA, held, tail, launch, out)
        outs.append(out)
    for one, other in zip(*outs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
