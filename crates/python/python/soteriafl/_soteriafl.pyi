"""The native part: numbers and arrays in, numbers and arrays out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Release", "__version__", "filter_epsilon", "simulate_objective"]

__version__: str

_Before = Sequence[tuple[Release, float, int]]
_Cost = tuple[float, float, float, bool, str, float]

@final
class Release:
    @staticmethod
    def of_mechanism(
        *,
        estimator: str,
        records: int,
        batch: float | None,
        clip: float,
        difference_clip: float | None,
        clip_scope: str,
        rand_k: float | None,
    ) -> Release: ...
    @staticmethod
    def of_shifts(shifts: Sequence[float], probabilities: Sequence[float]) -> Release: ...
    @property
    def shifts(self) -> list[tuple[float, float]]: ...
    @property
    def hidden_fraction(self) -> float | None: ...
    def cost(
        self,
        *,
        sigma: float,
        rounds: int,
        delta: float,
        adjacency: str,
        method: str,
        amplification: bool,
        before: _Before,
    ) -> _Cost: ...
    def calibrate(
        self,
        *,
        epsilon: float,
        rounds: int,
        delta: float,
        adjacency: str,
        method: str,
        amplification: bool,
        before: _Before,
    ) -> _Cost: ...
    def delta_at(
        self,
        *,
        sigma: float,
        rounds: int,
        epsilon: float,
        adjacency: str,
        method: str,
        before: _Before,
    ) -> float: ...
    def spent(
        self,
        *,
        sigma: float,
        rounds: int,
        delta: float,
        adjacency: str,
        method: str,
        amplification: bool,
        checkpoints: int,
        before: _Before,
    ) -> NDArray[np.float64]: ...

def simulate_objective(
    objective: object,
    settings: Mapping[str, object],
    *,
    records: Sequence[int],
    test: int,
    start: NDArray[np.float32],
    observe: Callable[[int, int, tuple[float, float | None] | None], bool | None] | None,
) -> dict[str, Any]: ...
def filter_epsilon(releases: _Before, *, delta: float, adjacency: str) -> float: ...
