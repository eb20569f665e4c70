"""The native part: numbers and arrays in, numbers and arrays out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Finished",
    "Holding",
    "Node",
    "Release",
    "Rows",
    "Server",
    "__version__",
    "client_of_answer",
    "clip_weights",
    "filter_epsilon",
    "join",
    "simulate",
    "squared_lengths",
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
        memory: float | None,
        clip_scope: str,
        rand_k: float | None,
        records_per_person: int,
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
    computed: Mapping[str, object] | None = None,
) -> Finished: ...
def squared_lengths(rows: NDArray[np.float32], threads: int) -> NDArray[np.float64]: ...
def clip_weights(squared_norms: NDArray[np.float64], clip: float) -> NDArray[np.float32]: ...
def filter_epsilon(releases: _Before, *, delta: float, adjacency: str) -> float: ...

@final
class Holding:
    @staticmethod
    def source(spec: str, data_dir: str | None) -> Holding: ...
    @staticmethod
    def memory(rows: Rows) -> Holding: ...
    @staticmethod
    def elsewhere(
        maker: Callable[[str, bool], object],
        parameters: Sequence[str],
        architecture: str,
        kind: str,
        parts: Sequence[NDArray[np.uint8]],
    ) -> Holding: ...
    def digest(self) -> str: ...

def join(
    *,
    server: str,
    tls: str | None,
    state: str,
    holding: Holding,
    terms: Mapping[str, object],
    companion: object,
) -> dict[str, Any] | None: ...

@final
class Node:
    def __new__(
        cls, state: str, holding: Holding, terms: Mapping[str, object], keep: bool
    ) -> Node: ...
    def answer(self, question: bytes, shown: Callable[[list[str], list[str]], object]) -> bytes: ...

@final
class Server:
    def __new__(
        cls,
        *,
        file: str | None,
        settings: Sequence[tuple[str, str, str]],
        state: str,
        out: str,
        overwrite: bool,
        data_dir: str | None,
        test_seed: int | None,
    ) -> Server: ...
    def introduce(self) -> bytes: ...
    def ask(self, client: int) -> bytes | None: ...
    def hear(self, peer: int, answer: bytes, seconds: float) -> tuple[str, int | None]: ...
    def tick(self, seconds: float) -> bool: ...
    def forget(self, peer: int) -> None: ...
    def client_of(self, peer: int) -> int | None: ...
    def missing(self) -> list[int]: ...
    def tensors(self) -> list[tuple[str, list[int], NDArray[np.float32]]]: ...
    def finish(self) -> list[str]: ...
    @property
    def round(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def clients(self) -> int: ...
    @property
    def begun(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def acknowledged(self) -> bool: ...
    @property
    def about(self) -> str: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def measured(self) -> tuple[int, float | None, float | None] | None: ...

def client_of_answer(answer: bytes) -> int | None: ...
