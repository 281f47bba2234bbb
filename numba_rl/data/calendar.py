"""When a market is open, as its bar stamps tell: interval, sessions, gaps, off-grid stamps and bars per year.

Stamps are int64 nanoseconds since 1970 UTC, strictly increasing, the open times of the bars.

How bars per year are found (``data.bars_per_year`` overrides it; the text used is kept in ``Calendar.rule``):

1. The interval is the usual distance of two stamps (the most frequent one, not the mean).
2. Stamps are grouped into trading days of 24 hours. The cut between two days lies inside the daily closure that recurs
   (the middle of the overnight break), at the weekly opening where the market only closes at weekends, and at 00:00 UTC
   where it never closes. A day with at least a quarter of the usual number of bars is a session, so that a stub left
   by a clock change is none.
3. bars per year = days a year x median bars of a session. Days a year: 365 where all seven weekdays trade. Else, from
   less than a year of data, 252 for five weekdays and 365 x weekdays / 7 for another number; from a year or more, the
   sessions counted, 252 when they are within 2% of it.
4. Bars longer than a day are counted: bars / years, rounded to 52, 26, 12, 4 or 1 when within 3%.

Nothing is inferred from fewer than 20 sessions that also span less than 30 days: the value is then NaN and must be set.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR_DAYS = 365.25

MIN_SESSIONS = 20
MIN_SPAN = 30 * DAY
CHANCE = 1e-4  # that a closure which is taken for a daily one is none
LONGEST_BREAK = 5 * DAY  # a longer one is reported as a gap: no weekend with a holiday lasts so long
USUAL_INTERVALS = tuple(
    n * unit
    for unit, counts in ((SECOND, (1, 5, 10, 15, 30)), (MINUTE, (1, 2, 3, 5, 10, 15, 30)), (HOUR, (1, 2, 3, 4, 6, 8, 12)), (DAY, (1, 7)))
    for n in counts
)


class Gap(NamedTuple):
    """Bars missing while the market was open."""

    start_ns: int  # stamp of the last bar before
    stop_ns: int  # stamp of the first bar after
    missing: int  # bars (an estimate where whole sessions are missing)


@dataclass(frozen=True)
class Calendar:
    """What the stamps of a file say about its market's hours."""

    interval_ns: int  # 0: a single bar tells nothing
    bars_per_year: float  # math.nan: not to be inferred from so short a file, must be set
    rule: str  # how bars_per_year was found
    sessions: int
    bars_per_session: float  # median
    days_per_week: int  # weekdays that usually trade; 7 for bars longer than a day
    gaps: tuple[Gap, ...]  # in order of time
    breaks: int  # closures between sessions, lunch breaks, holidays
    off_grid: np.ndarray  # int64: indices of stamps that are not a whole number of intervals from the others
    regular: bool  # False: the stamps keep no interval at all (tick or volume bars); gaps are then not looked for


def usual_interval(timestamp: np.ndarray) -> int:
    """Most frequent distance [ns] of neighbouring stamps, in any order, doubles ignored; 0 for fewer than two.

    Of equally frequent ones the shortest that divides a day (or is whole days) wins. Where no distance is frequent
    (stamps with jitter) it is the median, rounded to a usual bar length within 10%.
    """
    steps = np.diff(np.sort(timestamp))
    steps = steps[steps > 0]
    if len(steps) == 0:
        return 0
    values, counts = np.unique(steps, return_counts=True)
    tied = [int(v) for v in values[counts == counts.max()]]
    if counts.max() >= 0.2 * counts.sum():
        return min(tied, key=lambda d: (DAY % d != 0 and d % DAY != 0, d))
    median = float(np.median(steps))
    nearest = min(USUAL_INTERVALS, key=lambda d: abs(math.log(median / d)))
    return nearest if abs(median / nearest - 1) <= 0.1 else round(median)


def off_grid(timestamp: np.ndarray, interval_ns: int) -> np.ndarray:
    """Indices (int64) of stamps whose phase within the interval is not the usual one (0.1% of an interval is allowed).

    Bars longer than an hour may lie exactly one hour off, as a clock change moves them. Bars of a month and longer
    have no grid.
    """
    if len(timestamp) < 3 or not 0 < interval_ns < 28 * DAY:
        return np.empty(0, np.int64)
    phase = timestamp % interval_ns
    values, counts = np.unique(phase, return_counts=True)
    distance = np.abs(phase - values[counts.argmax()])
    distance = np.minimum(distance, interval_ns - distance)
    allowed = interval_ns // 1000
    wrong = distance > allowed
    if interval_ns > HOUR:
        wrong &= np.abs(distance - HOUR) > allowed
    return np.flatnonzero(wrong)


