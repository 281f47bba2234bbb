"""`rltrain profile`: its files and figures on the CPU path, how a GPU's trace is counted, and what makes the host wait."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from numba_rl import gpu, settings
from numba_rl.bench import games, tracing, waits
from numba_rl.bench.ranges import Ranges, parts_of_epochs
from numba_rl.collect.batched import BatchedCollector
from numba_rl.config import Config
from numba_rl.errors import UserError
from numba_rl.trainer.building import build
from numba_rl.trainer.ppo import Ppo
from rltrain.profile import _new_directory, profile

SMALL = {
    "episodes.count": 4, "episodes.launch": 16, "ppo.actor": (16, 8), "ppo.critic": (16, 16), "dqn.hidden": (16, 16), "dqn.head": 8,
    "dqn.batch": 32, "dqn.n_step": 3, "replay.capacity": 1024, "train.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def market():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(games, "BARS", 1500)
        return games.market()


def small(**changes):
    return settings.replace(Config(), SMALL | changes)


def test_the_command_writes_its_files(rltrain, tmp_path):
    sets = [word for key in ("episodes.count=4", "episodes.launch=16", "ppo.actor=[16]", "ppo.critic=[16]") for word in ("--set", key)]
    done = rltrain("profile", "ppo", "--epochs", "1", "--device", "cpu", "--out", tmp_path / "here", *sets)
    assert done.returncode == 0, done.stderr
    assert "Ppo, BatchedCollector" in done.stdout and "64 steps" in done.stdout and "operators by time" in done.stdout
    assert "there are no streams, copies or launches to wait for on the CPU path" in done.stdout
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["summary.json", "table.txt", "trace.json.gz"]
    found = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert found["epochs"] == 1 and found["steps"] == 64 and found["host"] == {} and not found["on_gpu"]
    assert rltrain("profile", "ppo", "--out", tmp_path / "here").returncode == 2, "files of another profile are not written over"


@pytest.mark.parametrize(
    ("algorithm", "ranges"), [("ppo", ["collect", "values and advantages", "update"]), ("dqn", ["collect and store", "updates"])]
)
def test_ranges_cover_an_epoch(market, tmp_path, algorithm, ranges):
    found = tracing.trace(small(algorithm=algorithm), market, 2, tmp_path)
    assert list(found.ranges) == [*ranges, "epoch", "figures"]
    inside = sum(found.ranges[name] for name in ranges)
    assert 0 < inside <= found.ranges["epoch"]
    names = [part.name for part in found.parts]
    assert "aten::addmm" in names and not set(names) & set(found.ranges)
    assert [part.us for part in found.parts] == sorted((part.us for part in found.parts), reverse=True)


def test_ranges_only_leaves_the_profiler_out(market, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.profiler, "profile", None)
    found = tracing.trace(small(), market, 1, tmp_path, ranges_only=True)
    assert found.parts == [] and found.ranges["epoch"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.skipif(not gpu.SIMULATED, reason="there is a GPU")
def test_a_gpu_that_was_asked_for_is_not_replaced_by_the_cpu_path(market, tmp_path):
    with pytest.raises(UserError, match="train.device = cuda: the GPU cannot be used"):
        tracing.trace(small(**{"train.device": "cuda"}), market, 1, tmp_path)


def test_ranges_leave_a_trainer_as_it_was(market):
    config = small()
    trainer = build(config, market)
    before = {name: getattr(owner, method) for name, (owner, method) in parts_of_epochs(trainer).items()}
    with Ranges(trainer.device).within(trainer):
        trainer.epoch()
        assert all(getattr(owner, method) != before[name] for name, (owner, method) in parts_of_epochs(trainer).items())
    assert all(getattr(owner, method) == before[name] for name, (owner, method) in parts_of_epochs(trainer).items())


def event(name, start, end, device=DeviceType.CPU, annotation=False, self_us=0.0):
    span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, time_range=span, device_type=device, is_user_annotation=annotation, self_cpu_time_total=self_us)


def test_a_gpu_s_trace_is_counted_by_range():
    """As torch gives it: host calls, kernels on the device, ranges on both."""
    events = [
        event("epoch", 0, 100, annotation=True), event("epoch", 0, 100, DeviceType.CUDA, annotation=True),
        event("cudaGraphLaunch", 10, 12), event("cudaLaunchKernel", 20, 22), event("cuLaunchKernel", 30, 31), event("cudaMemcpyAsync", 40, 41),
        event("rollout", 12, 60, DeviceType.CUDA), event("gae", 60, 62, DeviceType.CUDA), event("gae", 62, 65, DeviceType.CUDA),
        event("figures", 100, 200, annotation=True), event("cudaMemcpyAsync", 110, 111), event("cudaStreamSynchronize", 111, 150),
        event("cudaMemcpy", 160, 170), event("cudaDeviceSynchronize", 300, 310),
    ]  # fmt: skip
    assert tracing.host_in(events, "epoch", 1) == (0, 0, 2, 1)
    assert tracing.host_in(events, "figures", 1, numba_waits=3) == (4, 1, 0, 0)
    assert tracing.host_in(events, "figures", 2).synchronisations == 0.5
    assert tracing.parts_of(events, 1, DeviceType.CUDA) == [("rollout", 1, 48), ("gae", 2, 5)]


class FakeDriver:
    def __init__(self):
        self.made = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *arguments: self.made.append((name, arguments))


@pytest.mark.parametrize(("given", "plain"), [
    ("numba_rl::kernels::minibatch::make_kernels::_3clocals_3e::rows[abi:v93][abi:cw51cXTL", "minibatch.rows"),
    ("numba_rl::kernels::relu_grad::make_relu_grad::_3clocals_3e::relu_grad[abi:v8]", "relu_grad"),
    ("_ZN8numba_rl7kernels12rollout_warp20rollout_warp_51_128_B2v1B4cw51Eff", "rollout_warp"),
    ("nvjet_sm90_tst_128x256_64x4", "nvjet_sm90_tst_128x256_64x4"), ("void at::native::fill<float>(int)", "void at::native::fill<float>(int)"),
])  # fmt: skip
def test_kernels_have_the_names_of_the_source(given, plain):
    assert tracing.plain_name(given) == plain


def test_numba_s_waits_are_counted_and_still_made():
    driver = FakeDriver()
    with waits.counted(driver) as calls:
        driver.cuStreamSynchronize(7)
        driver.cuLaunchKernel(1)
        driver.cuMemcpyDtoH(1, 2, 3)
    driver.cuStreamSynchronize(8)
    assert calls == {"cuStreamSynchronize": 1, "cuMemcpyDtoH": 1}
    assert driver.made == [
        ("cuStreamSynchronize", (7,)),
        ("cuLaunchKernel", (1,)),
        ("cuMemcpyDtoH", (1, 2, 3)),
        ("cuStreamSynchronize", (8,)),
    ]


def test_numba_s_waits_are_refused(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    driver = FakeDriver()
    with pytest.raises(waits.HostWaited, match="cuCtxSynchronize"), waits.refused(driver):
        driver.cuCtxSynchronize()
    assert driver.made == [] and modes == ["error", "default"]
    driver.cuCtxSynchronize()
    assert len(driver.made) == 1, "afterwards nothing is refused"


def test_the_names_that_are_watched_exist():
    """In the bindings that numba-cuda calls; an unknown name would only fail on a GPU."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    assert [name for name in waits.NUMBA_WAITS if not hasattr(bindings, name)] == []


