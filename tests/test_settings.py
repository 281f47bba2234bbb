"""Settings: layers and their order, conversion, suggestions, contradictions, and the TOML that is kept with a run."""

import typing

import pytest

from numba_rl import keys, settings
from numba_rl.config import Config, DataConfig, PpoConfig, RewardConfig
from numba_rl.errors import ConfigError


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def message(**layers) -> str:
    with pytest.raises(ConfigError) as caught:
        settings.load(**layers)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_layer_gives_the_defaults():
    assert settings.load().config == Config()


def test_each_layer_wins_over_the_one_before(tmp_path):
    file = written(tmp_path / "s.toml", 'preset = "foxhunt"\n[reward]\nrisk = 1\n[ppo]\nlr = 0.1\nclip = 0.1\ngamma = 0.1\n')
    environment = {"RLTRAIN_PPO_CLIP": "0.2", "RLTRAIN_PPO_GAMMA": "0.2"}
    resolved = settings.load(file, environment=environment, sets=["ppo.gamma=0.3"], flags={"train.steps": ("--steps", "2e3")})
    config = resolved.config
    assert (config.reward.barrier, config.reward.risk) == (0.5, 1.0)  # preset, file over preset
    assert (config.ppo.lr, config.ppo.clip, config.ppo.gamma, config.train.steps) == (0.1, 0.2, 0.3, 2000)
    wanted = {
        "reward.barrier": "preset foxhunt",
        "reward.risk": f"{file}, line 3",
        "ppo.clip": "environment variable RLTRAIN_PPO_CLIP",
        "ppo.gamma": "--set ppo.gamma=0.3",
        "train.steps": "--steps",
        "ppo.epochs": "default",
    }
    assert {name: resolved.sources[name] for name in wanted} == wanted


def test_the_preset_itself_follows_the_order(tmp_path):
    file = written(tmp_path / "s.toml", 'preset = "default"\n')
    assert settings.load(file, environment={"RLTRAIN_PRESET": "foxhunt"}).config.reward.diversity == 1.0
    assert settings.load(file, environment={"RLTRAIN_PRESET": "foxhunt"}, preset="default").config.reward.diversity == 0.0


def test_presets_are_those_of_the_schema():
    assert tuple(settings.PRESETS) == typing.get_args(Config.__annotations__["preset"])
    assert all(name in keys.KEYS for preset in settings.PRESETS.values() for name in preset)


@pytest.mark.parametrize("preset", settings.PRESETS)
def test_the_saved_toml_reads_back_equal(tmp_path, preset):
    sets = ['data.path=a "quoted" \\ path\x7f é.csv', "data.day_first=true", "ppo.actor=64,32", "ppo.target_kl=0.01", "replay.eps=1e-9"]
    config = settings.load(sets=sets, preset=preset).config
    text = settings.to_toml(config)
    assert settings.read_toml(written(tmp_path / "config.toml", text)) == config
    assert all(f"{name.rpartition('.')[2]} = " in text for name in keys.KEYS), "every setting is written, none included"


