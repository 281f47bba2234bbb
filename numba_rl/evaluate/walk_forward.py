"""Walk-forward with retraining: for every fold and seed a training that ends before its test begins, then one account
through all tests. Folds run one after the other, each into a run directory RUN/folds/FOLD-SEED of its own; what is finished
is not run again on a resume.

The headline account is that of the median seed by final equity (the lower one of two), so that neither the luckiest nor
the unluckiest seed speaks for all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.windows import Fold, Range
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import Backtest, play_policy
from numba_rl.evaluate.baselines import buy_and_hold, flat, random_agents, turnover_per_step
from numba_rl.evaluate.blocks import Figures
from numba_rl.evaluate.folds import fitting_ranges, own_ranges, scaled_market, training_market
from numba_rl.evaluate.formatting import time_text
from numba_rl.evaluate.metrics import compute_metrics
from numba_rl.evaluate.session import RANDOM_PATHS, trials_beside, validator
from numba_rl.evaluate.statistics import Statistics, judge
from numba_rl.evaluate.stitch import stitch
from numba_rl.evaluate.windows import Window, hold_windows
from numba_rl.rundir import RunDir, is_run, read_meta
from numba_rl.signals import StopRequest
from numba_rl.trainer import session
from numba_rl.trainer.checkpoint import load_policy

IN_SAMPLE_BARS = 20_000  # the last bars of the fitted ones that a policy is played on, to compare with its test


class Job(NamedTuple):
    """One training: the fold's number and ranges, and the seed."""

    number: int
    fold: Fold
    seed: int

    def path(self, run: RunDir) -> Path:
        """Where it leaves its run directory."""
        return run.folds / f"{self.number:03d}-{self.seed}"


def jobs(folds: Sequence[Fold], config: Config) -> list[Job]:
    """All trainings in the order in which they run: the first seed through all folds, then the next seed."""
    first = config.train.seed
    return [Job(number, fold, seed) for seed in range(first, first + config.evaluate.seeds) for number, fold in enumerate(folds)]


def is_finished(job: Job, run: RunDir) -> bool:
    """Whether its training ended and its choice of checkpoint is noted. UserError: the directory is of another fold."""
    path = job.path(run)
    if not is_run(path):
        return False
    meta = read_meta(path)
    noted = meta.get("fold")
    if noted is not None and noted["ranges"] != _ranges(job.fold):
        raise UserError(f"{path}: is of other windows than evaluate.* gives now; use a new --out")
    return noted is not None and meta["status"] == "finished"


def train_folds(
    run: RunDir,
    config: Config,
    market: Market,
    folds: Sequence[Fold],
    *,
    stop: StopRequest | None = None,
    begin: Callable[[Job], AbstractContextManager[Callable[[dict], None]]] = lambda job: nullcontext(lambda figures: None),
) -> str | None:
    """Train what is not finished; the signal that ended it early, or None.

    begin: called before each training; gives a context whose value takes the trainer's figures. UserError as in training.
    """
    stop = stop or StopRequest()
    run.folds.mkdir(exist_ok=True)
    run.update(bars_digest=market.bars_digest, source=market.source, folds=len(folds), seeds=config.evaluate.seeds)
    for job in jobs(folds, config):
        if is_finished(job, run):
            continue
        if stop.requested is None:
            with begin(job) as progress:
                _train(job, run, config, market, stop, progress)
        if stop.requested is not None:
            return stop.requested
    return None


def _train(job: Job, run: RunDir, config: Config, market: Market, stop: StopRequest, progress) -> None:
    path = job.path(run)
    own = settings.replace(config, {"train.seed": job.seed})
    seen = training_market(market, job.fold, own)
    resume = is_run(path) and (path / "checkpoints" / "latest.safetensors").exists()
    with RunDir.open(path) if resume else RunDir.create(path, own, overwrite=is_run(path)) as directory:
        if resume:
            directory.begin()
        result = session.train(
            own, directory, seen, stop=stop, progress=progress, resume=resume, validate=validator(seen, own)
        )
        if result.reason == "interrupted":
            directory.finish("interrupted", stop.requested)
            return
        checkpoint = "best" if (directory.checkpoints / "best.safetensors").exists() else "final"
        policy = load_policy(directory.checkpoints / f"{checkpoint}.safetensors")
        fitted = Range(max(seen.train.start, seen.train.stop - IN_SAMPLE_BARS), seen.train.stop)
        in_sample = compute_metrics(play_policy(seen, [fitted], policy, own, names=["in sample"])[0])
        note = {"number": job.number, "seed": job.seed, "ranges": _ranges(job.fold), "checkpoint": checkpoint, "steps": result.steps}
        note |= {"reason": result.reason, "validation_sharpe_per_bar": result.best, "in_sample": in_sample, "in_sample_bars": fitted.bars}
        directory.update(fold=note)


