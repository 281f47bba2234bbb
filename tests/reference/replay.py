"""Prioritized replay by its definitions, in float64 NumPy: one cumulative sum over all slots, no hierarchy, no batches of work.

Schaul et al. 2016, "Prioritized Experience Replay". Everything here is O(capacity) and obvious; the kernels and the host
replay are compared with it.
"""

import numpy as np


def priorities_of(errors, alpha, eps, cap):
    """|td|^alpha + eps within [eps, cap]; float64 [n]."""
    return np.clip(np.abs(np.asarray(errors, np.float64)) ** alpha + eps, eps, cap)


def slots_at(priorities, masses):
    """The first slot whose cumulative priority is greater than the mass; masses at or past the total give the last slot with a priority."""
    edges = np.cumsum(np.asarray(priorities, np.float64))
    slots = np.searchsorted(edges, np.asarray(masses, np.float64), side="right")
    return np.minimum(slots, np.flatnonzero(np.asarray(priorities) > 0)[-1])


def stratified(uniforms, total):
    """One mass from each of n equal strata of [0, total)."""
    n = len(uniforms)
    return (np.arange(n) + np.asarray(uniforms, np.float64)) / n * total


def raw_weights(priorities, slots, filled, beta):
    """(1 / (N P))^beta with N the filled size."""
    priorities = np.asarray(priorities, np.float64)
    return (filled * priorities[slots] / priorities.sum()) ** -beta


def weights_of(priorities, slots, filled, beta):
    """Importance weights divided by the largest of the batch."""
    raw = raw_weights(priorities, slots, filled, beta)
    return raw / raw.max()


def rank_distribution(priorities, alpha):
    """Slots in order of priority (largest first, ties by slot), and P of each place: 1 / rank^alpha, normalised."""
    priorities = np.asarray(priorities)
    order = np.argsort(-priorities, kind="stable")[: int((priorities > 0).sum())]
    p = (1.0 + np.arange(len(order))) ** -alpha
    return order, p / p.sum()


def beta_at(step, start, end, steps):
    """Linear from start to end over `steps`, then end."""
    return start + (end - start) * min(step / steps, 1.0)


class Ring:
    """A ring of items, here only their numbers; `priorities` float64 [capacity], 0 where nothing was written."""

    def __init__(self, capacity, alpha, eps, cap):
        self.capacity, self.alpha, self.eps, self.cap = capacity, alpha, eps, cap
        self.items = np.full(capacity, -1)
        self.priorities = np.zeros(capacity)
        self.inserted = 0
        self.rejected = {"nan": 0, "infinite": 0, "stale": 0, "outside": 0}

    @property
    def size(self):
        return min(self.inserted, self.capacity)

    def insert(self, items, errors=None):
        """One item after the other; the new priority is the largest stored before the call (1 in an empty ring) or from the error."""
        peak = self.priorities.max() if self.priorities.max() > 0 else min(1.0, self.cap)
        for k, item in enumerate(items):
            slot = self.inserted % self.capacity
            self.items[slot] = item
            self.priorities[slot] = peak
            if errors is not None and k >= len(items) - self.capacity:
                if np.isnan(errors[k]):
                    self.rejected["nan"] += 1
                elif np.isinf(errors[k]):
                    self.rejected["infinite"] += 1
                else:
                    self.priorities[slot] = priorities_of(errors[k], self.alpha, self.eps, self.cap)
            self.inserted += 1

    def update(self, slots, errors, inserted=None, peak=None):
        """Largest of duplicates; NaN rejected; infinity takes the peak; slots rewritten since `inserted` are left alone."""
        inserted = self.inserted if inserted is None else inserted
        peak = self.priorities.max() if peak is None else peak
        size = self.size
        rewritten = {i % self.capacity for i in range(inserted, self.inserted)}
        new = {}
        for slot, error in zip(slots, errors, strict=True):
            if not 0 <= slot < size:
                self.rejected["outside"] += 1
            elif slot in rewritten:
                self.rejected["stale"] += 1
            elif np.isnan(error):
                self.rejected["nan"] += 1
            else:
                if np.isinf(error):
                    self.rejected["infinite"] += 1
                value = peak if np.isinf(error) else float(priorities_of(error, self.alpha, self.eps, self.cap))
                new[slot] = max(new.get(slot, 0.0), value)
        for slot, value in new.items():
            self.priorities[slot] = value
