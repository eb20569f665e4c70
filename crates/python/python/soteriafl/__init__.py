"""Private federated learning with compressed communication.

>>> import soteriafl as sf
>>> mechanism = sf.Mechanism(estimator="sgd", records=6000, batch=128, clip=1.0)
>>> found = sf.calibrate(mechanism, epsilon=1, delta=1e-5, rounds=150)
>>> round(found.sigma, 4), found.cost.epsilon <= 1
(0.0153, True)

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
    DataDependentWarning,
    DataError,
    MessageError,
    RunWarning,
    SoteriaError,
    UnsupportedModule,
)
from .results import Privacy, Run, Traffic, load
from .simulation import Progress, simulate

__all__ = [
    "AccountError",
    "Accountant",
    "BudgetExceeded",
    "Calibration",
    "ConfigError",
    "Cost",
    "DataDependentWarning",
    "DataError",
    "Event",
    "Mechanism",
    "MessageError",
    "Privacy",
    "Progress",
    "Run",
    "RunWarning",
    "Shifts",
    "SoteriaError",
    "Traffic",
    "UnsupportedModule",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "load",
    "simulate",
    "spent",
]
