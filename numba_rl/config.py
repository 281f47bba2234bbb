"""Every setting, as frozen structs with their ranges; TOML goes in and out through these.

Nothing here imports torch or numba, so that a bad setting is reported at once. A section is a struct, a key is a
field; a key's full name is ``section.field``, the same in TOML files, in ``--set`` and in the environment.
``None`` means "decide from the machine or the data"; the value used is written into the run directory.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Common settings of all sections: immutable, and unknown keys are errors."""


class DataConfig(_Section):
    """What to read, how to interpret it, how to split it by time."""

    path: str | None = None
    symbol: str | None = None  # picks one instrument of a file that holds several
    adjusted: bool = False  # scale OHLC by adjusted close / close where the file has one
    timezone: str | None = None  # zone of stamps that carry none; None: UTC
    day_first: bool | None = None  # 02/03/2026 is 2 March (True) or 3 February (False); None: must be decidable
    decimal_comma: bool | None = None  # 2.871,50 is 2871.5; None: decided from the file where it can be
    interval_seconds: Positive | None = None  # None: inferred from the stamps
    bars_per_year: Positive | None = None  # None: inferred where the file is long enough
    max_missing: Share = 0.05  # larger shares of rows without a price are refused
    price_mode: Literal["log", "arithmetic"] = "log"  # arithmetic allows prices <= 0
    features: str = "default"  # "default": the 51; else a CSV/Parquet file of named columns on the same stamps
    split: tuple[Share, Share, Share] = (0.6, 0.2, 0.2)  # train, validation, test, by time
    feature_clip: Positive = 5.0  # scaled features are bounded to +- this for the network (never the P&L)


class MarketConfig(_Section):
    """Fills, costs, instrument and sizing: what an order does."""

    fill_at: Literal["next_open", "close"] = "next_open"
    fill_simulation: bool = True
    taker_bps: float = 4.0  # per side, basis points of that side's notional; negative is a rebate
    maker_bps: float = 2.0
    spread_bps: NonNegative = 1.0
    min_fee: NonNegative = 0.0  # money per fill
    financing_rate: NonNegative = 0.0  # per year, on the short or levered part
    multiplier: Positive = 1.0  # money per point of price and unit
    tick: NonNegative = 0.0  # 0: none
    lot: NonNegative = 0.0  # 0: any fraction of a unit
    sizing: Literal["equity", "units"] = "equity"
    leverage: Positive = 1.0
    reserve: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    max_position: Positive = 1.0  # units at exposure 1, in "units" sizing
    initial_capital: Positive = 1_000_000.0
    equity_floor: NonNegative = 0.0  # equity at or below it ends the episode
    drift_tolerance: NonNegative = 0.0  # 0: never rebalance; else when |position share - exposure| exceeds it


class RewardConfig(_Section):
    """What the agent is paid for, beside the fills."""

    mode: Literal["net_return", "sign_log_return"] = "net_return"
    scale: Positive = 1000.0
    function: str | None = None  # FILE.py:NAME replaces the base
    barrier: NonNegative = 0.0
    barrier_mode: Literal["additive", "multiply"] = "additive"
    barrier_profit: Annotated[float, Meta(gt=0, lt=1)] = 0.02
    barrier_loss: Annotated[float, Meta(gt=0, lt=1)] = 0.02
    barrier_bars: Count = 500
    diversity: NonNegative = 0.0
    curiosity: NonNegative = 0.0
    risk: NonNegative = 0.0
    shaping: Literal["none", "dsr", "ema"] = "none"
    shaping_rate: Annotated[float, Meta(gt=0, lt=1)] = 0.01


class EpisodeConfig(_Section):
    """How many episodes run side by side, and how long each is."""

    count: Count | None = None  # None: 128
    launch: Count | None = None  # steps of one collection; None: 500 on a GPU, 64 on the CPU path
    length: Count = 500  # steps of an episode; carries over from launch to launch


