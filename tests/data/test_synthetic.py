"""Synthetic markets: their laws, their extremes, and the files that they are written to."""

import numpy as np
import pytest
from scipy import stats

from numba_rl.data.bars import read_bars
from numba_rl.data.synthetic import DEFAULTS, fill_probability, generate
from numba_rl.data.write import SUFFIXES, write_bars
from numba_rl.errors import ConfigError, UserError

KINDS = list(DEFAULTS)
BARS = 100_000


@pytest.fixture(scope="module")
def drawn():
    return {kind: generate(kind, BARS, seed=5) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_bars_are_consistent(drawn, kind):
    bars = drawn[kind].bars
    assert len(bars) == BARS and bars.bars_per_year == 525_600 and bars.interval_ns == 60_000_000_000
    assert np.all(np.diff(bars.timestamp) == bars.interval_ns)
    assert np.array_equal(bars.open[1:], bars.close[:-1])
    assert np.all(bars.low <= np.minimum(bars.open, bars.close)) and np.all(bars.high >= np.maximum(bars.open, bars.close))
    assert np.all(bars.low > 0) and np.all(np.isfinite(bars.prices)) and np.all(bars.volume >= 0) and bars.volume.std() > 0
    assert np.all(np.isfinite(drawn[kind].hidden)) and len(drawn[kind].hidden) == BARS


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(drawn, kind):
    again, other = generate(kind, BARS, seed=5), generate(kind, BARS, seed=6)
    assert again.bars.digest() == drawn[kind].bars.digest() and np.array_equal(again.hidden, drawn[kind].hidden)
    assert other.bars.digest() != again.bars.digest()


def test_the_random_walk_is_a_martingale_whose_volatility_clusters(drawn):
    bars = drawn["random_walk"].bars
    move = bars.close[1:] / bars.close[:-1] - 1  # in price, not only in log price
    assert abs(move.mean()) < 4 * move.std() / np.sqrt(BARS)
    for lag in range(1, 6):
        assert abs(np.corrcoef(move[lag:], move[:-lag])[0, 1]) < 6 / np.sqrt(BARS)  # wider than for constant volatility
    assert np.corrcoef(move[1:] ** 2, move[:-1] ** 2)[0, 1] > 0.1
    assert move.std() == pytest.approx(0.002, rel=0.05) and stats.kurtosis(move) > 0.5


def test_the_mean_reverting_market_is_an_ar1(drawn):
    made = drawn["mean_reverting"]
    x = np.log(made.bars.close / 100.0)
    np.testing.assert_allclose(x, made.hidden, atol=1e-12)
    slope = (x[1:] * x[:-1]).sum() / (x[:-1] ** 2).sum()
    noise = x[1:] - 0.95 * x[:-1]
    assert slope == pytest.approx(0.95, abs=0.005) and noise.std() == pytest.approx(0.004, rel=0.01)
    assert x.std() == pytest.approx(0.004 / np.sqrt(1 - 0.95**2), rel=0.05)
    assert stats.kstest(noise / 0.004, "norm").pvalue > 1e-4


def test_momentum_follows_the_regime_of_the_close_before(drawn):
    made = drawn["momentum"]
    move = np.diff(np.log(made.bars.close)) + 0.5 * 0.002**2
    up = made.hidden[:-1] > 0
    for regime, drift in ((up, 0.0006), (~up, -0.0006)):
        assert move[regime].mean() == pytest.approx(drift, abs=4 * 0.002 / np.sqrt(regime.sum()))
    assert (made.hidden[1:] != made.hidden[:-1]).mean() == pytest.approx(0.01, rel=0.1) and set(made.hidden) == {-1.0, 1.0}


@pytest.mark.parametrize("offset", [0.0001, 0.0008, 0.004])
def test_limit_orders_fill_as_often_as_the_bridge_says(drawn, offset):
    bars = drawn["mean_reverting"].bars
    move = np.log(bars.close / bars.open)
    p = fill_probability(move, offset, 0.004)
    for filled, chance in ((np.log(bars.low / bars.open) < -offset, p), (np.log(bars.high / bars.open) > offset, fill_probability(-move, offset, 0.004))):
        assert abs(filled.mean() - chance.mean()) < 4 * np.sqrt((chance * (1 - chance)).mean() / BARS)
        for part in (move < -0.003, (move > -0.001) & (move < 0.001), move > 0.003):  # given where the bar closes
            error = np.sqrt((chance[part] * (1 - chance[part])).sum()) / part.sum()
            assert abs(filled[part].mean() - chance[part].mean()) < 4.5 * error + 1e-12


def test_the_bridge_formula_agrees_with_a_walk_in_small_steps():
    random, steps, paths = np.random.default_rng(1), 1000, 16_000
    walk = np.cumsum(random.normal(0, 0.004 / np.sqrt(steps), (paths, steps)), axis=1)
    low, end, offset = walk.min(axis=1), walk[:, -1], 0.003
    shift = 0.5826 * 0.004 / np.sqrt(steps)  # of a barrier that is watched at steps only (Broadie, Glasserman and Kou 1997)
    assert (low < -offset + shift).mean() == pytest.approx(fill_probability(end, offset, 0.004).mean(), abs=0.015)


def test_settings_change_the_model():
    made = generate("mean_reverting", 20_000, phi=0.5, sigma=0.01, price=7.0)
    assert made.model.phi == 0.5 and np.log(made.bars.close / 7.0).std() == pytest.approx(0.01 / np.sqrt(0.75), rel=0.05)
    assert len(generate("momentum", 1).bars) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trend", 100), "no synthetic market 'trend'; choose one of random_walk, mean_reverting, momentum"),
        (("momentum", 0), "0 bars cannot be drawn"),
        (("random_walk", 10, 0, {"phi": 0.5}), "a random_walk market has no phi; it has sigma"),
        (("mean_reverting", 10, 0, {"phi": 1.0}), "0 <= phi < 1"),
        (("momentum", 10, 0, {"sigma": float("nan")}), "0 < sigma < 0.5"),
    ],
)
def test_what_cannot_be_drawn(arguments, says):
    kind, bars, *rest = arguments
    seed, settings = (rest or [0, {}])
    with pytest.raises(ConfigError, match=says):
        generate(kind, bars, seed, **settings)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_written_market_is_read_back_bit_for_bit(tmp_path, suffix):
    bars = generate("momentum", 45_000, seed=2).bars
    write_bars(tmp_path / f"market{suffix}", bars)
    read = read_bars(tmp_path / f"market{suffix}")
    assert read.digest() == bars.digest() and read.bars_per_year == bars.bars_per_year and read.notices == ()
    assert [path.name for path in tmp_path.iterdir()] == [f"market{suffix}"]


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"end the file's name with one of them"):
        write_bars(tmp_path / "market.txt", generate("momentum", 10).bars)
    with pytest.raises(UserError, match=r"cannot be written: No such file or directory"):
        write_bars(tmp_path / "absent" / "market.csv", generate("momentum", 10).bars)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"cannot be written: Is a directory"):
        write_bars(tmp_path / "folder.csv", generate("momentum", 10).bars)


def test_the_command_line(rltrain, tmp_path):
    out = tmp_path / "market.csv.gz"
    done = rltrain("data", "synth", "mean_reverting", "--bars", 1000, "--seed", 3, "--phi", 0.9, "--out", out)
    assert done.returncode == 0 and "1,000 one-minute bars, mean_reverting" in done.stdout and done.stderr == ""
    assert read_bars(out).digest() == generate("mean_reverting", 1000, 3, phi=0.9).bars.digest()
    again = rltrain("data", "synth", "momentum", "--out", out)
    assert again.returncode == 2 and "exists already" in again.stderr and len(again.stderr.splitlines()) == 1
    wrong = rltrain("data", "synth", "random_walk", "--phi", "0.3", "--out", tmp_path / "x.csv")
    assert wrong.returncode == 2 and "a random_walk market has no phi" in wrong.stderr
