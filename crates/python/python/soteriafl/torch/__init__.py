"""Private federated learning of your own PyTorch module.

>>> import torch, soteriafl.torch as st
>>> from torch import nn
>>> module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
>>> X = torch.randn(600, 4, generator=torch.manual_seed(1))
>>> y = (X[:, 0] > 0).long()
>>> clients = [(X[i::3], y[i::3]) for i in range(3)]
>>> run = st.simulate(module, loss=nn.functional.cross_entropy, clients=clients, test=(X, y),
...                   epsilon=2, clip=1.0, rounds=20, step_size=4.0)
>>> run.privacy.epsilon <= 2, bool(run.rounds["test_accuracy"][-1] > 0.8)
(True, True)

:func:`check` says whether a module's records can be bounded one by one, :func:`simulate` trains
it, :func:`load` reads a run that was saved, :func:`describe` prepares a networked run, which
clients join by :func:`soteriafl.join`, and :class:`PerRecord` is the building block of all:
clipped gradients of single records.
"""

from .check import check
from .deployment import describe
from .per_record import PerRecord
from .records import Problem
from .simulate import Run, load, simulate

__all__ = ["PerRecord", "Problem", "Run", "check", "describe", "load", "simulate"]