def _ranges(fold: Fold) -> dict[str, list[int]]:
    return {name: list(span) for name, span in fold._asdict().items()}


# ------------------------------------------------------------------------------------------------------- judging


@dataclass(frozen=True)
class Played:
    """A finished fold's policy in its test: over the whole test window, and over the bars before the next test begins."""

    job: Job
    checkpoint: str
    validation: float | None  # Sharpe ratio per bar that chose the checkpoint
    in_sample: Figures
    window: Window
    own: Backtest


@dataclass(frozen=True)
class WalkForward:
    """All finished folds and what they come to. agent: the stitched account of the headline seed."""

    config: Config
    market: Market
    folds: tuple[Fold, ...]
    played: Mapping[int, Sequence[Played]]  # seed -> folds in order, from the first on
    accounts: Mapping[int, Backtest]  # seed -> stitched account, of the seeds with as many folds as the headline's
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
    def complete(self) -> bool:
        """Whether no fold of any seed is missing."""
        return all(len(found) == len(self.folds) for found in self.played.values()) and len(self.played) == self.config.evaluate.seeds


def judge_folds(run: RunDir, config: Config, market: Market, folds: Sequence[Fold]) -> WalkForward:
    """Play every finished fold's policy over its test, join the tests, and compare. UserError: no fold is finished."""
    played = {seed: found for seed, found in _by_seed(run, config, market, folds) if found}
    if not played:
        raise UserError(f"{run.path}: no fold is finished yet; `rltrain walk-forward --resume {run.path}` goes on")
    most = max(map(len, played.values()))
    accounts = {seed: stitch([p.own for p in found], f"seed {seed}") for seed, found in played.items() if len(found) == most}
    ranked = sorted(accounts, key=lambda seed: (accounts[seed].equity[-1], seed))
    seed = ranked[(len(ranked) - 1) // 2]
    agent, found = accounts[seed], played[seed]
    spans = own_ranges([fold.test for fold in folds])[:most]
    hold = _through(spans, lambda span: [buy_and_hold(market, span, config)])[0]
    trials = config.evaluate.trials or trials_beside(run.path, market.bars_digest)
    in_sample = [p.in_sample["sharpe"] for p in found if p.in_sample.get("sharpe") is not None]
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


def _by_seed(run: RunDir, config: Config, market: Market, folds: Sequence[Fold]) -> Iterator[tuple[int, list[Played]]]:
    tests = [fold.test for fold in folds]
    owns, holds = own_ranges(tests), hold_windows(market, tests, config)
    found: dict[int, list[Played]] = {}
    for job in jobs(folds, config):
        earlier = found.setdefault(job.seed, [])
        if len(earlier) == job.number and is_finished(job, run):
            earlier.append(_play(job, run, config, market, owns[job.number], holds[job.number]))
    yield from found.items()


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
    about |= {"validation_sharpe_per_bar": note["validation_sharpe_per_bar"], "in_sample_sharpe": note["in_sample"]["sharpe"]}
    trained = (time_text(market.timestamp[job.fold.train.start]), time_text(market.timestamp[job.fold.train.stop - 1]))
    window = Window(job.fold.test, results[0], hold, about, trained)
    return Played(job, note["checkpoint"], note["validation_sharpe_per_bar"], note["in_sample"], window, results[-1])


def _through(spans: Sequence[Range], play: Callable[[Range], list[Backtest]]) -> list[Backtest]:
    """Players over all spans: in one go where the spans leave no hole, else joined window by window."""
    if all(one.stop == other.start for one, other in pairwise(spans)):
        return play(Range(spans[0].start, spans[-1].stop))
    return [stitch(windows, windows[0].name) for windows in zip(*(play(span) for span in spans), strict=True)]