def last_is_unfinished(timestamp: np.ndarray, interval_ns: int) -> bool:
    """Whether the last stamp is that of a live bar: off the grid that the others keep, and too early."""
    wrong = off_grid(timestamp, interval_ns)
    last = len(timestamp) - 1
    if len(wrong) == 0 or wrong[-1] != last:
        return False
    return bool(timestamp[-1] - timestamp[-2] < interval_ns and len(wrong) - 1 < 0.01 * last)


def _day_cut(timestamp: np.ndarray, steps: np.ndarray, interval_ns: int) -> int:
    """Time of day [ns] at which one trading day ends and the next begins."""
    if interval_ns >= 0.9 * DAY:
        times, counts = np.unique(timestamp % DAY, return_counts=True)
        return int(times[counts.argmax()] - DAY // 2) % DAY
    closed = np.flatnonzero(steps > max(1.5 * interval_ns, 0.75 * HOUR))
    times, group, counts = np.unique(timestamp[closed + 1] % DAY, return_inverse=True, return_counts=True)
    if len(times) == 0 or counts.max() < 2:
        return 0
    # long closures weigh more than chance gaps of a thin hour; a single outage is no closure
    hours = np.bincount(group, weights=steps[closed].astype(float)) * (counts > 1)
    best = int(hours.argmax())
    closure = float(np.median(steps[closed][group == best]))
    return int(times[best] - (closure / 2 if closure < DAY else 0)) % DAY


def _sessions(day: np.ndarray) -> tuple[np.ndarray, float]:
    """Trading days that count as sessions (int64) and the median number of bars of one."""
    days, counts = np.unique(day, return_counts=True)
    ordered = np.sort(counts)
    typical = ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)]  # of the day in which a typical bar lies
    full = counts >= 0.25 * typical
    return days[full], float(np.median(counts[full]))


def _weekdays(sessions: np.ndarray) -> int:
    """Weekdays that trade in at least half of the weeks."""
    weeks = (sessions[-1] - sessions[0] + 1) / 7
    return int((np.bincount(sessions % 7, minlength=7) >= max(1, 0.5 * weeks)).sum())


def _days_a_year(sessions: np.ndarray, weekdays: int) -> tuple[float, str]:
    """Trading days of a year, and how they were found."""
    span = int(sessions[-1] - sessions[0] + 1)
    if weekdays == 7:
        return 365.0, "7 days a week"
    if span >= 365:
        counted = min(len(sessions) / span, weekdays / 7) * YEAR_DAYS
        if abs(counted / 252 - 1) <= 0.02:
            return 252.0, f"{counted:.1f} sessions a year counted"
        return float(round(counted)), "sessions a year counted"
    if weekdays == 5:
        return 252.0, "5 days a week less holidays"
    return float(round(365 * weekdays / 7)), f"{weekdays} days a week"


def _bars_per_year(timestamp, interval_ns, sessions, bars_per_session, weekdays) -> tuple[float, str]:
    span = int(timestamp[-1] - timestamp[0]) + interval_ns
    if len(timestamp) < 2 or (len(sessions) < MIN_SESSIONS and span < MIN_SPAN):
        return math.nan, (
            f"not inferred: {len(sessions)} session{'s' * (len(sessions) != 1)} in {span / DAY:.1f} days; "
            f"{MIN_SESSIONS} sessions or 30 days are needed, or data.bars_per_year"
        )
    if interval_ns > 1.1 * DAY:
        years = (timestamp[-1] - timestamp[0]) / DAY / YEAR_DAYS
        counted = (len(timestamp) - 1) / years
        usual = min((52, 26, 12, 4, 1), key=lambda n: abs(math.log(counted / n)))
        value = float(usual) if abs(counted / usual - 1) <= 0.03 else round(counted, 1)
        return value, f"{len(timestamp)} bars in {years:.1f} years"
    days, why = _days_a_year(sessions, weekdays)
    per_session = 1.0 if interval_ns >= 0.9 * DAY else bars_per_session
    return days * per_session, f"{days:g} days x {per_session:,.10g} bars a session ({why}; {len(sessions)} sessions seen)"


