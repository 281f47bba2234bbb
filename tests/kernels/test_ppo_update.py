"""The kernels of the hand-written PPO update against float64: simulator here, the same sources on a GPU in test_fused_ppo."""

import numpy as np
import pytest
from reference import ppo as reference

from numba_rl import gpu
from numba_rl.kernels import adam, minibatch, ppo_loss, relu_grad
from numba_rl.rules.permutation import permuted

pytestmark = pytest.mark.skipif(not gpu.SIMULATED, reason="launches kernels on CPU arrays, which only the simulator can")


def to_pairs(values):
    """bf16 pairs (uint32 [M, C / 2]) of float32 [M, C], and the rounded values."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    halves = ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint32)
    return np.ascontiguousarray(halves[:, ::2] | (halves[:, 1::2] << 16)), (halves << 16).view(np.float32)


def from_pairs(pairs):
    """float32 [M, C] of bf16 pairs."""
    out = np.empty((pairs.shape[0], 2 * pairs.shape[1]), np.uint32)
    out[:, ::2] = (pairs & 0xFFFF) << 16
    out[:, 1::2] = pairs & 0xFFFF0000
    return out.view(np.float32)


def test_loss_and_gradients():
    random = np.random.default_rng(0)
    samples, actions, hidden, columns = 21, 5, 8, 16
    logits = np.zeros((samples, columns), np.float32)
    logits[:, :actions] = random.normal(size=(samples, actions))
    bias = np.zeros(columns, np.float32)
    bias[:actions] = random.normal(size=actions)
    pairs, rounded = to_pairs(np.maximum(random.normal(size=(samples, hidden)), 0))
    head = random.normal(size=hidden + 1).astype(np.float32)
    taken = random.integers(0, actions, samples).astype(np.int32)
    full = logits[:, :actions] + bias[:actions]
    log_pi = full - np.log(np.exp(full).sum(1, keepdims=True))
    old = (log_pi[np.arange(samples), taken] + random.normal(size=samples) * 0.3).astype(np.float32)
    old[3] -= 95  # a ratio that overflows float32
    advantages, returns = (random.normal(size=samples).astype(np.float32) for _ in range(2))
    moments = np.zeros((1, minibatch.MOMENT_BLOCKS, 2), np.float32)
    for part in range(minibatch.MOMENT_BLOCKS):
        first, stop = samples * part // minibatch.MOMENT_BLOCKS, samples * (part + 1) // minibatch.MOMENT_BLOCKS
        if stop > first:
            mean = advantages[first:stop].mean()
            moments[0, part] = mean, ((advantages[first:stop] - mean) ** 2).sum()
    settings = np.array([0.2, 0.5, 0.01, 1], np.float32)
    blocks, offset = 2, 3
    partial = np.full((blocks, offset + 2 * hidden + 1 + columns), 9, np.float32)
    logit_gradient, hidden_gradient = np.zeros((samples, columns // 2), np.uint32), np.zeros((samples, hidden // 2), np.uint32)
    sums, values = np.zeros((blocks, ppo_loss.SUMS), np.float32), np.zeros(samples, np.float32)
    kernel = ppo_loss.make_ppo_loss(actions, hidden // 2, lanes=4, warps=1)
    kernel[blocks, 4](logits, bias, pairs, head, taken, old, advantages, returns, moments, 0, settings, logit_gradient, hidden_gradient,
                      values, partial, offset, offset + columns, sums)  # fmt: skip
    parts, by_logits, by_hidden, by_head = reference.ppo_loss(full, rounded, head, taken, old, advantages, returns, 0.2, 0.5, 0.01)
    total = sums.sum(0)
    assert total[5] == samples
    np.testing.assert_allclose(values, rounded @ head[:-1] + head[-1], rtol=1e-4, atol=1e-5)
    for column, name in enumerate(("policy", "value", "entropy", "kl", "clipped")):
        assert total[column] / samples == pytest.approx(parts[name], rel=2e-5, abs=1e-6), name
    np.testing.assert_allclose(from_pairs(logit_gradient)[:, :actions], by_logits, rtol=0.01, atol=2e-5)
    assert not from_pairs(logit_gradient)[:, actions:].any()
    np.testing.assert_allclose(from_pairs(hidden_gradient), np.where(rounded > 0, by_hidden, 0), rtol=0.01, atol=2e-5)
    gathered = partial.sum(0)
    np.testing.assert_allclose(gathered[offset:][:actions], by_logits.sum(0), rtol=1e-4, atol=1e-5)
    expected = np.where(rounded > 0, by_hidden, 0).sum(0)
    np.testing.assert_allclose(gathered[offset + columns :][:hidden], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gathered[offset + columns + hidden :], by_head, rtol=1e-4, atol=1e-5)
    assert (partial[:, :offset] == 9).all(), "columns of other layers are left alone"


def test_relu_backward_and_bias_gradient():
    random = np.random.default_rng(1)
    gradient, _ = to_pairs(random.normal(size=(97, 24)))
    hidden, outputs = to_pairs(np.maximum(random.normal(size=(97, 24)), 0))
    expected = np.where(outputs > 0, from_pairs(gradient), 0)
    partial = np.zeros((3, 26), np.float32)
    relu_grad.make_relu_grad(lanes=4)[(2, 3), 4 * relu_grad.ROWS](gradient.view(np.uint64), hidden.view(np.uint64), partial, 2)
    np.testing.assert_array_equal(from_pairs(gradient), expected)
    np.testing.assert_allclose(partial[:, 2:].sum(0), expected.astype(np.float64).sum(0), rtol=1e-5, atol=1e-5)
    assert not partial[:, :2].any()


@pytest.mark.parametrize("poison", [None, "nan", "loss", "stop", "halted"])
def test_adam_clips_each_network_steps_and_skips(poison):
    random = np.random.default_rng(2)
    weights, weight_split, tail, tail_split, groups = 20, 12, 6, 4, 11
    n = weights + tail
    parameters, first = random.normal(size=n).astype(np.float32), random.normal(size=n).astype(np.float32)
    second = np.abs(random.normal(size=n)).astype(np.float32)
    gradient = random.normal(size=weights).astype(np.float32)
    partial = random.normal(size=(groups, tail)).astype(np.float32)
    whole = np.concatenate([gradient, partial.sum(0)]).astype(np.float64)
    if poison == "nan":
        gradient[7] = np.nan
    parts, shares = random.normal(size=(5, 3)).astype(np.float32), np.array([0.5, -2.0], np.float32)
    if poison == "loss":
        parts[4, 1] = np.inf
    stop, halted = (np.array([float(poison == name)], np.float32) for name in ("stop", "halted"))
    norm_kernel, adam_kernel = adam.make_kernels(lanes=8, warps=1)
    blocks = adam.norm_blocks(weights, weight_split, tail, tail_split)
    tail_gradient, squares, loss, left_out = (np.zeros(size, np.float32) for size in (tail, blocks, 1, 1))
    norm_kernel[blocks + 1, 8](gradient, partial, tail_gradient, weight_split, tail_split, squares, parts, shares, loss)
    assert poison == "loss" or loss[0] == pytest.approx(float((parts[:, :2] * shares).sum()), rel=1e-5)
    counts = np.array([4, 0, 0, 2], np.int64)
    settings = np.array([1e-2, 0.9, 0.999, 1e-5, 0.3], np.float32)
    before = parameters.copy(), first.copy(), second.copy()
    shadow, norms = np.zeros(n // 2, np.uint32), np.zeros(2, np.float32)
    adam_kernel[2, 8](parameters, first, second, gradient, tail_gradient, weight_split, tail_split, squares, loss, settings, np.float32(0.5),
                      stop, halted, left_out, counts, 0, norms, shadow)  # fmt: skip
    if poison:
        for now, then in zip((parameters, first, second), before, strict=True):
            np.testing.assert_array_equal(now, then)
        assert counts.tolist() == ([4, 4, 1, 3] if poison in ("nan", "loss") else [4, 4, 0, 2])
        assert left_out[0] == 1
        return
    assert left_out[0] == 0
    networks = [np.r_[0:weight_split, weights : weights + tail_split], np.r_[weight_split:weights, weights + tail_split : n]]
    for network, norm in zip(networks, norms, strict=True):
        assert norm == pytest.approx(np.sqrt((whole[network] ** 2).sum()), rel=1e-5)
        old = [part[network].astype(np.float64) for part in before]
        expected = reference.adam(*old, whole[network], 5, 1e-2, 0.9, 0.999, 1e-5, 0.5, 0.3)
        for now, then in zip((parameters, first, second), expected, strict=True):
            np.testing.assert_allclose(now[network], then, rtol=2e-5, atol=1e-6)
    assert counts.tolist() == [4, 5, 0, 0]
    np.testing.assert_allclose(from_pairs(shadow[None])[0], parameters, rtol=2**-8)


@pytest.mark.parametrize(("features", "width"), [(5, 8), (17, 24)], ids=["two rows side by side", "rows wider than a warp"])
def test_minibatches_cover_the_rollout_once(features, width):
    random = np.random.default_rng(3)
    bars, samples, parts = 30, 24, 3
    table_values = np.zeros((bars, width), np.float32)
    table_values[:, :features] = random.normal(size=(bars, features))
    table, rounded = to_pairs(table_values)
    bar = random.integers(0, bars, samples).astype(np.int32)
    account = random.normal(size=(samples, 3)).astype(np.float32)
    actions = np.arange(samples, dtype=np.int32)
    floats = [random.normal(size=samples).astype(np.float32) for _ in range(3)]
    turn = np.array([7], np.int64)
    pick, fill, states, moments = minibatch.make_kernels(lanes=4)
    warps = -(-samples // minibatch.rows_a_warp(width // 4, 4))
    quads = table.view(np.uint64)
    rows = samples // parts
    seen = []
    statistics = np.zeros((parts, minibatch.MOMENT_BLOCKS, 2), np.float32)
    moments[(parts, minibatch.MOMENT_BLOCKS), 4](floats[1], 11, turn, rows, statistics)
    for part in range(parts):
        x = np.zeros((rows, width // 4), np.uint64)
        outputs = [np.zeros(rows, np.int32), *(np.zeros(rows, np.float32) for _ in range(3))]
        source = np.zeros(rows, np.int64)
        pick[2, 4](actions, *floats, 11, turn, part, source, *outputs)
        fill[warps, 4](quads, bar, account, source, features, x)
        picked = outputs[0]
        assert picked.tolist() == [permuted(part * rows + w, samples, 11, 7) for w in range(rows)]
        expected = np.concatenate([rounded[bar[picked], :features], to_pairs(np.pad(account[picked], ((0, 0), (0, 1))))[1][:, :3]], 1)
        np.testing.assert_array_equal(from_pairs(x.view(np.uint32)), np.pad(expected, ((0, 0), (0, width - features - 3))))
        for output, source in zip(outputs[1:], floats, strict=True):
            np.testing.assert_array_equal(output, source[picked])
        advantages = floats[1][picked].astype(np.float64)
        mean, inverse = minibatch._combined.cpu(statistics, part, rows)
        assert (mean, inverse) == pytest.approx((advantages.mean(), 1 / (advantages.std(ddof=1) + 1e-8)), rel=1e-4)
        seen += picked.tolist()
    assert sorted(seen) == list(range(samples))
    for start in (0, 7):
        x = np.zeros((samples, width // 4), np.uint64)
        states[warps, 4](quads, bar, account, features, start, x)
        found = from_pairs(x.view(np.uint32))
        np.testing.assert_array_equal(found[: samples - start, :features], rounded[bar[start:], :features])
        np.testing.assert_allclose(found[: samples - start, features : features + 3], account[start:], rtol=2**-8)
        assert not found[samples - start :].any()
