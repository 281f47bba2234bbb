"""The replay on a GPU: the whole load that the simulator cannot carry, graphs, streams, and sizes past 32 bits."""

import numpy as np
import pytest
import torch
from cuda.bindings import driver
from reference import replay as reference
from replay.helpers import check_rows, check_sums, insert, items, make, with_priorities
from scipy import stats

from numba_rl.kernels.replay_layout import Layout, choose_layout
from numba_rl.replay import BetaSchedule, PrioritizedReplay, ReplayRules
from numba_rl.replay.device import DeviceReplay
from numba_rl.replay.host import HostReplay

pytestmark = pytest.mark.gpu


def filled(capacity, width=8, *, errors=None, seed=0, **options):
    """A full replay with known rows: row k has k in its first column, priorities from `errors` or exponential ones."""
    replay = DeviceReplay(capacity, width, ReplayRules(seed=seed), "cuda", **options)
    generator = torch.Generator("cuda").manual_seed(seed)
    for low in range(0, capacity, 500_000):
        n = min(500_000, capacity - low)
        states = torch.zeros(n, width, device="cuda")
        states[:, 0] = torch.arange(low, low + n, device="cuda") % 65536
        actions = torch.arange(low, low + n, device="cuda", dtype=torch.int32)
        e = torch.rand(n, device="cuda", generator=generator).log().neg() if errors is None else errors[low : low + n]
        replay.insert(states, states + 1, actions, torch.rand(n, device="cuda", generator=generator), 0.99, errors=e)
    return replay