def test_a_setting_that_may_be_none_is_none_by_default():
    """TOML has no null: what is left out of the file must come back as None."""
    optional = [key for key in keys.KEYS.values() if "or none" in keys.allowed(key.name)]
    assert len(optional) > 10
    assert all(key.default is None for key in optional)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.steps=2_000", 2000),
        ("train.steps=2e6", 2_000_000),
        ("ppo.actor=[64, 32]", (64, 32)),
        ("ppo.actor=64", (64,)),
        ("data.split=0.5,0.25,0.25", (0.5, 0.25, 0.25)),
        ("dqn.double=off", False),
        ("data.day_first=yes", True),
        ("ppo.target_kl=none", None),
        ("data.symbol='6E'", "6E"),
        ("data.symbol=6E=x", "6E=x"),
        ("market.maker_bps=-5", -5.0),
    ],
)
def test_typed_values_are_read_by_the_type_of_the_key(text, value):
    assert settings.value_of(settings.load(sets=[text]).config, text.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ppo.gamma=1.5", "ppo.gamma must be a number from 0 to 1, not 1.5"),
        ("dqn.batch=0", "dqn.batch must be a whole number >= 1, not 0"),
        ("train.steps=1.5", "train.steps must be a whole number >= 1, not 1.5"),
        ("train.seed=4294967296", "train.seed must be a whole number from 0 to 4294967295, not 4294967296"),
        ("market.reserve=1", "market.reserve must be a number >= 0 and < 1, not 1"),
        ("ppo.lr=nan", "ppo.lr must be a number > 0, not nan"),
        ("market.leverage=inf", "market.leverage must be a number > 0, not inf"),
        ("data.split=0.5,nan,0.5", "data.split must be a list of 3 numbers from 0 to 1"),
        ("data.split=0.5,0.5", "data.split must be a list of 3 numbers from 0 to 1"),
        ("dqn.double=maybe", "dqn.double must be true or false, not maybe"),
        ("train.device=gpu", "train.device must be one of auto, cpu, cuda, not gpu"),
        ("ppo.clip=0,2", "ppo.clip must be a number > 0, not 0,2 (write the decimal point as a point)"),
        ("ppo.lr", "write --set section.field=value"),
        ("ppo.lr=", "ppo.lr must be a number > 0, not ''"),
    ],
)
def test_a_wrong_value_names_key_value_and_range(text, says):
    assert message(sets=[text]).startswith(f"--set {text}: ")
    assert says in message(sets=[text])


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ppo.learning_rate", "unknown setting ppo.learning_rate; nearest: ppo.lr, dqn.lr"),
        ("replay.alhpa", "unknown setting replay.alhpa; nearest: replay.alpha"),
        ("replya.alpha", "unknown setting replya.alpha; nearest: replay.alpha"),
        ("dqn.clip", "unknown setting dqn.clip: clip belongs to ppo (ppo.clip)"),
        ("lr", "unknown setting lr: lr belongs to ppo and dqn (ppo.lr, dqn.lr)"),
        ("train.algorithm", "algorithm belongs to the top level"),
        ("ppo.entropy-coef", "nearest: ppo.entropy_coef"),
        ("buffer_size", "nearest: replay.capacity"),
        ("ppo.zzzzzz", "`rltrain config list` shows all"),
    ],
)
def test_an_unknown_key_leads_to_the_right_one(key, says):
    assert says in message(sets=[f"{key}=1"])


def test_unknown_environment_variables_are_errors_too():
    text = message(environment={"RLTRAIN_REPLAY_ALHPA": "1", "RLTRAIN_DQN_CLIP": "1", "RLTRAIN_PPO_GAMMA": "2", "HOME": "/root"})
    assert "environment variable RLTRAIN_REPLAY_ALHPA: unknown setting replay.alhpa; nearest: replay.alpha" in text
    assert "environment variable RLTRAIN_DQN_CLIP: unknown setting dqn.clip: clip belongs to ppo" in text
    assert "environment variable RLTRAIN_PPO_GAMMA: ppo.gamma must be a number from 0 to 1, not 2" in text


def test_variables_of_the_same_prefix_that_are_no_settings_are_let_through():
    assert settings.load(environment={"RLTRAIN_CACHE_DIR": "/tmp/x"}).config == Config()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[train]\nsteps = 1\nsteps = 2\n", "line 3: steps is set twice; keep one"),
        ("[train]\nsteps = 1\nsteps = 2", "line 3: steps is set twice; keep one"),
        ("[ppo]\nlr = 1\n[ppo]\nclip = 1\n", "line 3: [ppo] is set twice; keep one"),
        ("[pppo]\nlr = 1\n", "line 1: unknown section [pppo]; nearest: [ppo]"),
        ("ppo = 3\n", "line 1: ppo is a section: write [ppo] and its keys below"),
        ("[ppo]\nlr = '1e-3'\n", 'line 2: ppo.lr must be a number > 0, not "1e-3"'),
        ("[ppo]\n\n  entropy_coef = true\n", "line 3: ppo.entropy_coef must be a number >= 0, not true"),
        ("[ppo.lr]\na = 1\n", "ppo.lr must be a number > 0, not a table"),
        ("[ppo]\nlr = = 1\n", "line 2: not valid TOML: invalid value (lr = = 1)"),
    ],
)
def test_a_settings_file_is_read_strictly(tmp_path, toml, says):
    file = written(tmp_path / "s.toml", toml)
    text = message(file=file)
    assert text.startswith(str(file))
    assert says in text


