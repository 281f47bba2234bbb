"""How a replay lies in memory: the ring's rows, the three levels of prefix sums over its priorities, counters and settings.

Rows. A transition is one row of 32-bit words, so that a sample is one contiguous read:

    [ state | pad ][ next state | pad ][ action, reward, discount, flags ]

Each state is padded to a multiple of 4 words with zeros: rows stay 16-byte aligned, which matrix products like too.
Actions and flags are int32, the rest float32. For a state of 54: 116 words, 464 bytes.

Sums. Slots (leaves, float32) -> nodes of `leaf_fan` slots -> tops of `node_fan` nodes. Sums are float64: the sum of a
million float32 priorities is then exact to 2**-53, and a slot of 1e-6 beside one of 1e6 keeps its share of the draws. Each
level also holds the maximum (float32). A sum is only ever recomputed from the level below it, in a fixed order, so it
depends on the leaves alone and cannot drift. Everything past the last slot is zero, so no kernel needs bounds checks.

Memory beyond the rows: 4 bytes a slot and (8 + 4) / leaf_fan for the sums.
"""

from dataclasses import dataclass
from functools import cached_property

# Where each number lives in `counters`, int64 [COUNTERS].
INSERTED = 0  # transitions ever inserted; the ring's cursor is this modulo the capacity
BATCHES = 1  # batches ever drawn: the step of the beta schedule
DRAWN = 2  # samples ever drawn: the step of the random numbers
NAN = 3  # td errors that were NaN: the old priority stayed
INFINITE = 4  # td errors that were infinite: the largest stored priority was taken
STALE = 5  # updates of slots that had been overwritten since they were drawn
OUTSIDE = 6  # updates of slots outside the filled part of the ring
LAST_BAD = 7  # batches drawn when a NaN or infinite error last came in
COUNTERS = 8

# Where each number lives in `settings`, float64 [SETTINGS].
ALPHA, EPS, CAP, BETA_START, BETA_END, BETA_STEPS = range(6)
SETTINGS = 6

TERMINATED = 1  # flag bits of a transition
TRUNCATED = 2

PROPORTIONAL, RANK, UNIFORM = range(3)
MODES = {"proportional": PROPORTIONAL, "rank": RANK, "uniform": UNIFORM}

_MIN_TOPS = 96  # an update gives a block to each top: fewer would leave multiprocessors idle


def _power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True)
class Layout:
    """Sizes of one replay. Fans are powers of two and multiples of `lanes`; `lanes` is the width of a warp."""

    capacity: int
    state_width: int
    leaf_fan: int
    node_fan: int
    lanes: int = 32

    def __post_init__(self):
        if self.capacity < 1 or self.state_width < 1:
            raise ValueError(f"replay needs capacity >= 1 and state_width >= 1, got {self.capacity} and {self.state_width}")
        for fan in (self.leaf_fan, self.node_fan):
            if not _power(fan) or fan % self.lanes or fan > 1024:
                raise ValueError(f"a fan must be a power of two, a multiple of {self.lanes} and <= 1024, got {fan}")

    @cached_property
    def padded(self) -> int:
        """Words of one state in a row."""
        return -(-self.state_width // 4) * 4

    @cached_property
    def words(self) -> int:
        """32-bit words of a row."""
        return 2 * self.padded + 4

    @cached_property
    def top_leaves(self) -> int:
        """Slots under one top."""
        return self.leaf_fan * self.node_fan

    @cached_property
    def tops(self) -> int:
        """Tops in use."""
        return -(-self.capacity // self.top_leaves)

    @cached_property
    def padded_tops(self) -> int:
        """Tops allocated: a multiple of the warp, the rest zero."""
        return -(-self.tops // self.lanes) * self.lanes

    @cached_property
    def nodes(self) -> int:
        return self.tops * self.node_fan

    @cached_property
    def leaves(self) -> int:
        return self.tops * self.top_leaves


def choose_layout(capacity: int, state_width: int, lanes: int = 32) -> Layout:
    """The layout that lets a warp look through the fewest values on its way down, with at least 96 tops where there are slots enough."""
    best, best_cost = None, None
    fans = [lanes * 2**k for k in range(6) if lanes * 2**k <= 1024]
    for node_fan in fans:
        for leaf_fan in fans:
            layout = Layout(capacity, state_width, leaf_fan, node_fan, lanes)
            crowded = 0 if layout.tops >= _MIN_TOPS else _MIN_TOPS * (leaf_fan * node_fan // lanes**2 - 1)
            cost = (crowded + (leaf_fan + node_fan + layout.padded_tops) // lanes, leaf_fan, node_fan)
            if best_cost is None or cost < best_cost:
                best, best_cost = layout, cost
    return best


def row_bytes(state_width: int, mode: str = "proportional") -> int:
    """Bytes that one slot takes: the row, its priority, its share of the sums, and in rank mode the sorted order."""
    layout = Layout(1, state_width, 32, 32)
    return 4 * layout.words + 4 + 1 + (20 if mode == "rank" else 0)
