"""What a training is made of: the device and the collector that its settings ask for, the trainer on them, sized and compiled."""

import contextlib
import logging
from collections.abc import Callable

import torch

from numba_rl import gpu
from numba_rl.collect.batched import BatchedCollector, launch_steps
from numba_rl.collect.epoch import Epochs
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.errors import ConfigError, UserError, one_line
from numba_rl.kernels.replay_layout import choose_layout
from numba_rl.replay import PrioritizedReplay
from numba_rl.replay.device import DeviceReplay
from numba_rl.rules.user_reward import load_reward
from numba_rl.settings import replace
from numba_rl.trainer import dqn_fused, fused_update, memory
from numba_rl.trainer.dqn import Dqn
from numba_rl.trainer.dqn_update import Learner
from numba_rl.trainer.networks import PORTFOLIO_FEATURES
from numba_rl.trainer.ppo import Ppo

SPARE = 4e9  # bytes that must be free on a GPU for processes beside the training to use it

_log = logging.getLogger("numba_rl")


def build(
    config: Config,
    market: Market,
    poll=lambda: None,
    warn: Callable[[str], None] = _log.warning,
    sizes: dict | None = None,
    fall_back: Callable[[str], None] = _log.warning,
):
    """The trainer of config.algorithm on the device and with the collector that the settings ask for, everything compiled.

    What does not fit into memory is reduced, with a warning (trainer.memory); sizes: `sizes_of` the trainer whose checkpoint is to be
    loaded next. A GPU that cannot be used, or whose memory does not do, gives the CPU path, and `fall_back` is told why, within the handler
    of the error where there is one.
    """
    base = _user_base(config)
    device = pick_device(config, fall_back)
    if device.type == "cuda":
        try:
            return _built(config, market, device, base, poll, warn, sizes)
        except Exception as error:  # out of memory, a compiler's and a driver's errors have no common class
            if isinstance(error, UserError) and not isinstance(error, memory.DoesNotFit):
                raise
            fall_back(f"the GPU cannot be used ({one_line(error)}); training goes on on the CPU path")
            config = on_cpu(config)
    return _built(config, market, torch.device("cpu"), base, poll, warn, sizes)


def _user_base(config: Config):
    """The user's compiled reward, or None."""
    return load_reward(config.reward.function) if config.reward.function else None


def _built(config, market, device, base, poll, warn, sizes):
    config, _, notices = _fitted(config, market, device, sizes)
    for line in notices:
        warn(line)
    if device.type == "cuda" and config.train.memory_limit_gb is not None:
        share = config.train.memory_limit_gb * 1e9 / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    play_tiny(config, market, device, base)  # compiles before the first signal can be lost in a compiler
    return _trainer(config, market, device, base, poll)


def play_tiny(config: Config, market: Market, device: torch.device, base=None) -> None:
    """An epoch of a training of a few steps, with the kernels of one by `config`: they are then compiled. base: a user's compiled reward."""
    tiny = _trainer(_tiny(config, device), market, device, base, kernels_of=config)
    tiny.observe = Epochs(tiny.collector, market.regime[:, 0]).end
    tiny.epoch()


def open_gpu(config: Config) -> None:
    """Have the driver open the GPU of a training by `config`, if it has one. That takes a moment; the training then finds it open."""
    with contextlib.suppress(RuntimeError):  # the training meets it as well, and deals with it
        torch.zeros(1, device=pick_device(config, lambda line: None))


def spare_gpu(config: Config) -> torch.device:
    """The GPU of a training by `config`, for a process beside it. RuntimeError: there is none, or too little of its memory is free."""
    device = pick_device(config, lambda line: None)
    if device.type != "cuda":
        raise RuntimeError("no GPU")
    if torch.cuda.mem_get_info(device)[0] < SPARE:
        raise RuntimeError(f"less than {SPARE / 1e9:.0f} GB of the GPU's memory are free")
    return device


def compile_for(config: Config, market: Market, device: torch.device) -> None:
    """Meet every kernel that a training by `config` launches on the GPU `device`, for a process under gpu.compile_only.

    market: any with the features of the training's.
    """
    config = _fitted(config, market, device, None)[0]
    play_tiny(config, market, device, _user_base(config))
    if config.algorithm == "dqn":  # the replay's kernels are made for its capacity
        width = market.features.shape[1] + PORTFOLIO_FEATURES
        tiny = PrioritizedReplay.from_config(_tiny(config, device).replay, width, device=device).backend
        if isinstance(tiny, DeviceReplay):
            tiny.layout = choose_layout(config.replay.capacity, width)
            learner = dqn_fused.FusedLearner if dqn_fused.fits(config, device) else Learner
            tiny.prepare(config.dqn.batch, learner.state_dtype)


def _fitted(config, market, device, sizes):
    """(settings that fit into the memory of `device`, a line on what they take of it, what was reduced)."""
    has = memory.room(device, config.train.memory_limit_gb)
    if sizes:
        same = sizes["device"] == device.type  # a replay is sized for its device, episodes stay wherever they are played
        config = replace(config, {key: value for key, value in sizes.items() if key == "episodes.count" or (same and key in memory.SIZES)})
    fused = config.train.collector != "batched" and why_not_fused(config, market, device) is None
    fitted, notices = memory.fitted(config, len(market), market.features.shape[1], device, has, fused=fused, resumed=bool(sizes))
    found = memory.estimate(fitted, len(market), market.features.shape[1], device, fused=fused)
    return fitted, memory.describe(found, has), notices


