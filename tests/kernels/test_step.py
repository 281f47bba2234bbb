"""The stepper of all slots: CPU path, kernel (simulated without a GPU) and plain Python agree, and episodes are kept by the book."""

import math

import numpy as np
import pytest
from reference.games import EVERYTHING, PRICES, WILD, config
from rules.driver import random_bars

from numba_rl.config import MarketConfig
from numba_rl.evaluate.ledger import Ledger
from numba_rl.gpu import SIMULATED, cuda
from numba_rl.kernels.slots import BAR, CLOCK_FIELDS, EPISODE, PLAYED, STEP
from numba_rl.kernels.step import TERMINATED, Launch, steppers
from numba_rl.rules.barrier import BARRIER_FIELDS
from numba_rl.rules.diversity import WINDOW_FIELDS
from numba_rl.rules.parameters import rules_of
from numba_rl.rules.philox import ACTION, uniform
from numba_rl.rules.portfolio import PORTFOLIO_FIELDS
from numba_rl.rules.shaping import SHAPING_FIELDS

FEATURES, ACTIONS = 3, 45
INTEGERS = ("actions", "bars", "ends", "finals", "status", "clock", "window")


class Arena:
    """Slots and a launch's arrays, stepped on the CPU or by the kernel."""

    def __init__(self, config, prices, slots, steps, *, on="cpu", start=0, stop=None, seed=1, threads=4, base=None):
        self.rules = rules_of(config, 525_600.0)
        self.on, self.threads, self.compiled = on, threads, steppers(base)
        self.launch = Launch(seed, start, len(prices) if stop is None else stop, 0, 0, 1.0)
        self.prices = np.ascontiguousarray(prices)
        self.features = np.random.default_rng(9).standard_normal((len(prices), FEATURES)).astype(np.float32)
        self.portfolio = np.zeros((slots, PORTFOLIO_FIELDS))
        self.barrier = np.zeros((slots, BARRIER_FIELDS))
        self.window = np.zeros((slots, WINDOW_FIELDS), np.int64)
        self.shaping = np.zeros((slots, SHAPING_FIELDS))
        self.clock = np.zeros((slots, CLOCK_FIELDS), np.int64)
        self.states = np.zeros((steps + 1, slots, FEATURES + 3), np.float32)
        self.final_states = np.zeros((steps + 1, slots, FEATURES + 3), np.float32)
        self.finals = np.zeros(slots, np.int32)
        self.actions, self.bars = (np.zeros((steps, slots), np.int32) for _ in range(2))
        self.log_probs, self.rewards = (np.zeros((steps, slots), np.float32) for _ in range(2))
        self.ends = np.zeros((steps, slots), np.int16)
        self.status = np.zeros(slots, np.int32)
        self.slots = (self.portfolio, self.barrier, self.window, self.shaping, self.clock)
        self.call(self.compiled.start, self.compiled.start_kernel, *self.slots, self.prices, self.features, self.states, 0, self.launch, self.rules)

    def call(self, on_cpu, kernel, *arguments):
        if self.on == "cpu":
            on_cpu(*arguments)
            return
        if SIMULATED:
            kernel[-(-len(self.clock) // self.threads), self.threads](*arguments)
            return
        moved = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments]
        kernel[-(-len(self.clock) // self.threads), self.threads](*moved)
        for here, there in zip(arguments, moved, strict=True):
            if isinstance(here, np.ndarray):
                there.copy_to_host(here)

    def play(self, logits, launch=None):
        """One launch: logits float32 [L, slots, A]."""
        self.finals[:] = 0
        self.status[:] = 0
        for t, row in enumerate(np.ascontiguousarray(logits, np.float32)):
            self.call(
                self.compiled.step, self.compiled.step_kernel, t if self.on == "cpu" else np.array([t], np.int32), row, *self.slots,
                self.prices, self.features, self.states, self.final_states, self.finals, self.actions, self.log_probs, self.rewards,
                self.bars, self.ends, self.status, launch or self.launch, self.rules,
            )  # fmt: skip
        return self

    def force(self, actions):
        """One launch of given actions [L, slots]."""
        self.actions[:] = actions
        return self.play(np.zeros((len(actions), len(self.clock), 1)), self.launch._replace(given=1))


def logits(steps, slots, seed=0, scale=1.5):
    return np.random.default_rng(seed).normal(0, scale, (steps, slots, ACTIONS)).astype(np.float32)




def same(first, second, money=1e-9, rewards=1e-4):
    for name in INTEGERS:
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    for name in ("portfolio", "barrier", "shaping"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=money, atol=money, err_msg=name)
    np.testing.assert_allclose(first.rewards, second.rewards, rtol=rewards, atol=rewards)
    np.testing.assert_allclose(first.log_probs, second.log_probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first.states, second.states, rtol=1e-6, atol=1e-6)
    used = max(int(first.finals.max()), 1)
    np.testing.assert_allclose(first.final_states[:used], second.final_states[:used], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, EVERYTHING, {"leverage": 30.0, "fill_at": "close"}], ids=["default", "everything", "ruin"])
def test_kernel_and_cpu_agree(settings):
    prices = WILD if "leverage" in settings else PRICES
    arenas = [Arena(config(**settings), prices, 5, 14, on=on).play(logits(14, 5)) for on in ("cpu", "kernel")]
    same(*arenas)
    assert (arenas[0].ends > 0).any() and (arenas[0].ends == TERMINATED).any() == ("leverage" in settings)


@pytest.mark.gpu
def test_kernel_and_cpu_agree_on_a_gpu():
    prices = random_bars(np.random.default_rng(5), 3000, 0.003)
    for settings in ({}, EVERYTHING, {"leverage": 30.0}):
        cpu, gpu = (Arena(config(length=50, **settings), prices, 500, 128, on=on, threads=64) for on in ("cpu", "kernel"))
        actions = np.random.default_rng(6).integers(0, ACTIONS, (128, 500))
        same(cpu.force(actions), gpu.force(actions))
        drawn = logits(20, 500)
        a, b = (Arena(config(length=50, **settings), prices, 500, 20, on=on).play(drawn) for on in ("cpu", "kernel"))
        assert (a.actions != b.actions).mean() < 1e-4


def test_threads_and_launch_lengths_change_nothing():
    whole = Arena(config(**EVERYTHING), PRICES, 5, 12).play(logits(12, 5))
    parts = Arena(config(**EVERYTHING), PRICES, 5, 4)
    for part in range(3):
        parts.play(logits(12, 5)[4 * part : 4 * part + 4])
        rows = slice(4 * part, 4 * part + 4)
        assert np.array_equal(parts.actions, whole.actions[rows]) and np.array_equal(parts.rewards, whole.rewards[rows])
        assert np.array_equal(parts.bars, whole.bars[rows]) and np.array_equal(parts.states[:-1], whole.states[rows])
        parts.states[0] = parts.states[-1]
    for name, array in zip(("portfolio", "barrier", "window", "shaping", "clock"), parts.slots, strict=True):
        assert np.array_equal(array, getattr(whole, name)), name
    alone = Arena(config(**EVERYTHING), PRICES, 5, 12, on="kernel", threads=2).play(logits(12, 5))
    assert np.array_equal(alone.actions, whole.actions) and np.array_equal(alone.bars, whole.bars)


def test_plain_python_plays_the_same_game():
    """Draws by a float64 CDF, fills and money by the reference ledger, rewards and states by their formulas."""
    settings = {"spread_bps": 5.0, "leverage": 12.0}
    market = MarketConfig(**settings)
    steps, slots, drawn = 30, 6, logits(30, 6, seed=3)
    arena = Arena(config(length=9, **settings), WILD, slots, steps).play(drawn)
    ruined = 0
    for e in range(slots):
        ledger, step, finals = Ledger(market), 0, 0
        for t in range(steps):
            bar = arena.bars[t, e]
            assert np.array_equal(arena.states[t, e, :FEATURES], arena.features[bar])
            equity = ledger.equity(WILD[bar, 3])
            np.testing.assert_allclose(arena.states[t, e, FEATURES:], [equity / 1e6, ledger.share(WILD[bar, 3]), 5e-4], rtol=1e-5, atol=1e-7)
            mass = np.exp(drawn[t, e].astype(np.float64) - drawn[t, e].max())
            edges = np.cumsum(mass) / mass.sum()
            action = int(np.searchsorted(edges, uniform(1, ACTION, e, 0, t, 0), side="right"))
            assert arena.actions[t, e] == action
            assert arena.log_probs[t, e] == pytest.approx(math.log(mass[action] / mass.sum()), abs=1e-5)
            played = ledger.step(action, WILD[bar, 3], WILD[bar + 1])
            ratio = max(played.equity_after / played.equity_before, 1e-3)
            assert arena.rewards[t, e] == pytest.approx(1000 * math.log(ratio), rel=1e-5, abs=1e-5)
            step += 1
            if played.terminated:
                ruined += 1
                assert arena.ends[t, e] == TERMINATED
            elif step == 9 or bar + 2 == len(WILD):
                finals += 1
                assert arena.ends[t, e] == finals
                truth = [ledger.equity(WILD[bar + 1, 3]) / 1e6, ledger.share(WILD[bar + 1, 3]), 5e-4]
                np.testing.assert_allclose(arena.final_states[finals - 1, e, FEATURES:], truth, rtol=1e-5, atol=1e-7)
                assert np.array_equal(arena.final_states[finals - 1, e, :FEATURES], arena.features[bar + 1])
            else:
                assert arena.ends[t, e] == 0
                continue
            ledger, step = Ledger(market), 0
    assert ruined > 0 and (arena.ends > 0).any()


@pytest.mark.parametrize(("length", "start", "stop"), [(5, 3, 30), (500, 10, 17), (26, 3, 30), (1, 0, 2)])
def test_episodes_stay_in_their_range_and_never_wrap(length, start, stop):
    steps, slots = 60, 8
    arena = Arena(config(length=length), PRICES, slots, steps, start=start, stop=stop).force(np.zeros((steps, slots), int))
    assert arena.bars.min() >= start and arena.bars.max() + 1 < stop  # a step is marked at the bar after its decision
    ended = arena.ends[:-1] != 0
    assert np.all((arena.bars[1:] == arena.bars[:-1] + 1) | ended)
    for e in range(slots):
        lengths = np.diff(np.flatnonzero(arena.ends[:, e]), prepend=-1)
        assert np.all(lengths == min(length, stop - 1 - start))
    assert np.array_equal(arena.finals, (arena.ends > 0).sum(0)) and np.array_equal(arena.clock[:, EPISODE], arena.finals)
    assert np.all(arena.clock[:, PLAYED] == steps) and np.all(arena.clock[:, STEP] < max(length, 1))
    firsts = arena.bars[0]
    assert len(set(firsts.tolist())) > 1 or stop - start <= length + 1


def test_starts_are_spread_over_the_range():
    arena = Arena(config(length=4), PRICES, 300, 1, start=5, stop=20)
    assert np.unique(arena.clock[:, BAR]).tolist() == list(range(5, 16))  # the last whole episode starts at 20 - 1 - 4
    assert np.bincount(arena.clock[:, BAR]).max() < 60
    assert not np.array_equal(arena.clock[:, BAR], Arena(config(length=4), PRICES, 300, 1, start=5, stop=20, seed=2).clock[:, BAR])


def test_a_new_episode_starts_with_a_fresh_account_but_keeps_its_shaping():
    arena = Arena(config(length=5, reward={"shaping": "ema", "diversity": 1.0, "barrier": 1.0}), PRICES, 2, 5).force(np.full((5, 2), 37))
    assert np.all(arena.ends[-1] == 1)
    assert np.all(arena.portfolio[:, 0] == 1e6) and np.all(arena.portfolio[:, 1] == 0) and np.all(arena.portfolio[:, 9] == 1e6)
    assert np.all(arena.window == 0) and np.all(arena.barrier == 0) and np.all(arena.shaping[:, 1] > 0)
    np.testing.assert_allclose(arena.states[-1, :, FEATURES:], [[1.0, 0.0, 1e-4]] * 2)


@pytest.mark.filterwarnings("ignore:invalid value")  # the simulator subtracts infinities by NumPy
@pytest.mark.parametrize("on", ["cpu", "kernel"])
def test_a_broken_policy_is_flagged_with_its_first_step(on):
    bad = logits(6, 4)
    bad[2:, 1, 7] = np.nan
    bad[4, 2] = -np.inf
    arena = Arena(config(length=50), PRICES, 4, 6, on=on).play(bad)
    assert arena.status.tolist() == [0, 3, 5, 0]
    assert np.all(arena.actions[2:, 1] == 19) and np.all(np.isnan(arena.log_probs[2:, 1]))  # flat, market, normal


def test_greedy_and_given_actions():
    drawn = logits(6, 4)
    greedy = Arena(config(length=50), PRICES, 4, 6)
    greedy.play(drawn, greedy.launch._replace(greedy=1))
    assert np.array_equal(greedy.actions, drawn.argmax(-1)) and not greedy.log_probs.any()
    given = Arena(config(length=50), PRICES, 4, 6).force(drawn.argmax(-1))
    assert np.array_equal(given.rewards, greedy.rewards)


def test_temperature_sharpens_the_draw():
    drawn = logits(10, 20)
    arena = Arena(config(length=50), PRICES, 20, 10)
    arena.play(drawn, arena.launch._replace(inverse_temperature=50.0))
    assert (arena.actions == drawn.argmax(-1)).mean() > 0.95
