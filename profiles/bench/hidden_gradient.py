"""A layer's backward with the ReLU below it on a GPU: a library's product and ReLU's kernel against one launch, by rows of a batch.

    python profiles/bench/hidden_gradient.py --json hidden_gradient.json

Both are checked against float64 before anything is timed. A time is the median over launches of one graph that holds 20 calls, between
CUDA events, divided by the calls.
"""

import argparse
import json
from pathlib import Path

import torch

from numba_rl.bench.rows import machine, require
from numba_rl.bench.timing import Clock
from numba_rl.gpu import blocks_for, stream, view
from numba_rl.kernels import hidden_gradient, relu_grad
from numba_rl.trainer.dqn_fused import MOST_GROUPS

DEVICE = torch.device("cuda")
ROWS = (256, 512, 1024, 2048, 4096)
SIZES = ((48, 256), (256, 256))  # inner numbers and columns of the default network's layers
REPEAT = 20  # calls of a graph
TOLERANCE = 3e-3  # of the norm: the gradient is rounded to bf16


def words(tensor, kind, unsigned):
    return view(tensor.view(kind).view(unsigned))


def current():
    return stream(torch.cuda.current_stream(DEVICE).cuda_stream)


def measure(clock: Clock, rows: int, inner: int, columns: int) -> dict[str, float]:
    """A row of the table."""
    random = torch.Generator(DEVICE).manual_seed(1)
    above, weight, hidden = (
        torch.randn(shape, device=DEVICE, generator=random).bfloat16() for shape in ((rows, inner), (inner, columns), (rows, columns))
    )
    hidden = hidden.relu()
    own, library = torch.zeros_like(hidden), torch.zeros_like(hidden)
    groups = max(1, min(MOST_GROUPS, rows // relu_grad.ROWS))
    own_sums, library_sums = (torch.zeros(count, columns, device=DEVICE) for count in (blocks_for(rows, hidden_gradient.SIDE), groups))
    kernel, relu = hidden_gradient.make_kernel(inner), relu_grad.make_relu_grad()
    pairs = [words(part, torch.int32, torch.uint32) for part in (above, weight, hidden, own)]
    quads = [words(part, torch.int64, torch.uint64) for part in (library, hidden)]

    def one_launch():
        hidden_gradient.launch(kernel, *pairs, view(own_sums), 0, current())

    def two():
        torch.mm(above, weight, out=library)
        relu[(blocks_for(columns // 4, 32), groups), 32 * relu_grad.ROWS, current()](*quads, view(library_sums), 0)

    one_launch()
    two()
    wanted = torch.where(hidden > 0, above.double() @ weight.double(), 0.0)
    checks = {
        name: float((found.double() - wanted).norm() / wanted.norm()) for name, found in (("error", own), ("error of the library", library))
    }
    checks["error of the sums"] = float((own_sums.double().sum(0) - wanted.sum(0)).norm() / wanted.sum(0).norm())
    require(max(checks.values()) < TOLERANCE, f"the gradient of {rows} rows", checks)
    times = {name: clock.time(function, repeat=REPEAT) * 1e6 for name, function in (("one launch, us", one_launch), ("two, us", two))}
    return {"rows": rows, "inner": inner, "columns": columns} | times | checks


def main() -> None:
    """Print a line a size, and keep all in a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clock, found = Clock(DEVICE, 0.2), []
    for rows in ROWS:
        for inner, columns in SIZES:
            found.append(measure(clock, rows, inner, columns))
            print("  ".join(f"{name} {value:.3g}" for name, value in found[-1].items()), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine(DEVICE), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
