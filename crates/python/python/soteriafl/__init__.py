"""Private federated learning with compressed communication.

>>> import soteriafl as sf
>>> mechanism = sf.Mechanism(estimator="sgd", records=6000, batch=128, clip=1.0)
>>> found = sf.calibrate(mechanism, epsilon=1, delta=1e-5, rounds=150)
>>> round(found.sigma, 4), found.cost.epsilon <= 1
(0.0153, True)

`soteriafl.sklearn`, `soteriafl.torch` and `soteriafl.flower` are imported by themselves: they need
scikit-learn, PyTorch and Flower.
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
from .deployment import JoinCost, Joined, join
from .errors import (
    AccountError,
    BudgetExceeded,
    ConfigError,
    DataDependentWarning,
    DataError,
    MessageError,
    RunRefused,
    RunWarning,
    SoteriaError,
    UnsupportedModule,
)
from .exchange import Client, Heard, Server
from .results import Privacy, Run, Traffic, load
from .simulation import Progress, simulate

__all__ = [
    "AccountError",
    "Accountant",
    "BudgetExceeded",
    "Calibration",
    "Client",
    "ConfigError",
    "Cost",
    "DataDependentWarning",
    "DataError",
    "Event",
    "Heard",
    "JoinCost",
    "Joined",
    "Mechanism",
    "MessageError",
    "Privacy",
    "Progress",
    "Run",
    "RunRefused",
    "RunWarning",
    "Server",
    "Shifts",
    "SoteriaError",
    "Traffic",
    "UnsupportedModule",
    "__version__",
    "calibrate",
    "delta",
    "epsilon",
    "join",
    "load",
    "simulate",
    "spent",
]
