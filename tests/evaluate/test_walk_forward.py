"""Walk-forward: nothing of a fold's training depends on its test, the joined account adds up, and a resume does no work twice."""

import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from evaluate.small_folds import assert_same_trainings, settings_with

from numba_rl import settings
from numba_rl.config import Config
from numba_rl.data.market import load_market
from numba_rl.data.synthetic import generate
from numba_rl.data.windows import Range
from numba_rl.errors import ConfigError, UserError
from numba_rl.evaluate import player
from numba_rl.evaluate.backtest import play_actions, play_policy
from numba_rl.evaluate.fold_jobs import fallbacks_of, is_finished, jobs
from numba_rl.evaluate.fold_training import Trained, Watch, train_folds
from numba_rl.evaluate.folds import fitting_ranges, folds_table, folds_text, own_ranges, plan, training_market, untested_lines, write_folds
from numba_rl.evaluate.formatting import time_text
from numba_rl.evaluate.metrics import compute_metrics, notional
from numba_rl.evaluate.stitch import growths, stitch
from numba_rl.evaluate.walk_forward import judge_folds
from numba_rl.evaluate.walk_forward_report import report_walk_forward, write_tables
from numba_rl.evaluate.windows import hold_windows, windows_of_policy, windows_table
from numba_rl.rundir import RunDir, read_meta
from numba_rl.signals import StopRequest
from numba_rl.trainer.checkpoint import Policy
from numba_rl.trainer.networks import build_actor
from rltrain.walk_forward import judge


@pytest.fixture(scope="module")
def bars():
    return generate("mean_reverting", 1900, 5).bars


@pytest.fixture(scope="module")
def market(bars):
    return load_market(settings_with(), bars)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, market):
    """A whole walk-forward with two seeds: (run, config, folds)."""
    config = settings_with(evaluate__seeds=2)
    folds = plan(market, config)
    with RunDir.create(tmp_path_factory.mktemp("runs") / "wf", config) as run:
        assert train_folds(run, config, market, folds) == Trained()
        yield run, config, folds


def test_poisoned_tests_change_nothing_of_training(tmp_path, bars, market, finished):
    """The bars of one fold's test, and all after them, come back reversed and ten times as dear: the fold's training is the same bit for bit."""
    run, config, folds = finished
    number = 1
    at = market.warmup + folds[number].train.stop  # the first bar that the fold must not see: purged, embargo, test, later
    poisoned = replace(
        bars,
        **{
            name: np.concatenate([getattr(bars, name)[:at], 10.0 * getattr(bars, name)[at:][::-1]])
            for name in ("open", "high", "low", "close")
        },
    )
    other = load_market(config, poisoned)
    assert plan(other, config) == folds
    later = [training_market(which, folds[-1], config).scaling.mean.tolist() for which in (market, other)]
    assert later[0] != later[1]  # the poison shows where it is let in: a later fold trains on these bars
    with RunDir.create(tmp_path / "wf", settings_with()) as again:
        assert train_folds(again, settings_with(), other, folds[: number + 1]) == Trained()
        for job in jobs(folds[: number + 1], settings_with()):
            assert_same_trainings(job.path(run), job.path(again))


def test_the_training_market_ends_where_the_training_bars_end(market):
    config = settings_with()
    for fold in plan(market, config):
        seen = training_market(market, fold, config)
        fit, validation = fitting_ranges(fold, config)
        assert (seen.train, seen.validation) == (fit, validation)
        assert fit.stop == validation.start and validation.stop == fold.train.stop == len(seen)
        assert validation.bars == round(800 * 0.25) - round((800 - fold.train.bars) * 0.25)
        assert all(len(part) == fold.train.stop for part in (seen.prices, seen.features, seen.raw_features, seen.regime, seen.volume))
        expected = market.raw_features[fit.start : fit.stop].astype(np.float64)
        np.testing.assert_allclose(seen.scaling.mean, expected.mean(0), rtol=1e-12, atol=1e-15)


def test_without_a_validation_share_all_training_bars_are_fitted_on(market):
    config = settings.replace(settings_with(), {"data.split": (0.8, 0.0, 0.2)})
    fold = plan(market, config)[0]
    assert fitting_ranges(fold, config) == (fold.train, Range(fold.train.stop, fold.train.stop))