class PpoConfig(_Section):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    actor: tuple[Count, ...] = (128, 64)
    critic: tuple[Count, ...] = (512, 384, 256, 128, 64)
    leaky_slope: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # 0: plain ReLU
    gamma: Share = 0.99
    gae_lambda: Share = 0.95
    lr: Positive = 3e-4
    lr_schedule: Literal["constant", "linear"] = "constant"
    epochs: Count = 4
    minibatches: Count = 4
    clip: Positive = 0.2
    value_coef: NonNegative = 0.005
    entropy_coef: NonNegative = 0.01
    max_grad_norm: Positive = 0.5
    target_kl: Positive | None = None  # None: no early stop
    normalize_advantage: bool = True


class DqnConfig(_Section):
    """Deep Q-learning (Mnih et al. 2015) and its variants."""

    variant: Literal["dueling", "branching", "noisy", "iqn", "exposure"] = "dueling"
    hidden: tuple[Count, ...] = (256, 256)
    head: Count = 128
    gamma: Share = 0.99
    n_step: Count = 1
    lr: Positive = 1e-4
    loss: Literal["huber", "squared"] = "huber"
    double: bool = True
    batch: Count = 1024
    accumulate: Count = 1
    updates: Count = 500  # per epoch
    updates_per_graph: Count = 8
    target_rate: Annotated[float, Meta(gt=0, le=1)] = 0.005
    max_grad_norm: Positive = 10.0
    epsilon_start: Share = 1.0
    epsilon_end: Share = 0.05
    epsilon_steps: Count = 500_000
    selection: Literal["epsilon", "softmax"] = "epsilon"
    temperature: Positive = 1.0


class ReplayConfig(_Section):
    """Experience replay (Schaul et al. 2016)."""

    mode: Literal["proportional", "rank", "uniform"] = "proportional"
    capacity: Count | None = None  # None: sized from the card's memory; 100,000 on the CPU path
    alpha: Share = 0.6
    eps: Positive = 1e-6
    beta_start: Share = 0.4
    beta_end: Share = 1.0
    beta_steps: Count = 100_000
    max_priority: Positive = 1e6
    resort_interval: Count = 100
    checkpoint_limit_gb: NonNegative = 2.0


class GuardConfig(_Section):
    """When training is stopped, and what counts as broken."""

    enabled: bool = True
    loss_clip: Positive = 1e6
    collapse_norm: NonNegative = 1e-7
    collapse_steps: Count = 20
    q_interval: Count = 50
    q_divergence: Positive = 1e6
    max_skipped: Count = 100  # skipped steps in a row before a halt
    plateau_patience: Annotated[int, Meta(ge=0)] = 0  # validations without a gain before a stop; 0: never


class TrainConfig(_Section):
    """How long to train, where, and what to keep."""

    steps: Count = 2_000_000
    time_limit: Positive | None = None  # seconds of training
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    device: Literal["auto", "cuda", "cpu"] = "auto"
    collector: Literal["auto", "fused", "batched"] = "auto"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"  # of matrix products
    threads: Count | None = None
    memory_limit_gb: Positive | None = None
    checkpoint_every: Count = 20  # epochs
    validate_every: Count = 20  # epochs
    tensorboard: bool = True


class EvaluateConfig(_Section):
    """How a policy is judged, and how its walk-forward windows are laid."""

    policy: Literal["greedy", "softmax"] = "greedy"
    temperature: Positive = 0.3
    bootstrap: Count = 2000
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    trials: Count | None = None  # None: runs counted in the run directory
    train: str | None = None  # window lengths, bars ("5000") or time ("90d")
    test: str | None = None
    step: str | None = None
    purge: str = "0"
    embargo: str = "0"
    anchored: bool = False


class Config(_Section):
    """All settings of one run."""

    data: DataConfig = field(default_factory=DataConfig)
    market: MarketConfig = field(default_factory=MarketConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    episodes: EpisodeConfig = field(default_factory=EpisodeConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    dqn: DqnConfig = field(default_factory=DqnConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    algorithm: Literal["ppo", "dqn"] = "ppo"
    preset: Literal["default", "foxhunt"] = "default"  # the reward weights to start from (numba_rl.settings.PRESETS)
