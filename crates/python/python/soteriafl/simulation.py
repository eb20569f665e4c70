"""Training over simulated clients: :func:`simulate`, with every key of the configuration."""

from __future__ import annotations

import json
import operator
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _records
from . import _soteriafl as native
from ._arguments import whole
from .errors import ConfigError, DataError, RunWarning
from .results import Run

__all__ = ["Progress", "simulate"]


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    #: Rounds done, and how many there will be.
    round: int
    rounds: int
    #: Computed from raw records, outside of every claim.
    loss: float
    test_accuracy: float | None
    #: What is spent so far, where something is claimed.
    epsilon: float | None
    #: Bytes that clients have sent so far.
    uplink_bytes: int


def simulate(
    X: Any = None,
    y: Any = None,
    *,
    clients: int | ArrayLike = 10,
    test: tuple[Any, Any] | None = None,
    algorithm: str = "auto",
    model: str = "auto",
    epsilon: float | None = 1.0,
    delta: float = 1e-5,
    clip: float | Literal["auto"] | None = "auto",
    rounds: int | Literal["auto"] = "auto",
    compressor: str = "auto",
    fraction: float | Literal["auto"] = "auto",
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    prepared_by_records: bool = False,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | Callable[[Progress], bool | None] = True,
) -> Run:
    """Trains a model over simulated clients, exactly as `soteria train` does.

    The same configuration, records and seed give the same bytes as the program, on any number of
    threads. Features should be about 1 in size, by constants that are known without the records
    (``data.center`` and ``data.factor`` in `config`): constants computed from them end the claim.

    Parameters
    ----------
    X, y
        Records: a numpy array, a scipy sparse matrix, a pandas data frame or an Arrow table of
        numbers, and a label for every row, numbers or text. `y` may be the name of a column of `X`.
        Where `config` has a ``data.target_range``, labels are numbers to predict.
        Without `X` and `y`, `config` names a source: ``{"data.source": "a9a"}``.
    clients
        How many clients the records are dealt to (``data.partition`` says how), or for every row
        the client that it belongs to: numbers or names.
    test
        Records to measure accuracy on.
    algorithm, model, epsilon, delta, clip, rounds, compressor, fraction
        ``algorithm.preset``, ``model.kind``, ``privacy.epsilon`` (None: no noise, and no claim),
        ``privacy.delta``, ``privacy.clip``, ``algorithm.rounds``, ``algorithm.compressor`` and
        ``algorithm.fraction``.
    config
        Any other key of the configuration, ``{"algorithm.shift": "off"}`` or
        ``{"algorithm": {"shift": "off"}}``, or the path of a configuration file.
    prepared_by_records
        Say True where features were scaled, selected or filled in by numbers computed from these
        records: nothing is claimed then.
    seed
        Of everything random. Whoever knows it knows the noise.
    threads
        All cores unless given; the result does not depend on it.
    progress
        True shows a bar (by tqdm where that is installed) for runs that last. A function is called
        after every evaluated round; the run stops early if it returns False.

    Raises
    ------
    ConfigError
        Settings that do not exist, do not fit or do not go together.
    DataError
        Records that cannot be used.

    Examples
    --------
    >>> import numpy as np, soteriafl as sf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (8000, 5))
    >>> y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    >>> run = sf.simulate(X, y, test=(X, y), rounds=50, progress=False)
    >>> run.privacy.epsilon <= 1, run.test_accuracy > 0.9
    (True, True)
    >>> run.predict([[0.9, 0.8, 0, 0, 0]]).tolist()
    ['yes']
    """
    arguments: dict[str, tuple[str, Any, Any]] = {
        "epsilon": ("privacy.epsilon", epsilon, 1.0),
        "delta": ("privacy.delta", delta, 1e-5),
        "clip": ("privacy.clip", clip, "auto"),
        "algorithm": ("algorithm.preset", algorithm, "auto"),
        "rounds": ("algorithm.rounds", rounds, "auto"),
        "compressor": ("algorithm.compressor", compressor, "auto"),
        "fraction": ("algorithm.fraction", fraction, "auto"),
        "model": ("model.kind", model, "auto"),
        "seed": ("run.seed", seed, 0),
    }
    file, given = _given(config)
    client_of: NDArray[np.uint32] | None = None
    if np.ndim(clients) == 0 and not isinstance(clients, str):
        arguments["clients"] = ("data.clients", clients, 10)
    else:
        client_of = _client_of(clients, X)
        arguments["clients"] = ("data.clients", int(client_of.max()) + 1, None)
    settings = _settings(given, arguments)
    train, labels, held_out = None, None, None
    if X is None:
        if y is not None or test is not None or client_of is not None:
            raise DataError("`X` is missing: `y`, `test` and client ids go with it")
    else:
        named = [key for key in ("data.source", "data.test") if key in given]
        if given.get("data.source") == "memory":
            named.remove("data.source")
        if named:
            raise ConfigError(
                f"`{named[0]}` names records, but `X` gives them: leave one of them out"
            )
        X, y = _records.split(X, y)
        train, labels = _labelled("X", "y", X, y)
        if test is not None:
            held_out = _test(test, X)
        settings.append(("data.source", '"memory"', "simulate(X=...)"))
        if client_of is not None:
            _refuse_key(given, "data.partition", "given", "clients")
            settings.append(("data.partition", '"given"', "simulate(clients=...)"))
    if threads is not None:
        threads = whole("threads", threads, error=ConfigError)
    with _Shown(progress) as shown:
        finished = native.simulate(
            file=file,
            settings=settings,
            train=train,
            test=held_out,
            clients=client_of,
            prepared_by_records=bool(prepared_by_records),
            threads=threads,
            progress=shown.tell,
            every=shown.every,
        )
    classes = None
    if labels is not None and not finished.regression:
        classes = _records.classes_of(labels, finished.classes)
    run = Run(finished, classes)
    for warning in run.warnings:
        warnings.warn(warning, RunWarning, stacklevel=2)
    return run


