"""Judging a trained run: its policy on the held-out range, beside the baselines, with the statistics and the report."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from numba_rl.config import Config
from numba_rl.data.market import Market, load_market
from numba_rl.errors import UserError
from numba_rl.evaluate.backtest import Backtest, play_policy
from numba_rl.evaluate.baselines import buy_and_hold, flat, random_agents, turnover_per_step
from numba_rl.evaluate.blocks import Section
from numba_rl.evaluate.cost_sensitivity import costs_line, costs_section, costs_table, play_at_costs
from numba_rl.evaluate.metrics import compute_metrics, ratio_key
from numba_rl.evaluate.report import ReportData, summarize_market, write_report
from numba_rl.evaluate.statistics import Statistics, judge
from numba_rl.evaluate.tables import equity_table, trades_table, write_csv, write_parquet
from numba_rl.evaluate.windows import windows_line, windows_of_policy, windows_section, windows_table
from numba_rl.files import atomic_write
from numba_rl.rundir import RunDir, fallbacks, is_run, read_meta
from numba_rl.trainer.checkpoint import load_policy

RANDOM_PATHS = 100
CHECKPOINTS = ("best", "final", "latest")
FELL_BACK = "Training did without the GPU, at least for a part:"  # before each reason, in a report


@dataclass(frozen=True)
class Evaluation:
    """A policy's backtests and what they are compared with."""

    config: Config
    market: Market
    agent: Backtest  # on the test range
    hold: Backtest
    flat: Backtest
    random: list[Backtest]  # same turnover
    ranges: dict[str, dict[str, float | None]]  # figures of the agent on the train, validation and test range
    statistics: Statistics
    checkpoint: str
    trials: int
    looks: int  # how many different results the test range of this run has shown, this one included
    sections: tuple[Section, ...] = ()  # further parts of the report
    lines: tuple[str, ...] = ()  # what they come to, for a terminal
    warnings: tuple[str, ...] = ()  # what went otherwise than it should


def evaluate_run(
    run: RunDir,
    *,
    config: Config | None = None,
    checkpoint: str | None = None,
    walk_forward: bool = False,
    costs: Sequence[float] = (),
) -> Evaluation:
    """Judge a run's policy on its test range and write evaluation/{metrics.json, equity.parquet, trades.parquet}.

    walk_forward: also over the windows evaluate.test, evaluate.step apart, an account of its own in each: windows.csv. costs:
    also at these multiples of all costs: costs.csv. Both become sections of the report.

    config: the run's settings with changes of evaluate.* or market costs; default the run's own. checkpoint: best (default
    where there is one), final or latest. The market is scaled as in training. meta.json counts how often the test range has shown
    something new (test_looks): what it has shown before is computed again without being counted. Raises UserError without a
    checkpoint, and where the file no longer holds the bars of the training.
    """
    config = config or run.config()
    name = checkpoint or next((kind for kind in CHECKPOINTS if (run.checkpoints / f"{kind}.safetensors").exists()), None)
    if name is None:
        raise UserError(f"{run.path}: there is no checkpoint to evaluate; train first, or give the run more steps")
    policy = load_policy(run.checkpoints / f"{name}.safetensors")
    market = load_market(config, scaling=policy.scaling)
    meta = run.meta()
    known = meta.get("bars_digest")
    if known and known != market.bars_digest:
        raise UserError(f"{config.data.path}: these are not the bars that {run.path} was trained on; use the same file")
    seen = set(meta.get("test_seen", ()))
    shown = looks_of(policy, config, walk_forward=walk_forward, costs=costs)
    looks = int(meta.get("test_looks", 0)) + (not shown <= seen)
    trials = config.evaluate.trials or trials_beside(run.path, market.bars_digest)
    tables, sections, lines, warnings = {}, [], [], []

    def warn(line: str) -> None:
        run.warn(line, trace=True)
        warnings.append(f"{line}; log.txt has the traceback.")

    if walk_forward:
        windows = windows_of_policy(policy, market, config, warn)
        tables["windows"] = windows_table(windows)
        lines.append(windows_line(windows))
        sections.append(windows_section(windows, {"window": "Window"}, text="The same policy in each window, on an account of its own."))
    if costs:
        played = play_at_costs(policy, market, market.test, config, costs)
        tables["costs"] = costs_table(played)
        lines.append(costs_line(played))
        sections.append(costs_section(played))
    evaluation = judge_policy(policy, market, config, checkpoint=name, trials=trials, looks=looks)
    evaluation = replace(evaluation, sections=tuple(sections), lines=tuple(lines), warnings=tuple(warnings))
    run.update(test_looks=looks, test_seen=sorted(seen | shown))
    write_tables(run.evaluation, evaluation)
    for title, table in tables.items():
        write_csv(run.evaluation / f"{title}.csv", table)
    return evaluation


