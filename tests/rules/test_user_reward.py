"""A user's own reward: what it is given, that it is used, and that a function that cannot be used gets one clear line."""

import numpy as np
import pytest

from numba_rl.errors import ConfigError
from numba_rl.rules.fills import Outcome
from numba_rl.rules.user_reward import PARAMETERS, load_reward


def write(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def outcome(**fields):
    """An Outcome of zeros but for `fields`."""
    return Outcome(**{name: fields.get(name, 0.0) for name in Outcome._fields})


def body(line, parameters=PARAMETERS):
    return f"import math\n\n\ndef reward({parameters}):\n    {line}\n"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("equity_before", 100.0), ("equity_after", 110.0), ("price_before", 7.0), ("price_after", 8.0), ("exposure_before", -0.5),
        ("exposure_after", 1.0), ("cost", 1.0 + 2.0 + 4.0 + 8.0 + 16.0), ("drawdown", 0.25), ("step", 33.0), ("1", 1.0),
        ("price_after > price_before", 1.0), ("math.log(equity_after / equity_before)", np.log(1.1)),
    ],
)  # fmt: skip
def test_each_parameter_is_what_it_is_called(tmp_path, expression, expected):
    base = load_reward(f"{write(tmp_path, body(f'return {expression}'))}:reward")
    step = outcome(
        equity_before=100.0, equity_after=110.0, exposure_before=-0.5, exposure_after=1.0, fee=1.0, spread_cost=2.0, financing=4.0,
        exit_fee=8.0, exit_spread_cost=16.0, drawdown=0.25,
    )  # fmt: skip
    paid = base(step, 7.0, 8.0, 33, None)
    assert paid == pytest.approx(expected, rel=1e-6)


def test_helpers_may_be_called_and_the_decorator_may_stand_already(tmp_path):
    text = f"from numba import njit\n\n\n@njit\ndef twice(x):\n    return x + x\n\n\n@njit\ndef reward({PARAMETERS}):\n    return twice(cost)\n"
    base = load_reward(f"{write(tmp_path, text)}:reward")
    assert base(outcome(fee=3.0), 1.0, 1.0, 0, None) == 6.0


def test_nothing_is_left_beside_the_file(tmp_path):
    load_reward(f"{write(tmp_path, body('return cost'))}:reward")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (body("return cost"), "rewards", "has no function rewards"),
        ("reward = 3\n", "reward", "has no function reward"),
        ("def reward(:\n", "reward", "fails: line 1: SyntaxError"),
        ("import nothing_of_this_name\n", "reward", "fails: line 1: ModuleNotFoundError"),
        (body("return 1.0", "equity_before, equity_after"), "reward", "takes 2 parameters; it must take nine: equity_before"),
        (body("return 1.0", "*anything"), "reward", "takes 1 parameters; it must take nine"),
        (body("return open(cost)"), "reward", "line 5: Untyped global name 'open'"),
        (body("return equity.mean()"), "reward", "name 'equity' is not defined"),
        (body("return cost.size"), "reward", "line 5: Unknown attribute 'size'"),
        ("def helper(x):\n    return x\n\n\n" + body("return helper(cost)"), "reward", "put @njit on the functions that it calls"),
        (body("return 'high'"), "reward", "must return a number on every path, not"),
        (body("return cost, step"), "reward", "must return a number on every path, not"),
        (body("cost + 1"), "reward", "must return a number on every path, not none"),
    ],
)
def test_what_cannot_be_used_gets_one_line(tmp_path, text, name, said):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_reward(f"{path}:{name}")
    message = str(caught.value)
    assert said in message
    assert "mine.py" in message
    assert "\n" not in message


@pytest.mark.parametrize("spec", ["mine.py", ":reward", "mine.py:"])
def test_a_spec_without_file_or_name(spec):
    with pytest.raises(ConfigError, match=r"must be FILE\.py:NAME"):
        load_reward(spec)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        load_reward(f"{tmp_path}/none.py:reward")