def _labelled(x: str, name: str, X: Any, y: Any) -> tuple[native.Rows, _records.Labels]:
    rows = _records.rows(x, X)
    labels = _records.labels(name, y, rows.count)
    rows.label(name, labels.written, labels.codes)
    return rows, labels


def _test(test: Any, X: Any) -> native.Rows:
    try:
        features, labels = test
    except (TypeError, ValueError):
        raise DataError("`test` must be a pair of records and labels: test=(X, y)") from None
    features, labels = _records.split(features, labels)
    return _labelled("test", "test y", features, labels)[0]


def _client_of(clients: ArrayLike, X: Any) -> NDArray[np.uint32]:
    """The number of every row's client, in the order of ids."""
    ids = np.asarray(clients.to_numpy() if hasattr(clients, "to_numpy") else clients)
    if ids.dtype.kind == "O":
        ids = ids.astype(str)
    if ids.ndim != 1 or ids.dtype.kind not in "biuUSf":
        raise DataError(
            "`clients` must be a number, or the client of every row: a one-dimensional array of "
            f"numbers or names, found {ids.dtype} of shape {ids.shape}"
        )
    count = X.shape[0] if hasattr(X, "shape") else len(X) if X is not None else len(ids)
    if len(ids) != count or count == 0:
        raise DataError(f"`clients` has {len(ids)} ids, but there are {count} rows")
    if ids.dtype.kind == "f" and not np.isfinite(ids).all():
        raise DataError("`clients` has an id that is not a number")
    return np.unique(ids, return_inverse=True)[1].astype(np.uint32)


def _given(
    config: Mapping[str, Any] | str | os.PathLike[str] | None,
) -> tuple[str | None, dict[str, Any]]:
    """A configuration file, and the keys that are given beside it."""
    if config is None:
        return None, {}
    if isinstance(config, (str, os.PathLike)):
        return os.fspath(config), {}
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"`config` must be a mapping of keys or the path of a file, found {config!r}"
        )
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[str(key)] = value
    return None, flat


def given_settings(
    config: Mapping[str, Any] | str | os.PathLike[str] | None, place: str
) -> tuple[str | None, list[tuple[str, str, str]]]:
    """A configuration file, and keys with values as TOML; `place` stands for them in errors."""
    file, given = _given(config)
    return file, [(key, _toml(key, value), place) for key, value in given.items()]


def _settings(
    given: Mapping[str, Any], arguments: Mapping[str, tuple[str, Any, Any]]
) -> list[tuple[str, str, str]]:
    """Keys with values as TOML. What an argument leaves at its default is not given."""
    settings = [(key, _toml(key, value), "simulate(config=...)") for key, value in given.items()]
    for name, (key, value, default) in arguments.items():
        if default is not None and type(value) in (int, float, str) and value == default:
            continue
        if value is not None or default is not None:
            _refuse_key(given, key, value, name)
            settings.append((key, _toml(name, value), f"simulate({name}=...)"))
    return settings


def _refuse_key(given: Mapping[str, Any], key: str, value: Any, name: str) -> None:
    if key in given and given[key] != value:
        raise ConfigError(
            f"`{key}` is {given[key]!r} in `config`, and `{name}` says otherwise: leave one of "
            "them out"
        )


def _toml(name: str, value: Any) -> str:
    """A value as TOML; None is the word none."""
    if value is None:
        return '"none"'
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        return str(operator.index(value))
    except TypeError:
        pass
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, (list, tuple, np.ndarray)):
        return "[" + ", ".join(_toml(name, item) for item in value) + "]"
    raise ConfigError(
        f"`{name}` must be a number, a word, a truth value or a list of them, found {value!r}"
    )


class _Shown:
    """What is told of a run while it runs."""

    def __init__(self, progress: bool | Callable[[Progress], bool | None]) -> None:
        self.tell: Callable[..., bool | None] | None = None
        #: Seconds between two calls.
        self.every = 0.1
        self._bar: Any = None
        self._began = self._said = time.monotonic()
        if callable(progress):
            self.every = 0.0
            self.tell = lambda *reached: progress(Progress(*reached))
        elif progress:
            self.tell = self._show

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def _show(
        self,
        round: int,
        rounds: int,
        loss: float,
        accuracy: float | None,
        epsilon: float | None,
        uplink_bytes: int,
    ) -> None:
        # Nobody wants a bar for what is over before it is seen.
        if time.monotonic() - self._began < 0.5 and self._bar is None:
            return
        measured = {"loss": f"{loss:.4f}"}
        if accuracy is not None:
            measured["accuracy"] = f"{accuracy:.4f}"
        if epsilon is not None:
            measured["epsilon"] = f"{epsilon:.4g}"
        bar = self._open(rounds)
        if bar is not None:
            bar.set_postfix(measured, refresh=False)
            bar.update(round - bar.n)
        elif time.monotonic() - self._said > 1 or round == rounds:
            self._said = time.monotonic()
            text = "  ".join(f"{name} {value}" for name, value in measured.items())
            print(f"round {round} of {rounds}  {text}", file=sys.stderr)

    def _open(self, rounds: int) -> Any:
        if self._bar is None:
            try:
                from tqdm import tqdm
            except ImportError:
                return None
            self._bar = tqdm(total=rounds, unit="round", leave=False)
        return self._bar