def test_files_that_are_no_settings_files(tmp_path):
    assert "no such settings file" in message(file=tmp_path / "missing.toml")
    assert "settings files are TOML" in message(file=written(tmp_path / "s.yaml", "algorithm: dqn\n"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in message(file=tmp_path / "binary.toml")


def test_a_byte_order_mark_is_no_error(tmp_path):
    assert settings.load(written(tmp_path / "s.toml", "\ufeff[ppo]\nlr = 1\n")).config.ppo.lr == 1.0


def test_all_problems_are_told_at_once(tmp_path):
    file = written(tmp_path / "s.toml", "capacity = 4096\n[ppo]\nclipp = 1\n")
    text = message(file=file, sets=["ppo.gamma=2"])
    assert all(part in text for part in ("capacity belongs to replay", "nearest: ppo.clip", "ppo.gamma must be"))


def test_the_same_key_twice_on_the_command_line_is_refused():
    assert "ppo.lr is set twice" in message(sets=["ppo.lr=1", "ppo.lr=2"])
    assert message(sets=["train.seed=1"], flags={"train.seed": ("--seed", "2")}).startswith("--seed: train.seed is set twice")
    assert settings.load(sets=["train.seed=1"], flags={"train.seed": ("--seed", None)}).config.train.seed == 1


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["data.split=0.6,0.2,0.1"], "data.split: the shares must sum to 1"),
        (["replay.capacity=3", "dqn.n_step=3"], "replay.capacity (3) must be at least dqn.n_step + 1 (4)"),
        (["data.price_mode=arithmetic"], "market.sizing must be"),
        (["data.price_mode=arithmetic", "market.sizing=units", "reward.mode=sign_log_return"], 'set reward.mode = "net_return"'),
        (["data.price_mode=arithmetic", "market.sizing=units", "reward.barrier=1"], "reward.barrier is a share of the entry price"),
        (["market.equity_floor=1e6"], "market.equity_floor (1e+06) must be below market.initial_capital"),
        (["reward.function=a.py:f", "reward.shaping=dsr"], "both replace the base reward"),
        (["replay.beta_end=0.1"], "replay.beta_end (0.1) must not be below replay.beta_start"),
        (["dqn.epsilon_start=0.01", "dqn.epsilon_end=0.05"], "dqn.epsilon_end (0.05) must not be above dqn.epsilon_start (0.01)"),
        (["episodes.count=1", "episodes.launch=2"], "ppo.minibatches (8) exceeds the 2 steps of a launch"),
    ],
)
def test_contradictions_between_settings(sets, says):
    assert says in message(sets=sets)


def test_arithmetic_prices_with_units_are_accepted():
    assert settings.load(sets=["data.price_mode=arithmetic", "market.sizing=units"]).config.market.sizing == "units"


def test_settings_built_in_python_are_checked_alike():
    with pytest.raises(ConfigError, match="ppo.gamma must be a number from 0 to 1, not 1.5"):
        settings.check(Config(ppo=PpoConfig(gamma=1.5)))
    with pytest.raises(ConfigError, match="data.split: the shares must sum to 1"):
        settings.check(Config(data=DataConfig(split=(0.5, 0.1, 0.1))))
    with pytest.raises(ConfigError, match="reward.scale must be a number > 0, not <object"):
        settings.check(Config(reward=RewardConfig(scale=object())))
    with pytest.raises(ConfigError, match="foxhunt"):
        settings.check(Config(preset="foxhunt"))
    settings.check(Config())


def test_replace_changes_keys_and_checks():
    changed = settings.replace(Config(), {"train.steps": ("--steps", "7"), "ppo.lr": 0.5, "train.device": None})
    assert (changed.train.steps, changed.ppo.lr, changed.train.device) == (7, 0.5, "auto")
    with pytest.raises(ConfigError, match="--steps: train.steps must be a whole number"):
        settings.replace(Config(), {"train.steps": ("--steps", "0")})