def test_every_bar_is_accounted_for(market):
    config = settings_with(evaluate__step="400")
    folds = plan(market, config)
    table = folds_table(market, folds, config)
    for row in table.rows:
        assert sum(int(cell.replace(",", "")) for cell in row[1:8]) == len(market)
    text = folds_text(market, folds, config)
    for line in untested_lines(market, [fold.test for fold in folds]):
        assert f"not tested: {line}" in text
    tested = sum(fold.test.bars for fold in folds)
    holes = sum(int(line.split(" bars")[0].replace(",", "")) for line in untested_lines(market, [fold.test for fold in folds]))
    assert tested + holes == len(market)


def test_dates_of_the_folds_page_lie_one_under_the_other(tmp_path, market):
    """Side by side they are wider than the page."""
    config = settings_with()
    folds = plan(market, config)
    write_folds(tmp_path / "folds.html", market, folds, config)
    page = (tmp_path / "folds.html").read_text()
    assert page.count('<span class="span">') == 2 * len(folds)
    for fold in folds:
        first, last = (time_text(market.timestamp[bar]) for bar in (fold.test.start, fold.test.stop - 1))
        assert f"{first}<br>{last}</span>" in page


def test_missing_lengths_are_named(market):
    with pytest.raises(ConfigError, match="evaluate.test is not set; give --test"):
        plan(market, settings.replace(Config(), {"evaluate.train": "800"}))
    with pytest.raises(ConfigError, match="evaluate.test is not set"):
        windows_of_policy(None, market, Config())


def played(market, ranges, seed=3, **changes):
    actions = np.random.default_rng(seed).integers(0, 45, (max(r.bars for r in ranges), len(ranges))).astype(np.int32)
    return play_actions(market, list(ranges), actions, settings_with(**changes), names=[str(r) for r in ranges])


def test_the_joined_account_carries_its_capital(market):
    """No return between windows, exits at their ends paid, and every figure of money grown with the account."""
    ranges = [Range(1000, 1300), Range(1300, 1500), Range(1500, 1501), Range(1501, 1560)]
    windows = played(market, ranges)
    joined = stitch(windows, "joined")
    assert len(joined) == sum(r.bars for r in ranges) and len(joined.timestamp) == len(joined.equity) == len(joined) + 1
    np.testing.assert_array_equal(joined.timestamp, market.timestamp[999:1560])
    np.testing.assert_array_equal(joined.close, market.prices[999:1560, 3])
    growth = math.prod(w.equity[-1] / w.equity[0] for w in windows)
    assert joined.equity[-1] / joined.equity[0] == pytest.approx(growth, rel=1e-12)
    returns = np.concatenate([w.equity[1:] / w.equity[:-1] for w in windows])
    np.testing.assert_allclose(joined.equity[1:] / joined.equity[:-1], returns, rtol=1e-12)
    np.testing.assert_allclose(growths(windows)[1:], np.cumprod([w.equity[-1] / w.equity[0] for w in windows])[:-1], rtol=1e-12)
    # trades explain the whole change of equity, since each window ends flat
    assert not joined.trades.is_open.any()
    assert joined.trades.net.sum() == pytest.approx(joined.equity[-1] - joined.equity[0], rel=1e-9)
    costs = (joined.fee + joined.spread_cost + joined.financing).sum()
    assert joined.trades.costs.sum() == pytest.approx(costs, rel=1e-9)
    assert joined.gross_equity[-1] == pytest.approx(joined.equity[-1] + costs, rel=1e-12)
    # turnover is what the windows' own turnovers add up to: exits are in it
    assert compute_metrics(joined)["turnover"] == pytest.approx(sum(compute_metrics(w)["turnover"] for w in windows), rel=1e-9)
    assert notional(joined).sum() > np.abs(joined.traded * joined.price).sum()


def test_a_ruin_ends_the_joined_account(market):
    changes = {"market__leverage": 400.0, "market__taker_bps": 0.0}
    windows = played(market, [Range(1000, 1200), Range(1200, 1400), Range(1400, 1500)], **changes)
    assert windows[0].terminated
    joined = stitch(windows, "ruined")
    assert joined.terminated and len(joined) == len(windows[0])
    assert growths(windows).tolist() == [1.0, 0.0, 0.0]


