"""C-07: kernels run in the order of torch's stream, and memory that a kernel still reads is not given away."""

import ast
from pathlib import Path

import pytest
import torch
from replay.helpers import KINDS, make

from numba_rl import gpu
from numba_rl.kernels.gae import launch_gae
from numba_rl.kernels.gae_scan import launch_gae_scan
from numba_rl.replay import PrioritizedReplay, interface

PACKAGE = Path(__file__).parents[2] / "numba_rl"
REPEATS = 200
SIZE = 4096


def launches(source):
    """(line, number of launch arguments) of each `kernel[grid, block, stream](...)` in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and isinstance(node.func.slice, ast.Tuple):
            yield node.lineno, len(node.func.slice.elts)


def test_every_launch_names_its_stream():
    """A launch of [grid, block] alone goes to CUDA's default stream, whatever stream torch works on."""
    found = {path.name: list(launches(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert sum(map(len, found.values())) > 20, "launches are no longer written as this test knows them"
    assert [(name, line) for name, lines in found.items() for line, arguments in lines if arguments < 3] == []
    assert list(launches("kernel[1, 2](x)\nkernel[1, 2, 3](x)")) == [(1, 2), (2, 3)]


def test_what_a_replay_is_given_is_kept_until_its_stream_has_read_it(monkeypatch):
    """As torch's own operations ask for it across streams: `record_stream` on each argument."""
    recorded = []

    class OnGpu(torch.Tensor):
        is_cuda = property(lambda self: True)

        def record_stream(self, stream):
            recorded.append((tuple(self.shape), stream))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: "side")
    given = [torch.zeros(shape).as_subclass(OnGpu) for shape in ((3, 2), (3, 2), (3,), (3,), (3,), (3,), (3,))]
    states, following, actions, rewards, discounts, flags, errors = given
    device = torch.device("cpu")
    interface.check_transitions(states, following, actions.long(), rewards, discounts, flags.int(), errors, 2, device)
    interface.check_slots(torch.zeros(5, dtype=torch.int64).as_subclass(OnGpu), device)
    assert recorded == [((3, 2), "side")] * 2 + [((3,), "side")] * 5 + [((5,), "side")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_keeps_nothing_of_its_arguments(kind):
    replay = make(kind, 8)
    for _ in range(3):
        states = torch.full((4, replay.state_width), 3.0, device=replay.device)
        column = torch.zeros(4, device=replay.device)
        replay.insert(states, states, column.int(), column, column)
        states.fill_(9.0)
        del states
        torch.full((4, replay.state_width), 9.0, device=replay.device)
    assert (replay.sample(8).states == 3.0).all()


def busy(factor):
    """Tens of milliseconds of work on the current stream."""
    x = factor
    for _ in range(30):
        x = x @ factor
    return x


@pytest.fixture
def matrix():
    return torch.randn(SIZE, SIZE, device="cuda") / SIZE**0.5


@pytest.fixture(params=["side", "default"])
def where(request):
    """The stream that torch works on."""
    return torch.cuda.Stream() if request.param == "side" else torch.cuda.default_stream()


def check_what_is_read(matrix, where, source, read):
    """read(), a tensor's mean as a kernel saw it, gives what torch wrote into `source` last, however busy the stream is."""
    results = torch.zeros(REPEATS, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(where):
        for repeat in range(REPEATS):
            source.fill_(1.0)
            if repeat % 10 == 0:
                busy(matrix)
            source.fill_(3.0)
            results[repeat] = read()
    torch.cuda.synchronize()
    assert (results == 3.0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("launch", [launch_gae, launch_gae_scan])
def test_a_kernel_reads_what_torch_wrote_before_it(matrix, where, launch):
    rewards, values, finals = (torch.zeros(rows, 64, device="cuda") for rows in (1, 2, 1))
    ends = torch.full((1, 64), -1, dtype=torch.int16, device="cuda")
    outputs = torch.zeros(1, 64, device="cuda"), torch.zeros(1, 64, device="cuda")

    def read():
        at = gpu.stream(torch.cuda.current_stream().cuda_stream)
        launch(*map(gpu.view, (rewards, values, ends, finals)), 0.9, 0.9, *map(gpu.view, outputs), stream=at)
        return outputs[0].sum() / 64

    check_what_is_read(matrix, where, rewards, read)


@pytest.mark.gpu
def test_a_replay_reads_what_torch_wrote_before_it(matrix, where):
    replay = PrioritizedReplay(64, 4, device="cuda")
    replay.prepare(64)
    states, column = torch.zeros(64, 4, device="cuda"), torch.zeros(64, device="cuda")

    def read():
        replay.insert(states, states, column.int(), column, column)
        return replay.sample(64).states.mean()

    check_what_is_read(matrix, where, states, read)


@pytest.mark.gpu
def test_a_temporary_that_is_dropped_is_not_written_over(matrix, where):
    """The inserts wait behind other work on their stream while their arguments' memory is asked for again on the default one."""
    replay = PrioritizedReplay(1024, 4, device="cuda")
    replay.prepare(1024)
    column = torch.zeros(1024, device="cuda")
    for _ in range(REPEATS // 10):
        where.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(where):
            busy(matrix)
        for _ in range(10):
            temporary = torch.full((1024, 4), 3.0, device="cuda")
            where.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(where):
                replay.insert(temporary, temporary, column.int(), column, column)
            del temporary
            torch.full((1024, 4), 9.0, device="cuda")
        torch.cuda.synchronize()
        assert (replay.sample(1024).states == 3.0).all()
