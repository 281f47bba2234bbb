"""Walk-forward with retraining, judged: every finished fold's policy in its test, and one account through all tests.

The headline account is that of the median seed by final equity (the lower one of two), so that neither the luckiest nor
the unluckiest seed speaks for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Fold, Range
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import Backtest, play_policy
from numba_rl.evaluate.baselines import buy_and_hold, flat, random_agents, turnover_per_step
from numba_rl.evaluate.blocks import Figures
from numba_rl.evaluate.fold_jobs import Job, is_finished, jobs
from numba_rl.evaluate.folds import fitting_ranges, own_ranges, scaled_market
from numba_rl.evaluate.formatting import time_text
from numba_rl.evaluate.metrics import ratio_key
from numba_rl.evaluate.session import RANDOM_PATHS, trials_beside
from numba_rl.evaluate.statistics import Statistics, judge
from numba_rl.evaluate.stitch import stitch
from numba_rl.evaluate.windows import Window, hold_windows
from numba_rl.rundir import RunDir, read_meta
from numba_rl.trainer.checkpoint import load_policy


@dataclass(frozen=True)
class Played:
    """A finished fold's policy in its test: over the whole test window, and over the bars before the next test begins."""

    job: Job
    checkpoint: str
    validation: float | None  # figure of train.validate_by that chose the checkpoint
    in_sample: Figures
    window: Window
    own: Backtest


@dataclass(frozen=True)
class WalkForward:
    """All finished folds and what they come to. agent: the stitched account of the headline seed."""

    config: Config
    market: Market
    folds: tuple[Fold, ...]
    played: Mapping[int, Sequence[Played]]  # seed -> its finished folds in order
    accounts: Mapping[int, Backtest]  # seed -> stitched account, of the seeds with the same folds as the headline's
    seed: int  # of the headline
    agent: Backtest
    hold: Backtest
    flat: Backtest
    random: Sequence[Backtest]
    statistics: Statistics
    trials: int

    @property
    def headline(self) -> Sequence[Played]:
        """The folds of the headline seed."""
        return self.played[self.seed]

    @property
    def ratio(self) -> str:
        """Key of the Sharpe ratio to show: a year where that is known."""
        return ratio_key(self.market.bars_per_year)

    @property
    def complete(self) -> bool:
        """Whether no fold of any seed is missing."""
        return not self.missing

    @property
    def missing(self) -> str:
        """What this walk-forward lacks, in one line; "" where it is whole."""
        whole, done = len(self.folds) * self.config.evaluate.seeds, sum(map(len, self.played.values()))
        if done == whole:
            return ""
        return f"only {done} of {whole} trainings are finished"


def judge_folds(run: RunDir, config: Config, market: Market, folds: Sequence[Fold]) -> WalkForward:
    """Play every finished fold's policy over its test, join the tests, and compare. UserError: no fold is finished."""
    played = _by_seed(run, config, market, folds)
    if not played:
        raise UserError(f"{run.path}: no fold is finished yet; `rltrain walk-forward --resume {run.path}` goes on")
    tested = {seed: [p.job.number for p in found] for seed, found in played.items()}
    most = max(tested.values(), key=len)
    accounts = {seed: stitch([p.own for p in found], f"seed {seed}") for seed, found in played.items() if tested[seed] == most}
    ranked = sorted(accounts, key=lambda seed: (accounts[seed].equity[-1], seed))
    seed = ranked[(len(ranked) - 1) // 2]
    agent, found = accounts[seed], played[seed]
    owns = own_ranges([fold.test for fold in folds])
    spans = [owns[number] for number in most]
    hold = _through(spans, lambda span: [buy_and_hold(market, span, config)])[0]
    trials = config.evaluate.trials or trials_beside(run.path, market.bars_digest)
    ratio = ratio_key(market.bars_per_year)
    in_sample = [p.in_sample[ratio] for p in found if p.in_sample[ratio] is not None]
    statistics = judge(
        agent, hold, config=config.evaluate, trials=trials, in_sample_sharpe=float(np.mean(in_sample)) if in_sample else None,
        optimistic=not config.market.fill_simulation, seed=config.train.seed,
    )  # fmt: skip
    turnover = turnover_per_step(agent)
    chance = _through(
        spans, lambda span: random_agents(market, span, config, turnover=turnover, paths=RANDOM_PATHS, seed=config.train.seed)
    )
    still = _through(spans, lambda span: [flat(market, span, config)])[0]
    return WalkForward(config, market, tuple(folds), played, accounts, seed, agent, hold, still, chance, statistics, trials)


def _by_seed(run: RunDir, config: Config, market: Market, folds: Sequence[Fold]) -> dict[int, list[Played]]:
    """The finished folds of each seed that has any, played."""
    tests = [fold.test for fold in folds]
    owns, holds = own_ranges(tests), hold_windows(market, tests, config)
    found: dict[int, list[Played]] = {}
    for job in jobs(folds, config):
        if is_finished(job, run):
            found.setdefault(job.seed, []).append(_play(job, run, config, market, owns[job.number], holds[job.number]))
    return found


def _play(job: Job, run: RunDir, config: Config, market: Market, own: Range, hold: Backtest) -> Played:
    path = job.path(run)
    note = read_meta(path)["fold"]
    policy = load_policy(path / "checkpoints" / f"{note['checkpoint']}.safetensors")
    seen = scaled_market(market, job.fold, config)
    if seen.scaling.to_dict() != policy.scaling.to_dict():
        raise UserError(f"{path}: was not fitted on the bars that its fold has now; use the same file and settings, or a new --out")
    # a test that overlaps the next is played twice: to its end for its own figures, and up to there for the joined account
    spans = [job.fold.test] if own == job.fold.test else [job.fold.test, own]
    results = play_policy(seen, spans, policy, config, names=[f"fold {job.number}"] * len(spans))
    fit, validation = fitting_ranges(job.fold, config)
    about: dict[str, Any] = {"fold": job.number, "seed": job.seed}
    for name, span in (("train", fit), ("validation", validation)):
        about[f"{name}_start"], about[f"{name}_end"] = (
            (time_text(market.timestamp[span.start]), time_text(market.timestamp[span.stop - 1])) if span.bars else (None, None)
        )
        about[f"{name}_bars"] = span.bars
    about |= {"purged_bars": job.fold.purged.bars, "embargo_bars": job.fold.embargo.bars, "checkpoint": note["checkpoint"]}
    about |= {"validation_by": config.train.validate_by, "validation": note["validation"], "in_sample_sharpe": note["in_sample"]["sharpe"]}
    trained = (time_text(market.timestamp[job.fold.train.start]), time_text(market.timestamp[job.fold.train.stop - 1]))
    window = Window(job.fold.test, results[0], hold, about, trained)
    return Played(job, note["checkpoint"], note["validation"], note["in_sample"], window, results[-1])


def _through(spans: Sequence[Range], play: Callable[[Range], list[Backtest]]) -> list[Backtest]:
    """Players over all spans: in one go where the spans leave no hole, else joined window by window."""
    if all(one.stop == other.start for one, other in pairwise(spans)):
        return play(Range(spans[0].start, spans[-1].stop))
    return [stitch(windows, windows[0].name) for windows in zip(*(play(span) for span in spans), strict=True)]