def test_overlapping_tests_count_each_bar_once():
    ranges = [Range(100, 200), Range(150, 250), Range(200, 260)]
    own = own_ranges(ranges)
    assert own == (Range(100, 150), Range(150, 200), Range(200, 260))
    assert all(one.stop == two.start for one, two in pairwise(own))


def test_results_and_report(finished, market):
    run, config, folds = finished
    found = judge_folds(run, config, market, folds)
    assert found.complete and set(found.accounts) == {0, 1}
    finals = sorted((account.equity[-1], seed) for seed, account in found.accounts.items())
    assert found.seed == finals[0][1]  # the lower of two is their median
    assert len(found.agent) == folds[-1].test.stop - folds[0].test.start == len(found.hold)
    write_tables(run.evaluation, found)
    table = pl.read_csv(run.evaluation / "windows.csv")
    assert len(table) == 2 * len(folds)
    own = table.filter(pl.col("seed") == found.seed)
    assert math.prod(1 + own["total_return"]) == pytest.approx(found.agent.equity[-1] / found.agent.equity[0], rel=1e-9)
    np.testing.assert_allclose(own["excess_over_hold"], own["total_return"] - own["hold_return"], atol=1e-15)
    assert own["test_bars"].to_list() == [fold.test.bars for fold in folds]
    equity = pl.read_parquet(run.evaluation / "equity.parquet").filter(pl.col("seed") == found.seed)
    np.testing.assert_array_equal(equity["equity"], found.agent.equity)
    assert equity["fold"].to_list() == [0, *np.repeat(range(len(folds)), [fold.test.bars for fold in folds])]
    trades = pl.read_parquet(run.evaluation / "trades.parquet").filter(pl.col("seed") == found.seed)
    at = dict(zip(equity["timestamp"], equity["fold"], strict=True))
    assert len(trades) == len(found.agent.trades.net) > 0
    for entry, leave, fold in trades.select("entry_time", "exit_time", "fold").iter_rows():
        assert entry <= leave and at[entry] == at[leave] == fold
    figures = json.loads((run.evaluation / "metrics.json").read_text())
    assert figures["verdict"] == found.statistics.verdict and figures["trials"] == 2
    page = report_walk_forward(run, found).read_text()
    assert found.statistics.verdict in page
    for title in ("Test windows", "Seeds", "Out of sample against in sample", "Folds", "Bars not tested"):
        assert title in page


def test_what_left_the_gpu_is_told_by_reason_and_in_the_report(tmp_path, market, finished, capsys):
    run, config, folds = finished
    shutil.copytree(run.path, tmp_path / "wf", ignore=shutil.ignore_patterns(".lock"))
    every = jobs(folds, config)
    with RunDir.open(tmp_path / "wf") as copied:
        assert fallbacks_of(every, copied) == []
        for job, line in ((every[0], "no driver"), (every[0], "no driver"), (every[2], "no driver"), (every[1], "a < b")):
            with RunDir.open(job.path(copied)) as directory:
                directory.fall_back(line)
        lines = [f"{every[0].name} and 1 more: no driver", f"{every[1].name}: a < b"]
        assert fallbacks_of(every, copied) == lines
        page = report_walk_forward(copied, judge_folds(copied, config, market, folds)).read_text().partition("</header>")[0]
        assert "Training did without the GPU, at least for a part: fold 0, seed 0 and 1 more: no driver." in page and "a &lt; b." in page
        judge(copied, config, market, folds)
    out = capsys.readouterr().out
    assert all(f"warning: {line}\n" in out for line in lines)


def test_a_resume_skips_what_is_finished_and_continues_what_is_not(tmp_path, market, finished):
    """Stopped in the second fold and resumed, all folds come out as in the run that was never stopped."""
    run, config, folds = finished
    config = settings.replace(config, {"evaluate.seeds": 1})
    stop = StopRequest()
    begun = []

    class Stopper(Watch):
        def begun(self, job):
            begun.append(job)

        def progress(self, job, figures):
            if len(begun) == 2 and figures["step"] >= 256:
                stop.request()

    with RunDir.create(tmp_path / "wf", config) as again:
        every = jobs(folds, config)
        assert train_folds(again, config, market, folds, stop=stop, watch=Stopper()) == Trained("SIGINT", not_begun=len(every) - 2)
        assert [is_finished(job, again) for job in every] == [True] + [False] * (len(folds) - 1)
        assert read_meta(every[1].path(again))["status"] == "interrupted"
        partial = judge_folds(again, config, market, folds)
        assert not partial.complete and len(partial.headline) == 1
        begun.clear()
        assert train_folds(again, config, market, folds, watch=Stopper()) == Trained()
        assert begun == every[1:]
        for job in every:
            assert_same_trainings(job.path(run), job.path(again))


