"""The native part: numbers and arrays in, numbers and arrays out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Finished",
    "Release",
    "Rows",
    "__version__",
    "filter_epsilon",
    "simulate",
    "simulate_objective",
]

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

@final
class Rows:
    @staticmethod
    def dense(argument: str, values: NDArray[Any], names: Sequence[str] | None) -> Rows: ...
    @staticmethod
    def sparse(
        argument: str,
        columns: int,
        starts: NDArray[np.int64],
        indices: NDArray[np.int32],
        values: NDArray[Any],
        names: Sequence[str] | None,
    ) -> Rows: ...
    @property
    def count(self) -> int: ...
    def label(
        self,
        argument: str,
        distinct: Sequence[str] | Sequence[float],
        rows: NDArray[np.uint32],
    ) -> None: ...

@final
class Finished:
    @staticmethod
    def read(path: str) -> Finished: ...
    @staticmethod
    def of(
        config: str,
        rounds: str,
        summary: str,
        model: bytes,
        warnings: Sequence[str],
        classes: Sequence[int],
    ) -> Finished: ...
    def write(self, path: str, overwrite: bool) -> None: ...
    @property
    def config(self) -> str: ...
    @property
    def rounds(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def model(self) -> bytes: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def classes(self) -> list[int]: ...
    @property
    def regression(self) -> bool: ...
    def statement(self) -> str: ...
    def svg(self) -> str: ...
    def html(self) -> str: ...
    def columns(self) -> dict[str, NDArray[Any]]: ...
    def tensors(self) -> list[tuple[str, list[int], NDArray[np.float32]]]: ...
    def predict(self, rows: Rows) -> NDArray[np.uint32]: ...
    def numbers(self, rows: Rows) -> NDArray[np.float64]: ...
    def probabilities(self, rows: Rows) -> NDArray[np.float64]: ...

def simulate(
    *,
    file: str | None,
    settings: Sequence[tuple[str, str, str]],
    train: Rows | None,
    test: Rows | None,
    clients: NDArray[np.uint32] | None,
    prepared_by_records: bool,
    threads: int | None,
    progress: Callable[..., bool | None] | None,
    every: float,
) -> Finished: ...
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
