"""A user's own reward function: what it is given, that it becomes the base, and what is said when it cannot."""

import math
import re

import numpy as np
import pytest
from rules.driver import bars, costless, rules

from numba_rl.errors import ConfigError
from numba_rl.rules.game import fresh_slot, make_play, play
from numba_rl.rules.shaping import no_shaping
from numba_rl.rules.user_reward import ARGUMENTS, load_reward

HEAD = f"def reward({', '.join(ARGUMENTS)}):\n"


@pytest.fixture
def written(tmp_path):
    """Writes a file and gives FILE.py:NAME."""

    def write(text, name="reward"):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return f"{path}:{name}"

    return write


def test_it_replaces_the_base_and_sees_all_nine_arguments(written):
    body = "    return " + " + ".join(f"{10.0**k} * ({name} == {value})" for k, (name, value) in enumerate(
        {"equity_before": 1000, "equity_after": 1089, "price_before": 100, "price_after": 110, "exposure_before": 0, "exposure_after": 1, "cost": 1, "drawdown": 0, "step": 7}.items()
    ))  # fmt: skip
    mine = make_play(load_reward(written(HEAD + body)))
    r = rules(reward={"diversity": 1.0}, **costless(initial_capital=1000.0, fill_at="close", sizing="units", max_position=9.0, min_fee=1.0))
    prices = bars([100.0, 110.0])
    arguments = (fresh_slot(100.0, no_shaping(), r), 37, 100.0, *prices[1], 7, r)
    slot, outcome, reward = mine(*arguments)
    assert reward == 111_111_111.0 or math.isclose(reward, 111_111_111.0, rel_tol=1e-7)
    assert slot == play(*arguments)[0] and outcome == play(*arguments)[1]  # the money is that of the game


def test_the_result_is_float32_and_other_terms_are_added(written):
    mine = make_play(load_reward(written("SCALE = 0.1\ndef helped(x):\n    return x\n" + HEAD + "    return SCALE if step > 2 else -1")))
    r = rules(reward={"risk": 2.0}, **costless(fill_at="close"))
    slot = fresh_slot(100.0, no_shaping(), r)
    lost = mine(slot, 37, 100.0, 100.0, 100.0, 90.0, 90.0, 3, r)[2]
    assert lost == pytest.approx(0.1 - 2.0 * 0.1, abs=1e-7) and mine(slot, 19, 100.0, 100.0, 100.0, 90.0, 90.0, 2, r)[2] == -1.0


def test_it_may_use_its_own_functions_and_neighbours(written, tmp_path):
    (tmp_path / "neighbour.py").write_text("from numba import njit\n@njit\ndef twice(x):\n    return 2 * x\n")
    base = load_reward(written("import math\nimport numpy as np\nfrom neighbour import twice\n" + HEAD + "    return twice(math.log(np.exp(cost)))"))
    r = rules(**costless(min_fee=3.0))
    reward = make_play(base)(fresh_slot(100.0, no_shaping(), r), 37, 100.0, 100.0, 100.0, 100.0, 100.0, 0, r)[2]
    assert reward == pytest.approx(6.0, rel=1e-6)
    assert isinstance(np.float32(reward), np.float32)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def reward(a, b):\n    return a\n", r"mine\.py, line 1: reward must take 9 arguments \(equity_before, .*, step\), it takes a, b"),
        ("def reward(*all):\n    return 0\n", r"it takes \*all"),
        ("def other():\n    pass\n", r"mine\.py has no function reward"),
        ("reward = 3\n", r"reward in .*mine\.py is no function but a int"),
        ("x = 1\ndef reward(:\n", r"mine\.py, line 2: invalid syntax"),
        ("\nimport no_such_module\n", r"mine\.py, line 2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f():\n    return 1 / 0\nf()\n", r"mine\.py, line 2: ZeroDivisionError: division by zero"),
        (HEAD + "    x = cost\n    return x + 'a'\n", r"mine\.py, line 3: reward does not compile: No implementation .*add"),
        (HEAD + "    return unknown(cost)\n", r"mine\.py, line \d: reward does not compile: .*'unknown' is not defined"),
        (HEAD + "    import math\n    return math.pi\n", r"mine\.py, line 2: reward does not compile: .*IMPORT_NAME"),
        (HEAD + "    cost + 1\n", r"reward must return a number on every path, not nothing"),
        (HEAD + "    if cost > 0:\n        return cost\n", r"number on every path, not sometimes nothing"),
        (HEAD + "    return cost, step\n", r"must return a number on every path, not Tuple"),
        ("import numpy as np\n" + HEAD + "    return np.random.rand()\n", r"uses random numbers, which a kernel cannot"),
        ("import numpy as np\n" + HEAD + "    return np.array([cost, drawdown]).sum()\n", r"uses arrays or lists, which a kernel cannot"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(written, text, says):
    with pytest.raises(ConfigError) as error:
        load_reward(written(text))
    assert re.search(says, str(error.value)) and "\n" not in str(error.value)


def test_no_such_file_and_no_such_form(tmp_path):
    with pytest.raises(ConfigError, match="there is no file .*absent.py"):
        load_reward(f"{tmp_path}/absent.py:reward")
    for place in ("mine.py", "mine.py:", ":reward"):
        with pytest.raises(ConfigError, match="must be FILE.py:NAME"):
            load_reward(place)
