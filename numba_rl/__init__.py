"""numba_rl: GPU-resident reinforcement learning for trading, every kernel a Python function.

Importing the package touches neither CUDA nor torch; both are imported where they are first needed.
"""

import os

# Threads that have nothing to do sleep instead of spinning. Where other programs want the same cores, spinning threads wait for
# ones that are not running: training on two busy cores was 15 times slower. Read when torch loads OpenMP; a user's value stands.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
