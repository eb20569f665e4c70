"""Private federated learning with compressed communication.

>>> import soteriafl as sf
>>> mechanism = sf.Mechanism(estimator="sgd", records=6000, batch=128, clip=1.0)
>>> found = sf.calibrate(mechanism, epsilon=1, delta=1e-5, rounds=150)
>>> round(found.sigma, 4), found.cost.epsilon <= 1
(0.0144, True)

`soteriafl.sklearn` and `soteriafl.torch` are imported by themselves: they need scikit-learn and
PyTorch.
"""

from ._soteriafl import __version__
from .accounting import (
    Accountant,
    Calibration,
    Cost,
    Event,
    Mechanism,
    Shifts,
    calibrate,
    delta,
    epsilon,
    spent,
)
from .errors import (
    AccountError,
    BudgetExceeded,
    ConfigError,
    DataError,
    MessageError,
    SoteriaError,
    UnsupportedModule,
)

__all__ = [
    "AccountError",
    "Accountant",
    "BudgetExceeded",
    "Calibration",
    "ConfigError",
    "Cost",
    "DataError",
    "Event",
    "Mechanism",
    "MessageError",
    "Shifts",
    "SoteriaError",
    "UnsupportedModule",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "spent",
]
