"""Checkpoints: one safetensors file with weights, optimizer, counters and episode slots, and JSON about them in its header.

Loading reads numbers and text and executes nothing. A checksum covers all of it, and the file appears whole or not at all,
so that what can be loaded is what was saved. A file written on a GPU loads on a machine without one, and the other way round.

The JSON: kind, format, version (of the package), algorithm, config (all settings), scaling (names, mean, std, clip of the
features), bars_digest, features_digest, source, and the trainer's progress (steps, epochs, seconds, best).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes

import numba_rl
from numba_rl.config import Config
from numba_rl.data.market import Market
from numba_rl.data.scaling import Scaling
from numba_rl.errors import CheckpointError, UserError
from numba_rl.files import atomic_write
from numba_rl.trainer.dqn_networks import build_q_network
from numba_rl.trainer.networks import build_actor

KIND, FORMAT = "numba_rl checkpoint", 1
_HEADER = "numba_rl"  # key of the JSON in the file's metadata
_DIGEST = "sha256"


@dataclass(frozen=True)
class Checkpoint:
    """What a file held: tensors by name, on the CPU, and the JSON as a dict."""

    path: Path
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, Any]

    @property
    def config(self) -> Config:
        """The settings of the training. CheckpointError where this version does not know them."""
        try:
            return msgspec.convert(self.metadata["config"], Config)
        except (msgspec.ValidationError, KeyError) as error:
            version = self.metadata.get("version")
            raise CheckpointError(
                f"{self.path}: its settings are not those of version {numba_rl.__version__} ({error}); it was written by version {version}, use that"
            ) from None

    @property
    def scaling(self) -> Scaling:
        """The features' scaling, fitted on the training range."""
        try:
            return Scaling.from_dict(self.metadata["scaling"])
        except (CheckpointError, KeyError) as error:
            raise CheckpointError(f"{self.path}: {error}") from None


def describe(config: Config, market: Market, **progress: Any) -> dict[str, Any]:
    """The JSON of a checkpoint of a training under `config` on `market`."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "version": numba_rl.__version__,
        "algorithm": config.algorithm,
        "config": msgspec.to_builtins(config),
        "scaling": market.scaling.to_dict(),
        "bars_digest": market.bars_digest,
        "features_digest": market.features_digest,
        "source": market.source,
        **progress,
    }


def save(path: str | Path, state: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint so that a kill at any moment leaves the old file or the new one, whole.

    state: tensors (any device) or NumPy arrays by name. Raises UserError where the file cannot be written; the one before
    it is then intact.
    """
    tensors = {name: _on_host(value) for name, value in state.items()}
    text = json.dumps(metadata, sort_keys=True, default=_plain)
    data = tensor_bytes(tensors, {_HEADER: text, _DIGEST: _digest(tensors, text)})
    try:
        atomic_write(path, data)
    except OSError as error:
        raise UserError(
            f"{path}: the checkpoint cannot be written ({error.strerror}); make room and resume, the one before it is intact"
        ) from None


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint. Raises CheckpointError, one line, for a missing, foreign, damaged or unsafe file."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: there is no checkpoint to read ({error.strerror})") from None
    try:
        tensors = read_tensors(data)
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OSError) as error:
        raise CheckpointError(f"{path}: {_what_it_is(data, error)}") from None
    if _HEADER not in header or _DIGEST not in header:
        raise CheckpointError(f"{path}: a safetensors file, but no checkpoint of rltrain (no header of one); use one from RUN/checkpoints")
    if header[_DIGEST] != _digest(tensors, header[_HEADER]):
        raise CheckpointError(f"{path}: damaged (its checksum is not that of its contents); use another checkpoint")
    try:
        metadata = json.loads(header[_HEADER])
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict) or metadata.get("kind") != KIND:
        raise CheckpointError(f"{path}: its header is not that of a checkpoint; use one from RUN/checkpoints")
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: has format {metadata.get('format')!r}, this version reads {FORMAT}; use version {metadata.get('version')!r}"
        )
    return Checkpoint(path, tensors, metadata)