def _by_chance(often: np.ndarray, sessions: int, times: float) -> np.ndarray:
    """How likely gaps at chance times of the day are to end as `often` (float64 [times seen]) as they do at one time, or above.

    By the bound of Chernoff (1952) on a binomial tail, times the times of a day; the rate of chance gaps is that of all other times.
    """
    share = np.minimum(often / sessions, 1.0)
    rate = np.clip((often.sum() - often) / (sessions * max(times - 1.0, 1.0)), 1e-9, 1.0 - 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(share < 1.0, (1.0 - share) * np.log((1.0 - share) / (1.0 - rate)), 0.0)
        exponent = np.where(share > rate, share * np.log(share / rate) + rest, 0.0)
    return np.minimum(1.0, times * np.exp(-sessions * exponent))


def _gaps(timestamp, steps, interval_ns, day, sessions, bars_per_session, weekdays) -> tuple[tuple[Gap, ...], int]:
    """Gaps, and the number of breaks (closures, which are no gaps)."""
    at = np.flatnonzero(steps > 1.5 * interval_ns)
    if len(at) == 0:
        return (), 0
    step = steps[at]
    is_break = np.zeros(len(at), bool)
    if weekdays < 7:
        closes = step > HOUR if day[-1] - day[0] < 7 else step > 0  # too short a file to know its weekdays
        is_break |= (day[at] != day[at + 1]) & closes
    # a lunch break: long enough, and ending at the same time of day so often that chance does not do it, or an hour from that
    # time, where the clocks change
    long = (step >= 20 * MINUTE) & (step < DAY)
    times, group = np.unique(timestamp[at + 1] % DAY, return_inverse=True)
    often = np.bincount(group, weights=long)
    recurs = (often >= max(8, 0.35 * len(sessions))) & (_by_chance(often, len(sessions), bars_per_session) < CHANCE)
    recurs |= np.isin(times, np.concatenate([times[recurs] + HOUR, times[recurs] - HOUR]) % DAY)
    is_break |= long & recurs[group]
    is_break &= step <= LONGEST_BREAK
    missing = np.rint(step / interval_ns).astype(np.int64) - 1
    if weekdays < 7:  # whole sessions are missing: only open hours count
        away = step > DAY
        if interval_ns >= 0.9 * DAY:
            missing[away] = np.maximum(1, np.rint(step[away] / interval_ns * weekdays / 7) - 1)
        else:
            missing[away] = np.maximum(1, np.rint(step[away] / DAY * weekdays / 7) * bars_per_session)
    gaps = tuple(Gap(int(timestamp[i]), int(timestamp[i + 1]), int(m)) for i, m in zip(at[~is_break], missing[~is_break], strict=True))
    return gaps, int(is_break.sum())


def infer_calendar(timestamp: np.ndarray, interval_ns: int | None = None, bars_per_year: float | None = None) -> Calendar:
    """Calendar of strictly increasing stamps (int64 [T] ns, T >= 1).

    interval_ns: bar length where the file or the settings say it, else None. bars_per_year: a set value, else None.
    The rule is in this module's docstring. Cost: a few passes and one sort, O(T log T).
    """
    interval = interval_ns or usual_interval(timestamp)
    steps = np.diff(timestamp)
    day = (timestamp - _day_cut(timestamp, steps, interval)) // DAY
    sessions, bars_per_session = _sessions(day)
    weekdays = _weekdays(sessions) if interval <= 1.1 * DAY else 7
    year, rule = _bars_per_year(timestamp, interval, sessions, bars_per_session, weekdays)
    if bars_per_year is not None:
        year, rule = float(bars_per_year), "set by data.bars_per_year"
    wrong = off_grid(timestamp, interval)
    regular = len(wrong) <= 0.5 * len(timestamp) or bool((np.abs(steps / interval - 1) <= 0.25).mean() >= 0.5)
    gaps, breaks = _gaps(timestamp, steps, interval, day, sessions, bars_per_session, weekdays) if interval and regular else ((), 0)
    return Calendar(interval, year, rule, len(sessions), bars_per_session, weekdays, gaps, breaks, wrong, regular)
