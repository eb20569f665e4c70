"""Private federated learning of a PyTorch module, with all clients in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .. import _soteriafl as native
from .._arguments import real, whole, word
from ..errors import ConfigError, DataError
from .check import Loss, at, check
from .per_record import Gradients, PerRecord
from .records import Problem, classifies, tensors

__all__ = ["Privacy", "Run", "Traffic", "simulate"]

#: The most bytes of SAGA's tables, one gradient per record.
_TABLES = 2 << 30

_ROUNDED = (
    "It assumes that the framework computes each record alone up to rounding, and that the noise "
    "is ideal: both are floating point."
)
_FLOAT = (
    "Records were computed one by one, so nothing is assumed of the framework but that it computes "
    "the same for the same record; the noise counts as ideal, and is floating point."
)
_EXACT = (
    "Records were computed one by one and the noise is exact, so nothing is assumed of the "
    "framework but that it computes the same for the same record."
)


@dataclass(frozen=True)
class Privacy:
    """What is claimed for the messages of a run, or why nothing is."""

    #: `None` where nothing may be claimed.
    epsilon: float | None
    delta: float
    adjacency: str
    #: The standard deviation of every client's noise on its estimate.
    sigmas: tuple[float, ...]
    #: Whether random coordinates hide a part of a record.
    amplified: bool
    #: Why nothing is claimed.
    reason: str | None
    #: The claim and what it assumes, in words.
    statement: str


@dataclass(frozen=True)
class Traffic:
    """Bytes over all clients and rounds."""

    uplink_bytes: int
    downlink_bytes: int


@dataclass(frozen=True, repr=False)
class Run:
    """What a simulated run leaves."""

    #: A copy of the module with the trained parameters; the one passed in is as it was.
    module: nn.Module
    privacy: Privacy
    #: Columns `round`, `uplink_bytes`, `downlink_bytes`, `loss`, `grad_norm_sq`, `test_accuracy`,
    #: `epsilon`: one row per evaluated round.
    rounds: Mapping[str, NDArray[Any]]
    traffic: Traffic
    #: How gradients of records were computed: "hooks", "vmap" or "exact".
    gradients: str

    def plot(self, *columns: str, ax: Any = None) -> Any:
        """Draws columns of :attr:`rounds` over the bytes sent; needs matplotlib."""
        import matplotlib.pyplot as plt

        shown = columns or self._plotted()
        unknown = [name for name in shown if name not in self.rounds]
        if unknown:
            known = ", ".join(self.rounds)
            raise ConfigError(f"`columns`: there is no {unknown[0]}; there are {known}")
        axes = plt.subplots(figsize=(6, 3.5))[1] if ax is None else ax
        kilobytes = self.rounds["uplink_bytes"] / 1000
        for name in shown:
            axes.plot(kilobytes, self.rounds[name], label=name.replace("_", " "))
        axes.set_xlabel("sent by all clients (kB)")
        axes.legend()
        return axes

    def to_pandas(self) -> Any:
        """:attr:`rounds` as a data frame; needs pandas."""
        import pandas as pd

        return pd.DataFrame(dict(self.rounds))

    def _plotted(self) -> tuple[str, ...]:
        accuracy = self.rounds["test_accuracy"]
        return ("loss",) if bool(np.isnan(accuracy).all()) else ("test_accuracy",)

    def __repr__(self) -> str:
        accuracy = self.rounds["test_accuracy"][-1]
        tested = "" if np.isnan(accuracy) else f", test accuracy {accuracy:.1%}"
        sent = f"{self.traffic.uplink_bytes:,} bytes sent"
        return f"Run(loss {self.rounds['loss'][-1]:.4f}{tested}, {sent}): {self.privacy.statement}"


def simulate(
    module: nn.Module,
    *,
    loss: Loss,
    clients: Sequence[Any],
    test: Any = None,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float = 1e-5,
    adjacency: Literal["replace-one", "zero-out"] = "replace-one",
    clip: float | None = None,
    clip_scope: Literal["record", "selected"] = "record",
    estimator: Literal["gd", "sgd", "svrg", "saga"] | None = None,
    batch: float | None = None,
    difference_clip: float | None = None,
    snapshot_probability: float = 0.3,
    rounds: int = 100,
    step_size: float = 1.0,
    schedule: Literal["constant", "cosine", "inverse-sqrt"] = "constant",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    compressor: Literal["identity", "rand-k", "qsgd", "natural"] | None = None,
    fraction: float | None = None,
    levels: int = 16,
    shift: bool = True,
    participation: float = 1.0,
    noise: Literal["float", "secure"] = "float",
    gradients: Gradients = "auto",
    chunk: int = 32,
    seed: int = 0,
    evaluate_every: int | None = None,
    prepared_by_records: bool = False,
    progress: Callable[[int, int, Any], bool | None] | None = None,
) -> Run:
    """Trains a copy of `module` on the records of all clients, each private by itself.

    In every round each client clips the gradient of every record to `clip`, adds noise that makes
    its own messages private, and sends a compressed difference to a shift that the server knows.

    * `clients`: one pair `(X, y)` of tensors for each, or data sets of such pairs; `test` alike.
      Records that were scaled by numbers computed from them, or settings that were chosen by
      looking at results, end the claim: say `prepared_by_records=True`. The parameters with which
      `module` comes, frozen ones included, count as public.
    * `epsilon` calibrates the noise for all `rounds`, at `delta` and for these neighbours;
      `sigma` fixes it; without both there is none, and nothing is claimed.
    * `estimator`: all records ("gd"), or a `batch` of so many in the mean, each drawn by a coin of
      its own ("sgd", "svrg", "saga"). Unless given: "sgd" with a `batch`, else "gd". `svrg` and
      `saga` with noise need `difference_clip`, unless differences of clipped gradients will do;
      `saga` keeps a gradient of every record.
    * `compressor`: "rand-k" sends this `fraction` of coordinates, "qsgd" rounds to `levels`;
      "identity" sends all. Unless given: "rand-k" with a `fraction`, else "identity".
    * `gradients`, `chunk`: see :class:`PerRecord`. `noise="secure"` draws exact integers and
      computes records one by one.
    * `progress(round, uplink_bytes, (loss, test_accuracy) or None)` is called after every round;
      `False` ends the run.

    The same seed gives the same bits on one machine. An exception, of the module, the loss or
    `progress`, ends the run before the message of its round exists.
    """
    asked = dict(locals())
    settings = _settings(**{name: asked[name] for name in _SETTINGS})
    sets = _sets(clients)
    held = None if test is None else tensors("test", test)
    _check_alike(sets, held)
    X, y = sets[0]
    check(module, loss, X, y)
    model = PerRecord(module, loss, _way(gradients, settings), chunk, seed=settings["seed"])
    counts = [len(targets) for _, targets in sets]
    _check_memory(model, counts, settings)
    if model.stochastic and settings["estimator"] in ("svrg", "saga") and model.mode != "exact":
        raise ConfigError(
            f"`gradients`: {settings['estimator']} compares gradients of one record at two models, "
            'so with dropout its coins must be its own: use gradients="exact", or call .eval() on '
            "the dropout layers"
        )
    tested = held is not None and _classifies(model, held)
    problem = Problem(model, sets if held is None else [*sets, held])
    answer = native.simulate_objective(
        problem,
        settings,
        records=counts,
        test=len(held[1]) if held is not None and tested else 0,
        start=model.flatten().numpy(),
        observe=progress,
    )
    columns = answer["rounds"]
    return Run(
        module=model.module(torch.from_numpy(answer["model"])),
        privacy=_privacy(answer, settings, model.mode),
        rounds=columns,
        traffic=Traffic(*(int(columns[f"{way}link_bytes"][-1]) for way in ("up", "down"))),
        gradients=model.mode,
    )


_SETTINGS = tuple(
    name
    for name in inspect.signature(simulate).parameters
    if name not in ("module", "loss", "clients", "test", "gradients", "chunk", "progress")
)


def _settings(**asked: Any) -> dict[str, Any]:
    """What the native part needs, with every number checked by name."""
    checked = dict(asked)
    for name in ("delta", "snapshot_probability", "step_size", "momentum", "participation"):
        checked[name] = real(name, asked[name], error=ConfigError)
    for name in ("epsilon", "sigma", "clip", "batch", "difference_clip"):
        if asked[name] is not None:
            checked[name] = real(name, asked[name], error=ConfigError)
            if not 0 < checked[name] < float("inf"):
                raise ConfigError(f"`{name}` must be above 0, found {asked[name]!r}")
    for name, most in (("participation", 1.0), ("snapshot_probability", 1.0), ("delta", 1.0)):
        if not 0 < checked[name] <= most:
            raise ConfigError(
                f"`{name}` must be above 0 and at most {most:g}, found {asked[name]!r}"
            )
    checked["weight_decay"] = real("weight_decay", asked["weight_decay"], error=ConfigError)
    if not 0 <= checked["weight_decay"] < float("inf"):
        raise ConfigError(f"`weight_decay` must be at least 0, found {asked['weight_decay']!r}")
    checked["rounds"] = whole("rounds", asked["rounds"], error=ConfigError)
    checked["levels"] = whole("levels", asked["levels"], error=ConfigError)
    checked["seed"] = whole("seed", asked["seed"], least=0, error=ConfigError)
    if max(checked["rounds"], checked["levels"]) >= 2**31:
        raise ConfigError("`rounds` and `levels` must be below 2**31")
    every = asked["evaluate_every"]
    checked["evaluate_every"] = (
        max(1, checked["rounds"] // 20)
        if every is None
        else min(whole("evaluate_every", every, least=0, error=ConfigError), 2**31)
    )
    for name in ("adjacency", "clip_scope", "schedule"):
        word(name, asked[name], error=ConfigError)
    if asked["clip_scope"] not in ("record", "selected"):
        raise ConfigError(f"`clip_scope` must be record or selected, found {asked['clip_scope']!r}")
    if asked["adjacency"] not in ("replace-one", "zero-out"):
        raise ConfigError(
            f"`adjacency` must be replace-one or zero-out, found {asked['adjacency']!r}"
        )
    if asked["noise"] not in ("float", "secure"):
        raise ConfigError(f"`noise` must be float or secure, found {asked['noise']!r}")
    checked["secure"] = checked.pop("noise") == "secure"
    chosen = asked["estimator"] or ("gd" if asked["batch"] is None else "sgd")
    if chosen not in ("gd", "sgd", "svrg", "saga"):
        raise ConfigError(f"`estimator` must be gd, sgd, svrg or saga, found {chosen!r}")
    checked["estimator"] = chosen
    kind = asked["compressor"] or ("identity" if asked["fraction"] is None else "rand-k")
    if asked["fraction"] is not None and kind != "rand-k":
        raise ConfigError(f'`fraction` is for compressor="rand-k", found {kind!r}')
    if kind == "rand-k" and asked["fraction"] is None:
        raise ConfigError('`compressor="rand-k"` needs `fraction`, the part that travels')
    checked["compressor"] = word("compressor", kind, error=ConfigError)
    fraction = (
        1.0 if asked["fraction"] is None else real("fraction", asked["fraction"], error=ConfigError)
    )
    if not 0 < fraction <= 1:
        raise ConfigError(f"`fraction` must be above 0 and at most 1, found {fraction!r}")
    checked["fraction"] = fraction
    for name in ("shift", "prepared_by_records"):
        if not isinstance(asked[name], bool):
            raise ConfigError(f"`{name}` must be True or False, found {asked[name]!r}")
    return checked


def _way(gradients: Gradients, settings: dict[str, Any]) -> Gradients:
    if not settings["secure"]:
        return gradients
    if gradients not in ("auto", "exact"):
        raise ConfigError(
            f'`gradients = "{gradients}"`: secure noise needs records that are computed one by '
            'one, gradients="exact" or "auto"'
        )
    return "exact"


def _sets(clients: Sequence[Any]) -> list[tuple[Any, torch.Tensor]]:
    if isinstance(clients, (str, torch.Tensor, np.ndarray)) or not hasattr(clients, "__iter__"):
        raise DataError(
            f"`clients` must be a list with one data set for each, found {type(clients).__name__}"
        )
    found = [tensors(f"clients[{i}]", dataset) for i, dataset in enumerate(clients)]
    if not found:
        raise DataError("`clients` is empty: give one data set for each client")
    return found


def _check_alike(
    sets: list[tuple[Any, torch.Tensor]], test: tuple[Any, torch.Tensor] | None
) -> None:
    def shape(pair: tuple[Any, torch.Tensor]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        X, y = pair
        parts = X if isinstance(X, tuple) else (X,)
        return [(tuple(part.shape[1:]), part.dtype) for part in (*parts, y)]

    first = shape(sets[0])
    named = [(f"clients[{i}]", pair) for i, pair in enumerate(sets)]
    if test is not None:
        named.append(("test", test))
    for name, pair in named:
        if shape(pair) != first:
            raise DataError(
                f"`{name}` holds records of another shape or dtype than `clients[0]`: "
                f"{shape(pair)} instead of {first}"
            )


def _check_memory(model: PerRecord, counts: list[int], settings: dict[str, Any]) -> None:
    tables = 4 * sum(counts) * model.dimension
    if settings["estimator"] == "saga" and tables > _TABLES:
        raise ConfigError(
            f'`estimator = "saga"` keeps {model.dimension} numbers for each of {sum(counts)} '
            f"records, {tables / 2**30:.1f} GB; at most {_TABLES >> 30} GB: use svrg"
        )


def _classifies(model: PerRecord, test: tuple[Any, torch.Tensor]) -> bool:
    X, y = test
    _, outputs = model.losses(model.flatten(), at(X, slice(0, 2)), y[:2])
    return classifies(outputs, y)


def _rounded_up(epsilon: float) -> str:
    """Four digits, never less than it is."""
    digits = Decimal(epsilon).normalize(Context(prec=4, rounding=ROUND_CEILING))
    return f"{float(digits):.4g}"


def _privacy(answer: Any, settings: dict[str, Any], mode: str) -> Privacy:
    reason, epsilon = answer["reason"], answer["epsilon"]
    delta, adjacency = settings["delta"], settings["adjacency"]
    if reason is not None:
        statement = f"Nothing is claimed: {reason}."
    else:
        assumed = _EXACT if settings["secure"] else _FLOAT if mode == "exact" else _ROUNDED
        statement = (
            f"The messages of every client are ({_rounded_up(epsilon)}, {delta:g})-differentially "
            f"private for its records ({adjacency}). {assumed} The start counts as public, and "
            "whoever knows the seed knows the noise."
        )
    return Privacy(
        epsilon=epsilon if reason is None else None,
        delta=delta,
        adjacency=adjacency,
        sigmas=tuple(answer["sigmas"]),
        amplified=answer["amplified"],
        reason=reason,
        statement=statement,
    )