def sizes_of(trainer) -> dict:
    """What `build` has to be told to make a trainer that can load this one's state, for meta.json."""
    sizes = {"device": trainer.device.type, "episodes.count": trainer.collector.episodes}
    if trainer.replay is not None:
        dqn = trainer.config.dqn
        sizes |= {"replay.capacity": trainer.replay.capacity, "dqn.batch": dqn.batch, "dqn.accumulate": dqn.accumulate}
    return sizes


def needs(config: Config, market: Market, sizes: dict | None = None) -> str:
    """One line on the memory that a training takes and what is free, or on why it does not fit or is not known."""
    try:
        return _fitted(config, market, pick_device(config, lambda line: None), sizes)[1]
    except Exception as error:  # noqa: BLE001 - a driver's errors have no common class; the training itself meets them next, and deals with them
        return one_line(error)


def _trainer(config: Config, market: Market, device: torch.device, base, poll=lambda: None, kernels_of: Config | None = None):
    """kernels_of: the settings by whose sizes the fused kernels are chosen, where they are not config's own."""
    sizes = kernels_of or config
    episodes, features = sizes.episodes.count, market.features.shape[1]
    obstacle = why_not_fused(config, market, device)
    if config.train.collector == "fused" and obstacle:
        raise ConfigError(f"train.collector = fused: {obstacle}; use auto or batched")
    fused = config.train.collector != "batched" and not obstacle
    if fused and config.algorithm == "ppo":
        from numba_rl.collect.fused import EPISODES, FusedCollector, plan_for
        from numba_rl.kernels.gae_scan import shape_for
        from numba_rl.trainer.fused_ppo import FusedPpo

        plan, steps = plan_for(sizes, features, device, episodes or EPISODES), launch_steps(sizes, device)
        samples, scan = (episodes or EPISODES) * steps, shape_for(steps, episodes or EPISODES)
        rows, first = samples // min(sizes.ppo.minibatches, samples), sizes.ppo.actor[0] + sizes.ppo.critic[0]
        one_pass = fused_update.takes_one_pass(rows, first, fused_update.padded(features + PORTFOLIO_FEATURES), device)
        return FusedPpo(config, FusedCollector(market, config, device=device, base=base, plan=plan), poll, scan=scan, one_pass=one_pass)
    if fused:
        from numba_rl.collect.fused_q import EPISODES, FusedQCollector, plan_for

        plan = plan_for(sizes, features, device, episodes or EPISODES)
        return Dqn(config, FusedQCollector(market, config, device=device, base=base, plan=plan), market.regime, poll)
    collector = BatchedCollector(market, config, device=device, base=base)
    return Dqn(config, collector, market.regime, poll) if config.algorithm == "dqn" else Ppo(config, collector, poll)


def why_not_fused(config: Config, market: Market, device: torch.device) -> str | None:
    """What keeps a training from the fused kernels, or None where they can be used."""
    if device.type != "cuda":
        return "it needs a GPU"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs compute capability 8.0 or newer"
    if config.train.precision not in ("auto", "bf16"):
        return f"its products are bf16, not {config.train.precision}"
    if config.algorithm == "dqn":
        from numba_rl.collect import fused_q

        return fused_q.why_not_fused(config, market.features.shape[1], device)
    if config.reward.curiosity > 0:
        return "curiosity is trained by the batched collector's trainer"
    from numba_rl.collect.fused import EPISODES, plan_for

    plan = plan_for(config, market.features.shape[1], device, config.episodes.count or EPISODES)
    if plan is None or not fused_update.fits(config.ppo):
        return "ppo.actor and ppo.critic have no fused kernel of their sizes"
    return None


def on_cpu(config: Config) -> Config:
    """The settings of the same training on the CPU path."""
    return replace(config, {"train.device": "cpu", "train.collector": "batched", "train.precision": "auto"})


def _tiny(config: Config, device: torch.device) -> Config:
    launch = config.dqn.n_step + 1
    if device.type == "cuda" and config.algorithm == "ppo":  # the kernel of the advantages is made for it
        launch = launch_steps(config, device)
    changes = {"episodes.count": 2, "episodes.launch": launch, "ppo.epochs": 1, "ppo.minibatches": 1}
    return replace(config, changes | {"dqn.updates": 1, "replay.capacity": 1024})


def pick_device(config: Config, warn: Callable[[str], None]) -> torch.device:
    """The device that train.device means on this machine."""
    if config.train.device == "cpu" or gpu.SIMULATED:
        return torch.device("cpu")
    usable = torch.cuda.is_available() and gpu.available()
    if config.train.device == "cuda" and not usable:
        warn(
            "train.device = cuda, but there is no GPU that torch and numba-cuda can both use (`rltrain doctor` says why); using the CPU path"
        )
    return torch.device("cuda" if usable else "cpu")
