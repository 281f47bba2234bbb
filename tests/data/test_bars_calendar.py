"""Interval, sessions, gaps and bars per year from the stamps alone."""

import math
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numba_rl.data.calendar import DAY, HOUR, MINUTE, SECOND, infer_calendar, usual_interval

START = int(np.datetime64("2026-01-05", "ns").astype(np.int64))  # a Monday


def weekdays(first, number):
    """``number`` days from ``first`` without Saturdays and Sundays."""
    days = (first + timedelta(days=i) for i in range(2 * number + 10))
    return [day for day in days if day.weekday() < 5][:number]


def sessions(days, opens, closes, minutes, zone):
    """Stamps (ns UTC) of the bars from ``opens`` (hours) until ``closes``, in the zone's own time, on each day."""
    tz, out = ZoneInfo(zone), []
    for day in days:
        start = datetime(day.year, day.month, day.day) + timedelta(hours=opens)
        for step in range(round((closes - opens) * 60 / minutes)):
            out.append((start + timedelta(minutes=minutes * step)).replace(tzinfo=tz).timestamp())
    return (np.array(out) * SECOND).astype(np.int64)


def around_the_clock(interval, days):
    return START + np.arange(days * DAY // interval, dtype=np.int64) * interval


NEW_YORK = "America/New_York"


class TestBarsPerYear:
    @pytest.mark.parametrize(("minutes", "expected"), [(1, 525_600), (30, 17_520), (240, 2_190), (1440, 365)])
    def test_a_market_that_never_closes(self, minutes, expected):
        calendar = infer_calendar(around_the_clock(minutes * MINUTE, 20))
        assert calendar.bars_per_year == expected
        assert "365 days" in calendar.rule

    def test_half_hours_of_the_new_york_session(self):
        stamps = sessions(weekdays(date(2026, 1, 5), 20), 9.5, 16, 30, NEW_YORK)
        calendar = infer_calendar(stamps)
        assert calendar.bars_per_year == 252 * 13
        assert (calendar.sessions, calendar.bars_per_session, calendar.days_per_week) == (20, 13, 5)
        assert calendar.gaps == () and calendar.breaks == 19

    def test_too_short_to_tell(self):
        short = infer_calendar(sessions(weekdays(date(2026, 1, 6), 19), 9.5, 16, 30, NEW_YORK))
        assert math.isnan(short.bars_per_year)
        assert "19 sessions" in short.rule and "data.bars_per_year" in short.rule
        assert infer_calendar(around_the_clock(HOUR, 3), bars_per_year=8760.0).bars_per_year == 8760

    def test_thirty_days_of_few_sessions_suffice(self):
        days = [date(2026, 1, 5) + timedelta(days=7 * week + day) for week in range(5) for day in (0, 1, 2)]
        calendar = infer_calendar(sessions(days, 9, 17, 60, "UTC"))
        assert calendar.sessions == 15
        assert calendar.bars_per_year == round(365 * 3 / 7) * 8

    def test_clock_changes_half_days_and_holidays(self):
        days = weekdays(date(2026, 1, 5), 180)
        usual = [day for i, day in enumerate(days) if i % 25 != 7]
        early = [day for i, day in enumerate(days) if i % 60 == 11]
        stamps = sessions([day for day in usual if day not in early], 9.5, 16, 30, NEW_YORK)
        stamps = np.sort(np.concatenate([stamps, sessions(early, 9.5, 13, 30, NEW_YORK)]))
        calendar = infer_calendar(stamps)
        assert calendar.bars_per_year == 3276
        assert calendar.sessions == len(usual)  # half days too
        assert calendar.gaps == () and len(calendar.off_grid) == 0

    @pytest.mark.parametrize("zone", [NEW_YORK, "UTC"])
    def test_futures_with_an_hour_of_rest(self, zone):
        days = [date(2026, 2, 1) + timedelta(days=i) for i in range(100) if i % 7 < 5]  # Sunday to Thursday evenings
        calendar = infer_calendar(sessions(days, 18, 41, 15, zone))
        assert calendar.bars_per_year == 252 * 92
        assert calendar.gaps == ()

    def test_currencies_from_sunday_to_friday(self):
        days = [date(2026, 2, 1) + timedelta(days=i) for i in range(100) if i % 7 < 5]
        calendar = infer_calendar(sessions(days, 17, 41, 15, NEW_YORK))
        assert calendar.bars_per_year == 252 * 96
        assert calendar.gaps == ()

    def test_lunch_breaks_are_no_gaps(self):
        days = weekdays(date(2026, 1, 5), 30)
        stamps = np.sort(np.concatenate([sessions(days, *span, 5, "Asia/Tokyo") for span in ((9, 11.5), (12.5, 15))]))
        calendar = infer_calendar(stamps)
        assert calendar.bars_per_year == 252 * 60
        assert calendar.gaps == () and calendar.breaks == 59

    def test_years_of_data_are_counted(self):
        all_weekdays = sessions(weekdays(date(2022, 1, 3), 1040), 0, 24, 1440, "UTC")
        assert infer_calendar(all_weekdays).bars_per_year == 261
        assert infer_calendar(all_weekdays[:280]).bars_per_year == 261  # from a Monday to a Friday: not more than weekdays
        holidays = np.delete(all_weekdays, np.arange(10, 1040, 29))
        assert infer_calendar(holidays).bars_per_year == 252

    def test_weeks_and_months(self):
        assert infer_calendar(START + np.arange(60) * 7 * DAY).bars_per_year == 52
        months = np.arange("2020-01", "2026-01", dtype="datetime64[M]").astype("datetime64[ns]").astype(np.int64)
        calendar = infer_calendar(months)
        assert calendar.bars_per_year == 12
        assert calendar.gaps == () and len(calendar.off_grid) == 0

    def test_local_midnights(self):
        calendar = infer_calendar(sessions(weekdays(date(2026, 1, 5), 150), 0, 24, 1440, "Europe/Berlin"))
        assert calendar.bars_per_year == 252
        assert calendar.interval_ns == DAY and len(calendar.off_grid) == 0

    def test_thin_market_counts_the_bars_it_has(self):
        stamps = around_the_clock(MINUTE, 30)
        kept = stamps[np.random.default_rng(0).random(len(stamps)) < 0.5]
        calendar = infer_calendar(kept)
        assert calendar.interval_ns == MINUTE
        assert calendar.bars_per_year == pytest.approx(525_600 / 2, rel=0.02)


class TestGaps:
    def test_outages_of_a_market_that_never_closes(self):
        stamps = np.delete(around_the_clock(MINUTE, 30), np.r_[1430:1460, 10000, 20000:22000])
        assert [gap.missing for gap in infer_calendar(stamps).gaps] == [30, 1, 2000]

    def test_an_outage_over_midnight_in_a_short_file(self):
        stamps = np.delete(around_the_clock(MINUTE, 2), np.arange(1430, 1460))
        assert [gap.missing for gap in infer_calendar(stamps).gaps] == [30]

    def test_bars_missing_inside_sessions(self):
        stamps = sessions(weekdays(date(2026, 1, 5), 30), 9.5, 16, 5, NEW_YORK)
        calendar = infer_calendar(np.delete(stamps, [5, 6, 100, 101, 102, 300]))
        assert [gap.missing for gap in calendar.gaps] == [2, 3, 1]
        assert calendar.breaks == 29

    def test_missing_weeks_are_no_holiday(self):
        stamps = sessions(weekdays(date(2026, 1, 5), 60), 9.5, 16, 5, NEW_YORK)
        calendar = infer_calendar(np.delete(stamps, np.arange(20 * 78, 27 * 78)))
        assert [gap.missing for gap in calendar.gaps] == [pytest.approx(7 * 78, abs=2 * 78)]
        days = np.delete(np.asarray(stamps[::78]), np.arange(20, 27))
        assert [gap.missing for gap in infer_calendar(days).gaps] == [pytest.approx(7, abs=1)]


class TestGrid:
    def test_usual_distance_not_the_mean(self):
        stamps = START + np.array([0, 1, 2, 3, 9, 10, 11, 100]) * MINUTE
        assert usual_interval(stamps) == MINUTE
        assert usual_interval(stamps[::-1]) == MINUTE
        assert usual_interval(stamps[:1]) == 0

    def test_a_tie_goes_to_the_length_that_divides_a_day(self):
        assert usual_interval(START + np.array([0, DAY, DAY + 13 * HOUR])) == DAY

    def test_jitter(self):
        stamps = around_the_clock(MINUTE, 30)
        late = stamps + np.random.default_rng(0).integers(0, 2 * SECOND, len(stamps))
        calendar = infer_calendar(late)
        assert calendar.interval_ns == MINUTE and calendar.bars_per_year == 525_600
        assert calendar.gaps == () and calendar.regular

    def test_bars_by_trades_have_no_grid(self):
        stamps = START + np.cumsum(np.random.default_rng(0).exponential(50 * SECOND, 5000)).astype(np.int64)
        calendar = infer_calendar(stamps)
        assert not calendar.regular and calendar.gaps == ()

    @given(st.sampled_from([1, 5, 15, 60]), st.lists(st.integers(1, 4000), min_size=1, max_size=30, unique=True))
    def test_late_stamps_are_found(self, minutes, late):
        stamps = around_the_clock(minutes * MINUTE, 5000 * minutes // 1440 + 1)[:5000].copy()
        stamps[late] += 14 * SECOND
        assert infer_calendar(stamps).off_grid.tolist() == sorted(late)

    @given(st.integers(2, 3000), st.sampled_from([1, 3, 5, 15, 30, 60, 240, 1440]))
    @example(1767, 15)  # on 8 of 19 days the same bar is missing, by chance
    def test_every_bar_is_accounted_for(self, number, minutes):
        """With a tenth of the bars missing, those found and those reported missing make the whole."""
        stamps = START + np.arange(number, dtype=np.int64) * minutes * MINUTE
        keep = np.random.default_rng(number).random(number) < 0.9
        keep[[0, -1]] = True
        calendar = infer_calendar(stamps[keep], minutes * MINUTE)
        if calendar.days_per_week == 7:
            assert keep.sum() + sum(gap.missing for gap in calendar.gaps) == number


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_few_bars_crash_nothing(number):
    calendar = infer_calendar(around_the_clock(HOUR, 1)[:number])
    assert calendar.interval_ns == (HOUR if number > 1 else 0)
    assert math.isnan(calendar.bars_per_year)
