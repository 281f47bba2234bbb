"""How much of a Sharpe ratio may be luck: bootstrap intervals, the deflated Sharpe ratio, and a verdict in words.

Returns are float64 [n], fractions a bar, net of costs. Resampling is by blocks (``bootstrap.py``), deterministic given
the seed. A figure without value is None and never counts as skill.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from numba_rl.config import EvaluateConfig
from numba_rl.evaluate.bootstrap import block_length, centred_columns, resampled_sharpes, resampled_sums
from numba_rl.evaluate.formatting import chance
from numba_rl.evaluate.metrics import total_return
from numba_rl.evaluate.paths import Paths, bar_returns, sharpe

MIN_BARS = 30  # fewer returns other than zero give no interval: a few lucky bars prove nothing
UNDEFINED = 0.01  # with a larger share of resamples without a Sharpe ratio there is no interval
LOG_FLOOR = 1e-12  # log growth of a bar that loses everything


@dataclass(frozen=True)
class SharpeInterval:
    """Bootstrap interval of the Sharpe ratio; ``low`` and ``high`` are None where it has none."""

    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    annualised: bool  # else per bar, because the bars per year are unknown
    bars: int
    block: int  # bars
    resamples: int
    seed: int


@dataclass(frozen=True)
class Deflated:
    """Probability that the true Sharpe ratio beats the best that ``trials`` trials without skill would show."""

    probability: float | None
    threshold: float | None  # that best, per bar
    trials: int


@dataclass(frozen=True)
class HoldComparison:
    """Probability that buy-and-hold was better, by Sharpe ratio and by total return."""

    sharpe: float | None
    total_return: float | None
    block: int


@dataclass(frozen=True)
class Statistics:
    """All of it for one agent on one range."""

    verdict: str
    level: Literal["none", "profit", "skill"]
    interval: SharpeInterval
    probabilistic: float | None  # probability that the true Sharpe ratio is above zero
    deflated: Deflated
    hold: HoldComparison | None
    decay: float | None = None  # 1 - out-of-sample / in-sample Sharpe ratio


def sharpe_interval(
    returns: np.ndarray, bars_per_year: float, *, resamples: int = 2000, confidence: float = 0.95, seed: int = 0, block: int | None = None
) -> SharpeInterval:
    """Percentile interval of the Sharpe ratio of returns [n] by circular block bootstrap; annualised where bars_per_year is known.

    ``block`` in bars, None: ``block_length``. No interval for fewer than 30 bars with a profit or loss, for a constant series,
    or where more than 1% of the resamples have no Sharpe ratio.
    """
    returns = np.asarray(returns, np.float64)
    known = math.isfinite(bars_per_year)
    scale = math.sqrt(bars_per_year) if known else 1.0
    estimate = float(sharpe(returns)) * scale if len(returns) else math.nan
    low = high = None
    if np.count_nonzero(returns) >= MIN_BARS and math.isfinite(estimate):
        block = block or block_length(returns)
        sums = np.concatenate(list(resampled_sums(np.stack(centred_columns(returns), 1), block, resamples, seed)))
        ratios = resampled_sharpes(returns, sums)
        if np.isnan(ratios).mean() <= UNDEFINED:
            low, high = (float(q) * scale for q in np.nanquantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2]))
    return SharpeInterval(
        estimate if math.isfinite(estimate) else None, low, high, confidence, known, len(returns), block or 0, resamples, seed
    )


def hold_comparison(
    agent: np.ndarray, hold: np.ndarray, *, resamples: int = 2000, seed: int = 0, block: int | None = None
) -> HoldComparison:
    """Share of paired block resamples in which buy-and-hold did better than the agent; ties count half.

    Both are returns [n] of the same bars; the shorter one, ended by ruin, earns nothing afterwards. Each resample takes
    the same bars of both, so that what the market did is common to them.
    """
    n, ruined = max(len(agent), len(hold)), [bool(np.any(np.asarray(values) <= -1.0)) for values in (agent, hold)]
    if ruined == [True, False]:
        return HoldComparison(1.0, 1.0, 0)  # a resample without the fatal bar proves nothing
    agent, hold = (np.pad(np.asarray(values, np.float64), (0, n - len(values))) for values in (agent, hold))
    if n < MIN_BARS or not (np.isfinite(agent).all() and np.isfinite(hold).all()):
        return HoldComparison(None, None, 0)
    block = block or block_length(agent, hold)
    growth = [np.log(np.maximum(1.0 + values, LOG_FLOOR)) for values in (agent, hold)]
    sums = np.concatenate(
        list(resampled_sums(np.stack([*centred_columns(agent), *centred_columns(hold), *growth], 1), block, resamples, seed))
    )
    comparable = math.isfinite(float(sharpe(agent))) and math.isfinite(float(sharpe(hold)))
    by_sharpe = _share_better(resampled_sharpes(hold, sums[:, 2:4]), resampled_sharpes(agent, sums[:, 0:2])) if comparable else None
    return HoldComparison(by_sharpe, _share_better(sums[:, 5], sums[:, 4]), block)


def _share_better(one: np.ndarray, other: np.ndarray) -> float | None:
    valid = ~(np.isnan(one) | np.isnan(other))
    return float(np.mean((one > other)[valid] + 0.5 * (one == other)[valid])) if valid.mean() >= 1 - UNDEFINED else None


def _estimator_deviation(ratio: float, skew: float, kurtosis: float, bars: int) -> float:
    """Standard error of a Sharpe ratio per bar under non-normal returns (Mertens 2002); kurtosis 3 is normal."""
    return math.sqrt(max(1.0 - skew * ratio + (kurtosis - 1.0) / 4.0 * ratio**2, 0.0) / (bars - 1))


def _shape(returns: np.ndarray) -> tuple[float, float]:
    centred = returns - returns.mean()
    variance = np.mean(centred**2)
    return float(np.mean(centred**3) / variance**1.5), float(np.mean(centred**4) / variance**2)


def probabilistic_sharpe(returns: np.ndarray, threshold: float = 0.0) -> float | None:
    """Probability that the true Sharpe ratio per bar exceeds ``threshold``: Bailey and Lopez de Prado (2012).

    Phi((SR - threshold) / standard error), the error allowing for skewness and fat tails, not for autocorrelation.
    None for fewer than 30 bars with a profit or loss and for a constant series.
    """
    returns = np.asarray(returns, np.float64)
    if np.count_nonzero(returns) < MIN_BARS or not math.isfinite(ratio := float(sharpe(returns))):
        return None
    deviation = _estimator_deviation(ratio, *_shape(returns), len(returns))
    return float(ndtr((ratio - threshold) / deviation)) if deviation > 0 else None


def expected_best_sharpe(trials: int, deviation: float) -> float:
    """Sharpe ratio that the best of ``trials`` independent trials without skill is expected to show, their ratios having this
    standard deviation (Bailey and Lopez de Prado 2014, equation 1); 0 for one trial."""
    if trials <= 1:
        return 0.0
    gamma = np.euler_gamma
    return float(deviation * ((1 - gamma) * ndtri(1 - 1 / trials) + gamma * ndtri(1 - 1 / (trials * math.e))))


def deflated_sharpe(returns: np.ndarray, trials: int, trial_sharpes: Sequence[float] | None = None) -> Deflated:
    """Deflated Sharpe ratio (Bailey and Lopez de Prado 2014): ``probabilistic_sharpe`` against the best of the trials tried.

    ``trial_sharpes``: ratios per bar of all trials, whose spread is then used. Without at least two of them the spread of
    trials without skill is the standard error of this ratio itself, which is cautious when trials resemble each other.
    """
    returns = np.asarray(returns, np.float64)
    known = np.array([value for value in trial_sharpes or () if value is not None and math.isfinite(value)], np.float64)
    trials = max(trials, len(known), 1)
    if probabilistic_sharpe(returns) is None:
        return Deflated(None, None, trials)
    own = _estimator_deviation(float(sharpe(returns)), *_shape(returns), len(returns))
    threshold = expected_best_sharpe(trials, float(known.std(ddof=1)) if len(known) > 1 else own)
    return Deflated(probabilistic_sharpe(returns, threshold), threshold, trials)


def judge(
    agent,
    hold=None,
    *,
    config: EvaluateConfig | None = None,
    trials: int = 1,
    trial_sharpes: Sequence[float] | None = None,
    in_sample_sharpe: float | None = None,
    optimistic: bool = False,
    sample: str = "out-of-sample",
    seed: int = 0,
) -> Statistics:
    """Statistics and verdict of an agent's ``Backtest`` beside buy-and-hold's on the same bars.

    ``optimistic``: fills were not simulated. ``in_sample_sharpe``: of the training range, a year where the bars per year are
    known, else per bar (``metrics.ratio_key``).
    """
    config = config or EvaluateConfig()
    returns = bar_returns(agent.equity)
    interval = sharpe_interval(returns, agent.bars_per_year, resamples=config.bootstrap, confidence=config.confidence, seed=seed)
    deflated = deflated_sharpe(returns, config.trials or trials, trial_sharpes)
    compared = None if hold is None else hold_comparison(returns, bar_returns(hold.equity), resamples=config.bootstrap, seed=seed)
    profit = float(total_return(Paths(np.asarray(agent.equity)[None], agent.bars_per_year))[0])
    level, sentence = verdict(
        interval, deflated, compared, profit=profit, ruined=bool(agent.terminated), optimistic=optimistic, sample=sample
    )
    decay = None
    if in_sample_sharpe is not None and in_sample_sharpe > 0 and interval.estimate is not None:
        decay = 1.0 - interval.estimate / in_sample_sharpe
    return Statistics(sentence, level, interval, probabilistic_sharpe(returns), deflated, compared, decay)


def verdict(
    interval: SharpeInterval,
    deflated: Deflated,
    hold: HoldComparison | None = None,
    *,
    profit: float | None = None,
    ruined: bool = False,
    optimistic: bool = False,
    sample: str = "out-of-sample",
) -> tuple[Literal["none", "profit", "skill"], str]:
    """Level and one sentence for people.

    "skill" needs all of: an interval above zero, a deflated Sharpe ratio of at least the confidence, a net profit, and,
    where buy-and-hold is given, a probability of at most 1 - confidence that it had the better Sharpe ratio. "profit":
    only the last is missing. Everything else, figures without value included, is "none".
    """
    unit = "a year" if interval.annualised else "per bar"
    digits = 2 if interval.annualised else 4
    level, confidence = "none", interval.confidence

    def number(value: float) -> str:
        return f"{value:.{digits}f}"

    def named(count: int) -> str:
        return "1 trial" if count == 1 else f"{count} trials"

    if ruined:
        reason = "the account was ruined"
    elif interval.estimate is None:
        reason = f"the {sample} Sharpe ratio has no value, because the returns do not vary"
    elif interval.low is None or interval.high is None:
        reason = f"the {sample} Sharpe ratio of {number(interval.estimate)} {unit} has no interval, because {interval.bars} bars hold too few profits and losses"
    else:
        found = f"the {sample} Sharpe ratio is {number(interval.estimate)} {unit} ({confidence:.0%} interval {number(interval.low)} to {number(interval.high)})"
        if interval.high < 0:
            reason = f"{found}, which lies below zero"
        elif interval.low <= 0:
            reason = f"{found}, which covers zero"
        elif profit is not None and profit <= 0:
            reason = f"{found}, yet the account did not grow"
        elif deflated.probability is None:
            reason = f"{found}, but the deflated Sharpe ratio over {named(deflated.trials)} has no value"
        elif deflated.probability < confidence:
            short = math.floor(deflated.probability * 100) / 100  # 0.948 is not 0.95
            reason = f"{found}, but the deflated Sharpe ratio over {named(deflated.trials)} is {short:.2f}, below {confidence:.2f}"
        else:
            reason = f"{found}, and the deflated Sharpe ratio over {named(deflated.trials)} is {deflated.probability:.2f}"
            level = "skill"
            if hold is not None and hold.sharpe is not None:
                level = "skill" if hold.sharpe <= 1 - confidence else "profit"
                reason += f"; the probability that buy-and-hold had the better Sharpe ratio is {chance(hold.sharpe)}"
    opening = {
        "none": "No evidence of skill after costs",
        "profit": "Profit after costs, but no evidence of skill beyond buy-and-hold",
        "skill": "Evidence of skill after costs",
    }[level]
    caution = " (fills were not simulated, which is optimistic)" if optimistic else ""
    return level, f"{opening}{caution}: {reason}."
