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

    path: str | None = None  # the market file
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

    fill_at: Literal["next_open", "close"] = "next_open"  # a decision at bar t fills at the open of t + 1, or the close of t
    fill_simulation: bool = True  # False: every order fills whole at the reference price, which is optimistic
    taker_bps: float = 4.0  # per side, basis points of that side's notional; negative is a rebate
    maker_bps: float = 2.0  # the same for limit orders
    spread_bps: NonNegative = 1.0  # whole spread, basis points of the price
    min_fee: NonNegative = 0.0  # money per fill
    financing_rate: NonNegative = 0.0  # per year, on the short or levered part
    multiplier: Positive = 1.0  # money per point of price and unit
    tick: NonNegative = 0.0  # 0: none
    lot: NonNegative = 0.0  # 0: any fraction of a unit
    sizing: Literal["equity", "units"] = "equity"  # a position is a share of equity, or a number of units
    leverage: Positive = 1.0  # in "equity" sizing
    reserve: Annotated[float, Meta(ge=0, lt=1)] = 0.2  # share of equity kept in cash, in "equity" sizing
    max_position: Positive = 1.0  # units at exposure 1, in "units" sizing
    initial_capital: Positive = 1_000_000.0  # money
    equity_floor: NonNegative = 0.0  # equity at or below it ends the episode
    drift_tolerance: NonNegative = 0.0  # 0: never rebalance; else when |position share - exposure| exceeds it


class RewardConfig(_Section):
    """What the agent is paid for, beside the fills."""

    mode: Literal["net_return", "sign_log_return"] = "net_return"  # log return of equity, or signed log price move
    scale: Positive = 1000.0  # of the base
    function: str | None = None  # FILE.py:NAME replaces the base
    barrier: NonNegative = 0.0  # weight of the triple barrier's label
    barrier_mode: Literal["additive", "multiply"] = "additive"  # add the label, or multiply the base by it
    barrier_profit: Annotated[float, Meta(gt=0, lt=1)] = 0.02  # distance of the profit barrier, share of the entry price
    barrier_loss: Annotated[float, Meta(gt=0, lt=1)] = 0.02  # distance of the loss barrier
    barrier_bars: Count = 500  # bars until the label is 0
    diversity: NonNegative = 0.0  # weight of the entropy of the last 100 exposures
    curiosity: NonNegative = 0.0  # weight of the forward model's error
    curiosity_lr: Positive = 1e-3  # step size of the forward model
    risk: NonNegative = 0.0  # weight of the drawdown
    shaping: Literal["none", "dsr", "ema"] = "none"  # differential Sharpe ratio in the base's place, or the base over its running deviation
    shaping_rate: Annotated[float, Meta(gt=0, lt=1)] = 0.01  # of the running statistics


class EpisodeConfig(_Section):
    """How many episodes run side by side, and how long each is."""

    count: Count | None = None  # None: 128
    launch: Count | None = None  # steps of one collection; None: 500 with PPO on a GPU, else 64
    length: Count = 500  # steps of an episode; carries over from launch to launch


class PpoConfig(_Section):
    """Proximal policy optimisation (Schulman et al. 2017)."""

    actor: tuple[Count, ...] = (128, 64)  # hidden layers
    critic: tuple[Count, ...] = (512, 384, 256, 128, 64)  # hidden layers
    leaky_slope: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # 0: plain ReLU
    gamma: Share = 0.99  # discount of a step
    gae_lambda: Share = 0.95  # of generalised advantage estimation
    lr: Positive = 1e-3  # learning rate of Adam
    lr_schedule: Literal["constant", "linear"] = "linear"  # linear: to 0 at the last step
    weight_decay: NonNegative = 3.0  # share of the weights a step takes away, times the learning rate
    epochs: Count = 4  # passes over a launch
    minibatches: Count = 8  # of a pass
    clip: Positive = 0.2  # of the probability ratio
    value_coef: NonNegative = 0.005  # weight of the value loss
    entropy_coef: NonNegative = 0.01  # weight of the entropy bonus
    max_grad_norm: Positive = 0.5  # larger gradients are scaled down to it
    target_kl: Positive | None = None  # None: no early stop
    normalize_advantage: bool = True  # over a minibatch