def test_a_failure_holds_up_the_others_only_if_it_is_theirs_too(tmp_path, market, finished):
    """One training that cannot begin is told, and left out of the account; two that fail alike end it."""
    _, config, folds = finished
    config = settings.replace(config, {"evaluate.seeds": 1})
    every = jobs(folds, config)
    with RunDir.create(tmp_path / "wf", config) as run:
        run.folds.mkdir()
        every[1].path(run).write_text("in the way")
        trained = train_folds(run, config, market, folds)
        assert trained == Trained(failed={every[1]: f"{every[1].path(run)}: is a file; choose another --out"})
        found = judge_folds(run, config, market, folds)
        assert [p.job.number for p in found.headline] == [0, *range(2, len(folds))]
        assert found.missing == f"only {len(folds) - 1} of {len(folds)} trainings are finished"
        assert len(found.agent) == len(found.hold) == sum(p.own.timestamp.size - 1 for p in found.headline)
        write_tables(run.evaluation, found)
        equity = pl.read_parquet(run.evaluation / "equity.parquet")
        assert equity["fold"].unique(maintain_order=True).to_list() == [0, *range(2, len(folds))]
    broken = settings.replace(config, {"reward.function": f"{tmp_path / 'none.py'}:reward"})
    with RunDir.create(tmp_path / "broken", broken) as run:
        trained = train_folds(run, broken, market, folds)
        assert list(trained.failed) == every[:2] and trained.not_begun == len(every) - 2


def test_other_windows_than_those_of_the_run_are_refused(market, finished):
    run, config, _ = finished
    other = plan(market, settings.replace(config, {"evaluate.train": "700"}))
    with pytest.raises(UserError, match="is of other windows than"):
        is_finished(jobs(other, config)[0], run)


def test_nothing_finished_says_how_to_go_on(tmp_path, market):
    config = settings_with()
    with RunDir.create(tmp_path / "wf", config) as run, pytest.raises(UserError, match="no fold is finished yet"):
        judge_folds(run, config, market, plan(market, config))


def test_one_policy_over_many_windows_is_each_window_alone(market):
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(len(market.names) + 3, 45)).astype(np.float32))

    def policy(states):
        return states @ weights

    config = settings_with(evaluate__test="50")
    windows = windows_of_policy(policy, market, config)
    assert windows[0].span.start == market.test.start and windows[-1].span.stop == market.test.stop
    alone = play_policy(market, [windows[2].span], policy, config)[0]
    np.testing.assert_array_equal(alone.equity, windows[2].agent.equity)
    table = windows_table(windows)
    assert len(table) == math.ceil(market.test.bars / 50)
    assert table["hold_return"].to_list() == [
        compute_metrics(w)["total_return"] for w in hold_windows(market, [w.span for w in windows], config)
    ]


def test_a_gpu_that_fails_leaves_the_windows_to_the_cpu_path(market, monkeypatch, caplog):
    config = settings.replace(settings_with(evaluate__test="50"), {"train.device": "auto"})
    policy = Policy(build_actor(config, len(market.names), torch.Generator().manual_seed(0)), config, market.scaling)
    expected = [window.agent.equity for window in windows_of_policy(policy, market, settings_with(evaluate__test="50"))]

    def failing(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

    monkeypatch.setattr(player, "usable", lambda: True)
    monkeypatch.setattr(player, "lay_out", failing)
    found = [window.agent.equity for window in windows_of_policy(policy, market, config)]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))
    assert "could not play" in caplog.text and "Tried to allocate 20 GiB); they are played on the CPU path" in caplog.text

    def broken(*arguments):
        raise UserError("the policy gave NaN")

    monkeypatch.setattr(player, "lay_out", broken)
    with pytest.raises(UserError, match="gave NaN"):  # no matter of the GPU
        windows_of_policy(policy, market, config)