def refuse_changes(checkpoint: Checkpoint, config: Config, market: Market) -> None:
    """Raise CheckpointError that names the first difference under which a resume would not be the same training."""
    saved, old = checkpoint.metadata, checkpoint.config
    if old.algorithm != config.algorithm:
        raise CheckpointError(f"{checkpoint.path}: was trained by {old.algorithm}, this run by {config.algorithm}; resume with {old.algorithm}")
    names = checkpoint.scaling.names
    if names != market.names:
        other = next((name for name in (*market.names, *names) if (name in names) != (name in market.names)), "their order")
        raise CheckpointError(
            f"{checkpoint.path}: was trained on {len(names)} features, this market has {len(market.names)} (the first difference: {other}); "
            "resume with the same data.features and the version in meta.json"
        )
    for what, key, setting in (("bars", "bars_digest", "data.path"), ("features", "features_digest", "data.features")):
        if saved.get(key) != getattr(market, key):
            raise CheckpointError(
                f"{checkpoint.path}: the {what} of {market.source} are not those of {saved.get('source')} that it was trained on; "
                f"resume with the same {setting}, or train anew"
            )
    if not _same_scaling(checkpoint.scaling, market.scaling):
        raise CheckpointError(f"{checkpoint.path}: the features were scaled on another training range; resume with the same data.split")
    learning = ("dqn", "replay") if config.algorithm == "dqn" else (config.algorithm,)
    for section in ("market", "reward", "episodes", *learning, "train"):
        before, now = getattr(old, section), getattr(config, section)
        for field in ("seed",) if section == "train" else before.__struct_fields__:
            if getattr(before, field) != getattr(now, field):
                raise CheckpointError(
                    f"{checkpoint.path}: {section}.{field} was {getattr(before, field)!r} and is {getattr(now, field)!r} now; "
                    "resume with the same, or train anew"
                )


class Policy:
    """A trained policy: states float32 [N, F + 3] -> logits float32 [N, A], without gradients, on its own device.

    config, scaling, feature_names and metadata are those of its checkpoint.
    """

    def __init__(self, network: torch.nn.Module, config: Config, scaling: Scaling, metadata: Mapping[str, Any] | None = None):
        self.network = network
        self.config = config
        self.scaling = scaling
        self.metadata = dict(metadata or {})
        self.device = next(network.parameters()).device

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the F market features, in order."""
        return self.scaling.names

    @torch.no_grad()
    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return self.network(states.to(self.device))

    @property
    def routed(self) -> bool:
        """Whether actions depend on more than the state, and `routed_logits` is to be called (exposure-only agents)."""
        return getattr(self.network, "routed", False)

    @torch.no_grad()
    def routed_logits(self, states: torch.Tensor, held, volatility) -> torch.Tensor:
        """Logits of accounts that hold exposures `held` (float64 [N]) in volatility regimes `volatility` (float32 [N], unscaled)."""
        return self.network.routed_logits(states.to(self.device), held, volatility)


# algorithm -> builder(config, features) of the network that is judged, and what its weights' names begin with
_POLICIES = {"ppo": (build_actor, ""), "dqn": (build_q_network, "target/")}


def load_policy(path: str | Path, device: str | torch.device = "cpu") -> Policy:
    """The policy of a checkpoint, for evaluation. Raises CheckpointError as `load` does, and where its weights do not fit."""
    checkpoint = load(path)
    config, scaling = checkpoint.config, checkpoint.scaling
    builder, prefix = _POLICIES.get(config.algorithm, (None, ""))
    if builder is None:
        raise CheckpointError(f"{path}: holds a {config.algorithm} policy, which this version cannot play")
    with torch.device("meta"):  # shapes first: a file may claim sizes that no memory holds
        shapes = {name: weight.shape for name, weight in builder(config, len(scaling.names)).state_dict().items()}
    for name, shape in shapes.items():
        found = checkpoint.tensors.get(prefix + name)
        if found is None or found.shape != shape or found.dtype != torch.float32:
            what = "is missing" if found is None else f"is {found.dtype} {tuple(found.shape)}, not float32 {tuple(shape)}"
            raise CheckpointError(f"{path}: the weight {prefix}{name} {what}; use another checkpoint")
        if not found.isfinite().all():
            raise CheckpointError(f"{path}: the weight {prefix}{name} is not finite; use an earlier checkpoint")
    network = builder(config, len(scaling.names))
    network.load_state_dict({name: checkpoint.tensors[prefix + name] for name in shapes})
    network.requires_grad_(False)
    return Policy(network.to(device), config, scaling, checkpoint.metadata)


def _on_host(value: Any) -> torch.Tensor:
    tensor = torch.as_tensor(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value.detach()
    return tensor.cpu().contiguous().clone()  # safetensors refuses tensors that share memory


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written into a checkpoint's header")


def _digest(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    hashed = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _what_it_is(data: bytes, error: Exception) -> str:
    if data[:2] == b"PK" or data[:1] == b"\x80":
        return "a pickle (torch.save), which could run code when loaded; refused: use a .safetensors checkpoint of rltrain"
    if not data:
        return "empty; use another checkpoint"
    return f"not a whole safetensors file ({' '.join(str(error).split())}); it is damaged or no checkpoint: use another one"


def _same_scaling(one: Scaling, other: Scaling) -> bool:
    return one.clip == other.clip and np.array_equal(one.mean, other.mean) and np.array_equal(one.std, other.std)