class DqnConfig(_Section):
    """Deep Q-learning (Mnih et al. 2015) and its variants."""

    variant: Literal["dueling", "branching", "noisy", "iqn", "exposure"] = "dueling"  # branching: three heads; iqn: quantiles
    hidden: tuple[Count, ...] = (256, 256)  # hidden layers
    head: Count = 128  # width of the value and advantage layers
    quantiles: Count = 8  # of iqn: levels drawn for a target and for a prediction, and averaged over to act
    gamma: Share = 0.95  # discount of a step
    n_step: Count = 1  # steps of a return
    lr: Positive = 1e-4  # learning rate of Adam
    lr_schedule: Literal["constant", "linear"] = "linear"  # linear: to 0 at the last step
    weight_decay: NonNegative | None = None  # share of the weights a step takes away, times the learning rate; None: 10; 0 for iqn
    loss: Literal["huber", "squared"] = "huber"  # of the TD error
    double: bool = True  # the online network picks the next action, the target network values it
    batch: Count = 1024  # transitions of an update
    accumulate: Count = 1  # batches whose gradients are averaged for an update
    updates: Count | None = None  # per epoch; None: one for every 128 steps of a launch
    updates_per_graph: Count = 8  # captured together on a GPU
    target_rate: Annotated[float, Meta(gt=0, le=1)] = 0.002  # of Polyak averaging into the target network, which is the one that is judged
    max_grad_norm: Positive = 10.0  # larger gradients are scaled down to it
    epsilon_start: Share = 1.0  # share of random actions at the start
    epsilon_end: Share | None = None  # share of random actions at the end; None: 0.05, or 0 for noisy, which then explores by itself
    epsilon_steps: Count = 150_000  # environment steps from start to end
    selection: Literal["epsilon", "softmax"] = "epsilon"  # how actions are drawn while collecting
    temperature: Positive = 1.0  # of softmax selection


class ReplayConfig(_Section):
    """Experience replay (Schaul et al. 2016)."""

    mode: Literal["proportional", "rank", "uniform"] = "proportional"  # how transitions are drawn
    capacity: Count | None = None  # None: sized from the card's memory; 100,000 on the CPU path
    alpha: Share = 0.6  # exponent of the priorities
    eps: Positive = 1e-6  # added to every priority
    beta_start: Share = 0.4  # exponent of the importance weights at the start
    beta_end: Share = 1.0  # and at the end
    beta_steps: Count = 100_000  # updates from start to end
    max_priority: Positive = 1e6  # priorities are bounded by it
    resort_interval: Count = 100  # updates between sorts, in rank mode
    checkpoint_limit_gb: NonNegative = 2.0  # a larger replay is not saved, which a notice says


class GuardConfig(_Section):
    """When training is stopped, and what counts as broken."""

    enabled: bool = True  # False: nothing is checked
    loss_clip: Positive = 1e6  # losses are bounded by it
    collapse_norm: NonNegative = 1e-7  # a gradient norm below it counts as collapsed
    collapse_steps: Count = 20  # collapsed steps in a row before a halt
    q_interval: Count = 50  # steps between Q statistics
    q_divergence: Positive = 1e6  # a mean |Q| above it is a halt
    max_skipped: Count = 100  # skipped steps in a row before a halt
    plateau_patience: Annotated[int, Meta(ge=0)] = 0  # validations without a gain before a stop; 0: never


class TrainConfig(_Section):
    """How long to train, where, and what to keep."""

    steps: Count = 2_000_000  # environment steps in all
    time_limit: Positive | None = None  # seconds of training
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0  # of all random numbers
    device: Literal["auto", "cuda", "cpu"] = "auto"  # auto: the GPU if it can be used
    collector: Literal["auto", "fused", "batched"] = "auto"  # fused: one kernel a launch, GPU; batched: any network, any machine
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"  # of matrix products
    threads: Count | None = None  # of the CPU path; None: all cores
    memory_limit_gb: Positive | None = None  # of the device; None: what is free
    checkpoint_every: Count | None = None  # epochs; None: 20, or on a GPU 100, with DQN 400; saves that take seconds are made less often, a tenth of the time at most
    validate_every: Count | None = None  # epochs; None: 20, or on a GPU 50, with DQN 200
    validate_by: Literal["log_return", "sharpe"] = "log_return"  # what picks the best checkpoint: log return after costs, or Sharpe ratio per bar
    tensorboard: bool = True  # write event files beside metrics.csv


class EvaluateConfig(_Section):
    """How a policy is judged, and how its walk-forward windows are laid."""

    policy: Literal["greedy", "softmax"] = "greedy"  # best action, or drawn by softmax
    temperature: Positive = 0.3  # of softmax
    bootstrap: Count = 2000  # resamples behind an interval
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95  # of an interval
    trials: Count | None = None  # None: runs counted in the run directory
    train: str | None = None  # window lengths, bars ("5000") or time ("90d")
    test: str | None = None  # the same for the test windows
    step: str | None = None  # from window to window; None: the length of a test window
    purge: str = "0"  # training bars dropped before a test window
    embargo: str = "0"  # a further gap before it
    anchored: bool = False  # True: every training window starts at the first bar
    seeds: Count = 1  # trainings of each walk-forward fold, with the seeds train.seed, train.seed + 1, ...
    jobs: Annotated[int, Meta(ge=0)] = 1  # trainings of a walk-forward side by side; 0: as many as cores and memory allow


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
    algorithm: Literal["ppo", "dqn"] = "ppo"  # what `rltrain train` was asked for
    preset: Literal["default", "foxhunt"] = "default"  # the reward weights to start from (numba_rl.settings.PRESETS)