def capture(call, warm=1):
    """A CUDA graph of one call, which is also run `warm` times before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@pytest.mark.parametrize("capacity", [7, 1000, 1024, 100_000, 1_000_000, 3_000_001])
@pytest.mark.parametrize("batch_size", [1, 255, 1024, 4096])
def test_draw_gather_and_update_against_the_reference(capacity, batch_size):
    replay = filled(capacity, seed=1)
    check_sums(replay)
    for step in range(2):
        priorities = replay.priorities.cpu().numpy().astype(np.float64)
        batch = replay.sample(batch_size)
        slots = batch.indices.cpu().numpy()
        assert slots.min() >= 0 and slots.max() < capacity and (np.diff(slots) >= 0).all()
        edges = np.concatenate([[0], np.cumsum(priorities)])
        low = np.arange(batch_size) / batch_size * edges[-1]
        assert (edges[slots + 1] >= low * (1 - 1e-12)).all()  # each sample comes from its own stratum
        assert (edges[slots] <= (low + edges[-1] / batch_size) * (1 + 1e-12)).all()
        assert torch.equal(batch.actions.long(), batch.indices)
        assert torch.equal(batch.states[:, 0].long(), batch.indices % 65536) and torch.equal(batch.next_states, batch.states + 1)
        beta = reference.beta_at(step, 0.4, 1.0, 100_000)
        np.testing.assert_allclose(batch.weights.cpu(), reference.weights_of(priorities, slots, capacity, beta), rtol=1e-5)
        errors = torch.randn(batch_size, device="cuda")
        errors[::7] *= 1e3
        errors[5::11] = float("nan")
        errors[3::13] = float("inf")
        ring = reference.Ring(capacity, 0.6, 1e-6, 1e6)
        ring.inserted, ring.priorities = capacity, priorities
        replay.update(batch, errors)
        ring.update(slots, errors.cpu().numpy(), peak=float(batch.peak))
        np.testing.assert_allclose(replay.priorities.cpu(), ring.priorities, rtol=2e-6)
        check_sums(replay)


@pytest.mark.parametrize("slot_range", [1, 50, 5000])
def test_crowded_updates(slot_range):
    """More samples under one top than its block lists, and thousands of duplicates."""
    replay = filled(100_000)
    rng = np.random.default_rng(slot_range)
    slots, errors = rng.integers(0, slot_range, 8192), rng.normal(size=8192).astype(np.float32)
    ring = reference.Ring(100_000, 0.6, 1e-6, 1e6)
    ring.inserted, ring.priorities = 100_000, replay.priorities.cpu().numpy().astype(np.float64)
    replay.update_slots(torch.tensor(slots, device="cuda"), torch.tensor(errors, device="cuda"))
    ring.update(slots, errors)
    np.testing.assert_allclose(replay.priorities.cpu(), ring.priorities, rtol=2e-6)
    check_sums(replay)


def test_a_million_draws_follow_the_priorities():
    replay = filled(5000, seed=2)
    counts = torch.zeros(5000, dtype=torch.int64, device="cuda")
    for _ in range(1000):
        counts += torch.bincount(replay.sample(1000).indices, minlength=5000)
    priorities = replay.priorities.cpu().numpy().astype(np.float64)
    assert stats.chisquare(counts.cpu(), priorities / priorities.sum() * 1e6).pvalue > 1e-4


def test_small_priorities_beside_a_huge_one_are_drawn_evenly():
    n = 8192
    replay = filled(n)
    priorities = np.full(n, 0.05, np.float32)
    priorities[100] = 1e6
    with_priorities(replay, priorities)
    counts = torch.zeros(n, dtype=torch.int64, device="cuda")
    for _ in range(5000):  # 82 million draws, about 34,000 of them small
        counts += torch.bincount(replay.sample(16384).indices, minlength=n)
    counts = counts.cpu().numpy()
    small = np.delete(counts, 100)
    assert abs(small.sum() - 5000 * 16384 * 0.05 * (n - 1) / 1e6) < 1000
    groups = small[: 8190 // 90 * 90].reshape(-1, 90).sum(1)
    assert stats.chisquare(groups).pvalue > 1e-4


@pytest.mark.parametrize("mode", ["proportional", "rank", "uniform"])
def test_host_and_device_draw_the_same_distribution(mode):
    rules = {"mode": mode, "alpha": 0.7}
    errors = np.random.default_rng(0).exponential(size=5000)
    device, host = make("device", 5000, seed=1, **rules), make("host", 5000, seed=2, **rules)
    drawn = []
    for replay in (device, host):
        insert(replay, range(5000), errors)
        drawn.append(np.concatenate([replay.sample(100).indices.cpu().numpy().copy() for _ in range(100)]))
    assert stats.ks_2samp(*drawn).pvalue > 1e-4


@pytest.mark.parametrize("mode", ["proportional", "rank", "uniform"])
def test_host_and_device_draw_the_same_slots_from_the_same_seed(mode):
    device, host = make("device", 5000, seed=1, mode=mode), make("host", 5000, seed=1, mode=mode)
    errors = np.random.default_rng(0).exponential(size=6000)
    for replay in (device, host):
        insert(replay, range(6000), errors)
    host.load_state_dict(device.state_dict())  # powers may differ in the last bit
    for _ in range(20):
        a, b = device.sample(512), host.sample(512)
        assert (a.indices.cpu() != b.indices).sum() <= 1
        assert torch.equal(a.states.cpu()[a.indices.cpu() == b.indices], b.states[a.indices.cpu() == b.indices])


@pytest.mark.parametrize(("sample_warps", "update_warps"), [(4, 8), (16, 32)])
def test_block_sizes_layouts_and_the_states_dtype_change_nothing(sample_warps, update_warps):
    plain = filled(100_000, seed=3)
    other = filled(100_000, seed=3, layout=Layout(100_000, 8, 64, 32), sample_warps=sample_warps, update_warps=update_warps)
    for _ in range(5):
        batches = [plain.sample(1024), other.sample(1024, torch.bfloat16)]
        assert torch.equal(batches[0].indices, batches[1].indices) and torch.equal(batches[0].weights, batches[1].weights)
        assert torch.equal(batches[0].stacked.bfloat16(), batches[1].stacked)
        errors = torch.randn(1024, device="cuda")
        for replay, batch in zip((plain, other), batches, strict=True):
            replay.update(batch, errors)
    assert torch.equal(plain.priorities, other.priorities)


def test_runs_are_bit_identical():
    results = []
    for _ in range(3):
        replay = filled(50_000, seed=4)
        generator = torch.Generator("cuda").manual_seed(0)
        for _ in range(50):
            batch = replay.sample(2048)
            replay.update(batch, torch.randn(2048, device="cuda", generator=generator))
        results.append((replay.leaves.clone(), replay.sums.clone(), replay.tops.clone(), batch.weights.clone()))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_graph_goes_on_drawing_as_eager_calls_do(dtype):
    eager, graphed = filled(20_000, seed=5), filled(20_000, seed=5)
    graphed.prepare(256, dtype)
    new = items(range(64), 8, "cuda")
    scale = torch.ones(1, device="cuda")

    def step(replay):
        for _ in range(3):
            batch = replay.sample(256, dtype)
            replay.update(batch, batch.rewards * scale + batch.weights)
        replay.insert(*new)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(graphed)
    for k in range(400):  # 25,600 inserts: around the ring
        scale.fill_(1 + k % 7)
        graph.replay()
        step(eager)
    assert torch.equal(eager.counters, graphed.counters)
    assert torch.equal(eager.priorities, graphed.priorities) and torch.equal(eager.rows, graphed.rows)
    one, other = eager.batch(256, dtype), graphed.batch(256, dtype)
    assert torch.equal(one.weights, other.weights) and torch.equal(one.stacked, other.stacked)
    check_sums(graphed)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs compute capability 9.0")
def test_a_draw_is_set_up_while_the_update_before_it_ends():
    replay = filled(1000)
    replay.prepare(64)
    errors = torch.ones(64, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        for _ in range(3):
            replay.update(replay.sample(64), errors)
    raw = graph.raw_cuda_graph()
    count = driver.cuGraphGetEdges(raw)[-1]
    edges = driver.cuGraphGetEdges(raw, count)[3]
    assert [edge.type for edge in edges].count(int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)) == 2
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    check_sums(replay)


def test_beta_can_be_changed_under_a_graph():
    replay = filled(1000)
    replay.prepare(64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replay.sample(64)
    replay.settings[3:5] = 0.0
    graph.replay()
    assert (replay.batch(64).weights == 1).all()
    replay.settings[3:5] = 1.0
    graph.replay()
    assert replay.batch(64).weights.min() < 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_allocated_by_sampling_and_updating(dtype):
    replay = filled(100_000)
    replay.prepare(1024, dtype)
    errors = torch.randn(1024, device="cuda")
    replay.update(replay.sample(1024, dtype), errors)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(20):
        replay.update(replay.sample(1024, dtype), errors)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_a_side_stream_is_kept_to():
    replay = filled(100_000)
    replay.prepare(256)
    stream, big = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    for k in range(50):
        with torch.cuda.stream(stream):
            value = big
            for _ in range(10):
                value = value @ big / 50
            errors = torch.full((256,), float(k + 2), device="cuda") + 0 * value[0, 0].nan_to_num(0, 0, 0)
            batch = replay.sample(256)
            replay.update(batch, errors)
            del errors  # its memory may be given away at once; the kernel must still see the old values
            torch.full((256,), 1e5, device="cuda")
            seen = replay.priorities[batch.indices].clone()
        stream.synchronize()
        torch.testing.assert_close(seen, torch.full_like(seen, (k + 2) ** 0.6 + 1e-6))


def test_takes_over_on_out_of_memory_at_the_start():
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e9 / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.warns(RuntimeWarning, match="moved to main memory with 0 transitions"):
            replay = PrioritizedReplay(4_000_000, 54, device="cuda")  # 1.9 GB; main memory is only taken where it is written
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert replay.on_host
    replay.insert(*items(range(100), 54, "cuda"))
    batch = replay.sample(16)
    assert batch.states.is_cuda and batch.weights.is_cuda
    check_rows(batch, range(100))
    replay.update(batch, torch.ones(16, device="cuda"))


def test_to_host_and_back():
    replay = PrioritizedReplay(5000, 8, device="cuda", beta_steps=10)
    replay.insert(*items(range(6000), 8, "cuda"))
    host = replay.to_host()
    assert isinstance(host, HostReplay) and host.device.type == "cuda"
    a, b = replay.sample(64), host.sample(64)
    assert torch.equal(a.indices, b.indices) and torch.equal(a.states, b.states) and b.states.is_cuda
    replay.load_state_dict(host.state_dict())
    assert torch.equal(replay.sample(64).indices, host.sample(64).indices)


def test_rank_mode_follows_its_distribution():
    replay = make("device", 300, 1, mode="rank", alpha=0.8)
    insert(replay, range(200), np.random.default_rng(4).exponential(size=200))
    order, p = reference.rank_distribution(replay.priorities.cpu().numpy(), 0.8)
    counts = torch.zeros(300, dtype=torch.int64, device="cuda")
    for _ in range(1000):
        counts += torch.bincount(replay.sample(1000).indices, minlength=300)
    counts = counts.cpu().numpy()
    assert counts.sum() == counts[order].sum() == 1_000_000
    assert stats.chisquare(counts[order], p * 1e6).pvalue > 1e-4


def test_c04_forty_two_million_rows():
    """Flat index 2,267,999,999 of a 54-wide state, in a ring of 19.5 GB."""
    rows, width = 42_000_000, 54
    if torch.cuda.mem_get_info()[0] < 26 * 10**9:
        pytest.skip("needs 26 GB of free device memory")
    replay = DeviceReplay(rows, width, ReplayRules(alpha=1.0, beta=BetaSchedule(0.0, 0.0)), "cuda", layout=choose_layout(rows, width))
    chunk = 2_000_000
    states = torch.zeros(chunk, width, device="cuda")
    actions, floats = torch.zeros(chunk, dtype=torch.int32, device="cuda"), torch.zeros(chunk, device="cuda")
    errors = torch.full((chunk,), 1e-6, device="cuda")
    for low in range(0, rows, chunk):
        states[0, 0] = 7.5 if low == 0 else 0.0
        states[-1, -1] = 8.25 if low + chunk == rows else 0.0
        errors[0] = 1e6 if low == 0 else 1e-6
        errors[-1] = 1e6 if low + chunk == rows else 1e-6
        replay.insert(states, -states, actions, floats, floats, errors=errors)
    assert replay.size == rows
    batch = replay.sample(2)
    assert batch.indices.tolist() == [0, rows - 1]
    assert float(batch.states[0, 0]) == 7.5 and float(batch.states[1, -1]) == 8.25
    assert float(batch.next_states[0, 0]) == -7.5 and float(batch.next_states[1, -1]) == -8.25
    assert float(batch.states.abs().sum()) == 15.75
    replay.update(batch, torch.tensor([1.0, 2.0], device="cuda"))
    torch.testing.assert_close(replay.priorities[[0, rows - 1]].cpu(), torch.tensor([1.0, 2.0]))
    total = replay.leaves.double().sum().item()
    assert abs(replay.total() - total) < 1e-9 * total