def judge_policy(policy, market: Market, config: Config, *, checkpoint: str, trials: int = 1, looks: int = 1) -> Evaluation:
    """Play a policy and the baselines over the test range, and the policy over train and validation, and compare."""
    spans = {name: getattr(market, name) for name in ("train", "validation", "test")}
    playable = {name: span for name, span in spans.items() if span.stop - span.start >= 2}
    if "test" not in playable:
        raise UserError(f"{market.source}: the test range holds no bars; give data.split a third share above 0")
    played = play_policy(market, list(playable.values()), policy, config, names=list(playable))
    results = dict(zip(playable, played, strict=True))
    agent = results["test"]
    figures = {name: compute_metrics(result) for name, result in results.items()}
    hold = buy_and_hold(market, market.test, config)
    statistics = judge(
        agent,
        hold,
        config=config.evaluate,
        trials=trials,
        in_sample_sharpe=figures.get("train", {}).get(ratio_key(market.bars_per_year)),
        optimistic=not config.market.fill_simulation,
        seed=config.train.seed,
    )
    chance = random_agents(market, market.test, config, turnover=turnover_per_step(agent), paths=RANDOM_PATHS, seed=config.train.seed)
    return Evaluation(
        config, market, agent, hold, flat(market, market.test, config), chance, figures, statistics, checkpoint, trials, looks
    )


def looks_of(policy, config: Config, *, walk_forward: bool = False, costs: Sequence[float] = ()) -> set[str]:
    """What an evaluation lets its user see of the test range, a digest for each account played there.

    Two evaluations with the same weights under the same settings of the game show the same: statistics and pages may be made anew.
    """
    weights = hashlib.sha256()
    for name, weight in sorted(policy.network.state_dict().items()):
        weights.update(f"{name} {tuple(weight.shape)}".encode())
        weights.update(weight.detach().cpu().contiguous().numpy().data)
    known = msgspec.to_builtins(config)
    drawn = [known["train"]["seed"], known["evaluate"]["temperature"]] if config.evaluate.policy == "softmax" else []
    data = {name: value for name, value in known["data"].items() if name != "path"}
    game = [weights.hexdigest(), data, known["market"], config.episodes.length, config.evaluate.policy, *drawn]
    windows = [["windows", config.evaluate.test, config.evaluate.step]] if walk_forward else []
    played = [["test"], *windows, *(["costs", multiple] for multiple in costs if multiple != 1)]
    return {hashlib.sha256(json.dumps([game, what]).encode()).hexdigest()[:16] for what in played}


def trials_beside(path: Path, bars_digest: str) -> int:
    """How many runs beside `path`, itself included, were trained on the same bars: the trials of the deflated Sharpe ratio.

    A walk-forward run counts once for each of its seeds.
    """
    same = 0
    for other in Path(path).resolve().parent.iterdir():
        if is_run(other) and read_meta(other).get("bars_digest") == bars_digest:
            same += read_meta(other).get("seeds", 1)
    return max(same, 1)


def write_tables(folder: Path, evaluation: Evaluation) -> None:
    """metrics.json (figures and statistics), equity.parquet (a row a bar) and trades.parquet (a row a round trip)."""
    agent = evaluation.agent
    folder.mkdir(exist_ok=True)
    tables = {
        "checkpoint": evaluation.checkpoint,
        "verdict": evaluation.statistics.verdict,
        "trials": evaluation.trials,
        "test_looks": evaluation.looks,
        "agent": evaluation.ranges,
        "buy_and_hold": compute_metrics(evaluation.hold),
        "statistics": asdict(evaluation.statistics),
    }
    atomic_write(folder / "metrics.json", json.dumps(tables, indent=1, default=float))
    write_parquet(folder / "equity.parquet", equity_table(agent))
    write_parquet(folder / "trades.parquet", trades_table(agent, evaluation.config.market.fill_at))


def report_run(run: RunDir, evaluation: Evaluation) -> Path:
    """Write RUN/report.html from an evaluation; returns its path."""
    market, config, meta = evaluation.market, evaluation.config, run.meta()
    warnings = [*(f"{FELL_BACK} {line}." for line in fallbacks(run.path)), *evaluation.warnings]
    if evaluation.looks > 1:
        warnings.append(
            f"The test range of this run was looked at {evaluation.looks} times; each look makes its figures less out of sample."
        )
    data = ReportData(
        title=run.path.name,
        agent=evaluation.agent,
        statistics=evaluation.statistics,
        hold=evaluation.hold,
        flat=evaluation.flat,
        random=evaluation.random,
        ranges=evaluation.ranges,
        data=summarize_market(market),
        config=config,
        first=evaluation.sections,
        warnings=warnings,
        interrupted=meta.get("reason") if meta.get("status") == "interrupted" else None,
    )
    write_report(run.report, data)
    return run.report
