"""Imports go one way, and the command line starts without torch and CUDA."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numba", "numba.cuda", "polars", "pyarrow")
COSTLY = ("torch", "numba.np.linalg")  # the second: something was compiled
ROOT = Path(__file__).parents[1]


def test_imports_go_one_way():
    """The contracts in pyproject.toml: a module imports only from its own layer's lower ones."""
    lint = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import numba_rl",
        "import numba_rl.settings, numba_rl.rundir, numba_rl.signals",
        "from rltrain.main import _run; _run(['--help'], False)",
        "from rltrain.main import _run; _run(['train', 'ppo', '--help'], False)",
        "from rltrain.main import _run; _run(['train', 'ppo', '--set', 'ppo.lrr=1'], False)",
    ],
)
def test_starting_imports_nothing_heavy(code):
    check = f"import sys\n{code}\nprint('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("package", ["rules", "data", "kernels"])
def test_the_lower_layers_import_no_torch_and_compile_nothing(package):
    modules = [f"numba_rl.{package}.{path.stem}" for path in sorted((ROOT / "numba_rl" / package).glob("*.py")) if path.stem != "__init__"]
    assert modules
    check = f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\nprint([name in sys.modules for name in {COSTLY!r}])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[False, False]"


def test_only_gpu_and_what_it_does_to_the_simulator_import_numba_cuda():
    """Everything else reaches CUDA through numba_rl/gpu.py, so that its successor can be put in one place."""
    imports = re.compile(r"^\s*(from numba import .*\bcuda\b|from numba\.cuda import|import numba\.cuda)", re.MULTILINE)
    assert sorted(path.name for path in (ROOT / "numba_rl").rglob("*.py") if imports.search(path.read_text())) == ["gpu.py", "simulator.py"]
