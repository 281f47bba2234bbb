"""C-02, the data's part: rows 1 and 2 of 4 are flagged before any kernel sees them."""

from pathlib import Path

import numpy as np
import pytest

from numba_rl.data.feature_table import nonfinite_rows
from numba_rl.data.scaling import Scaling
from numba_rl.errors import DataError

FILE = Path(__file__).parent / "C-02" / "features.csv"


def test_rows_1_and_2_are_flagged_and_refused():
    values = np.loadtxt(FILE, delimiter=",", skiprows=1, usecols=(1, 2, 3)).astype(np.float32)
    assert nonfinite_rows(values).tolist() == [1, 2]
    with pytest.raises(DataError, match=r"features.csv: feature f1 is nan at row 1 \(2 of 4 rows are not finite\)"):
        Scaling.fit(values, 5.0, ("f0", "f1", "f2"), "features.csv")
