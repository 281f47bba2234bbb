"""The market game, once: pure scalar functions that a CUDA kernel, the simulator and the CPU path all call.

Every function is a lazy `@njit(error_model="numpy")` on scalars and NamedTuples. Money (the portfolio, the equity, costs)
is float64 everywhere, so that the three ways of running agree and 500,000 steps lose nothing; rewards are float32.
"""
