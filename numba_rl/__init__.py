"""numba_rl: GPU-resident reinforcement learning for trading, every kernel a Python function.

Importing the package touches neither CUDA nor torch; both are imported where they are first needed.
"""

__version__ = "0.1.0"