@pytest.mark.parametrize(("words", "said"), [
    (["ppo", "--epochs", "0"], "--epochs"),
    (["ppo", "--set", "ppo.lrr=1"], "ppo.lr"),
    (["sac"], "No such command 'sac'"),
])  # fmt: skip
def test_mistakes_are_one_line_and_code_2(rltrain, tmp_path, words, said):
    done = rltrain("profile", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_directories_count_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(_new_directory(None, "profile-ppo")) for _ in range(3)] == [f"runs/profile-ppo{tail}" for tail in ("", "-2", "-3")]
    (tmp_path / "full").mkdir()
    assert _new_directory("full", "").name == "full"
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="full: exists already"):
        _new_directory("full", "")
    assert all("Example: rltrain profile" in command.help for command in (profile, *profile.commands.values()))


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"train.collector": "batched"}, {"algorithm": "dqn"}], ids=["fused", "batched", "dqn"])
def test_an_epoch_on_a_gpu_waits_for_nothing(market, tmp_path, changes):
    config = settings.replace(Config(), {"episodes.count": 64, "episodes.launch": 32, "train.device": "cuda"} | changes)
    found = tracing.trace(config, market, 2, tmp_path)
    assert found.on_gpu and found.parts
    assert found.host["epoch"].synchronisations == found.host["epoch"].blocking_copies == 0
    assert found.host["figures"].synchronisations > 0, "the count would see one"
    if not changes:
        assert found.host["epoch"].graph_launches == 2 and found.host["epoch"].kernel_launches < 5


@pytest.mark.gpu
def test_waits_on_a_gpu_are_refused(market):
    config = settings.replace(Config(), {"episodes.count": 32, "episodes.launch": 8, "train.device": "cuda", "train.collector": "batched"})
    ppo = Ppo(config, BatchedCollector(market, config, device="cuda"))
    ppo.epoch()
    with waits.refused():
        ppo.epoch()
    with pytest.raises(RuntimeError), waits.refused():
        ppo.sums.tolist()
