"""Gives the rules that simulated kernels call one by one the on-disk cache, for tests that would else compile them for a minute."""

from numba_rl.kernel_cache import cached
from numba_rl.rules.fills import advance
from numba_rl.rules.game import fresh_slot, play
from numba_rl.rules.philox import below, uniform
from numba_rl.rules.portfolio import portfolio_features
from numba_rl.rules.reward import combine, default_base

for compiled in (advance, fresh_slot, play, uniform, below, portfolio_features, combine, default_base):
    cached(compiled)
