"""Private federated learning of a PyTorch module, with all clients in this process."""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .. import _soteriafl as native
from .. import results
from .._arguments import real, whole, word
from ..errors import ConfigError, DataError
from ..simulation import _given, _refuse_key, _toml
from .architecture import architecture_of
from .check import Loss, at, check
from .per_record import Gradients, PerRecord
from .records import Problem, check_labels, classifies, tensors

__all__ = ["Run", "load", "simulate"]

#: The most bytes of the tables of SAGA and SAG, one gradient per record.
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


class Run(results.Run):
    """A finished run of a module: everything that a :class:`soteriafl.Run` has, and the module."""

    def __init__(self, finished: native.Finished, module: nn.Module, gradients: str) -> None:
        super().__init__(finished)
        #: A copy of the module with the trained parameters; the one passed in is as it was.
        self.module = module
        #: How gradients of records were computed: "hooks", "vmap" or "exact".
        self.gradients = gradients

    def __reduce__(self) -> tuple[Any, ...]:
        native_run = self._native
        files = (native_run.config, native_run.rounds, native_run.summary, native_run.model)
        return _again, (*files, native_run.warnings, self.module, self.gradients)

    @property
    def privacy(self) -> results.Privacy:
        """What is claimed, with what it assumes about the framework, or why nothing is."""
        found = super().privacy
        if found.reason is not None:
            return found
        secure = found.noise == "secure"
        assumed = _EXACT if secure else _FLOAT if self.gradients == "exact" else _ROUNDED
        return replace(found, statement=f"{found.statement} {assumed} The start counts as public.")

    def plot(self, *columns: str, x: str = "uplink_bytes", ax: Any = None) -> Any:
        """Draws columns of :attr:`rounds` with matplotlib: the test accuracy where it was measured,
        else the loss, over the bytes sent, unless others are named."""
        measured = not bool(np.isnan(self.rounds["test_accuracy"]).all())
        return super().plot(*(columns or ("test_accuracy" if measured else "loss",)), x=x, ax=ax)

    def predict(self, X: Any) -> NDArray[Any]:
        """Is for models of SoteriaFL's own: call :attr:`module`."""
        raise DataError("this model is a module: call run.module")

    predict_proba = predict


def _again(
    config: str,
    rounds: str,
    summary: str,
    model: bytes,
    warned: list[str],
    module: nn.Module,
    gradients: str,
) -> Run:
    """A run that was pickled."""
    return Run(native.Finished.of(config, rounds, summary, model, warned, []), module, gradients)


def load(path: str | os.PathLike[str], module: nn.Module) -> Run:
    """A run of `module` that :meth:`Run.save` or `soteria serve` has written; its module is a copy
    of this one with the trained parameters.

    Raises
    ------
    DataError
        The run is one of another module: other parameters, layers or frozen numbers.
    """
    finished = native.Finished.read(os.fspath(path))
    trained = {name: (tuple(shape), values) for name, shape, values in finished.tensors()}
    _, architecture = architecture_of(module)
    wanted = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
    found = {name: shape for name, (shape, _) in trained.items()}
    if found != wanted or f'architecture = "{architecture}"' not in finished.config:
        raise DataError(
            f"the run in {os.fspath(path)} is of another module: its parameters are "
            + ", ".join(f"{name}{list(shape)}" for name, shape in found.items())
            + "; layers, their settings and what is frozen must be the same, too"
        )
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if parameter.requires_grad:
                shape, values = trained[name]
                parameter.copy_(torch.from_numpy(values).view(shape))
    noise = json.loads(finished.summary)["privacy"]["noise"]
    # How they were computed is not in the files; secure noise leaves one way.
    return Run(finished, copied, "exact" if noise == "secure" else "auto")


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
    config: Mapping[str, Any] | None = None,
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
    * `config`: any other key of the configuration, such as
      ``{"privacy.records_per_person": 3, "algorithm.participation": 0.5}``; with
      ``"algorithm.preset"`` what is not given here is as that says.
    * `progress(round, uplink_bytes, (loss, test_accuracy) or None)` is called after every round;
      `False` ends the run.

    The same seed gives the same bits on one machine. An exception, of the module, the loss or
    `progress`, ends the run before the message of its round exists.
    """
    asked = dict(locals())
    settings = _settings(**{name: asked[name] for name in _SETTINGS})
    given = _configured(config)
    sets = _sets(clients)
    held = None if test is None else tensors("test", test)
    _check_alike(sets, held)
    X, y = sets[0]
    check(module, loss, X, y)
    secure = settings["secure"] or given.get("privacy.noise") == "secure"
    settings["secure"] = secure
    way = _way(gradients, secure)
    model = PerRecord(module, loss, way, chunk, seed=settings["seed"], own_coins=False)
    counts = [len(targets) for _, targets in sets]
    named = {f"clients[{i}]": pair for i, pair in enumerate(sets)}
    check_labels(model, named if held is None else named | {"test": held})
    tested = held is not None and _classifies(model, held)
    problem = Problem(model, sets if held is None else [*sets, held])
    keys = _keys(module, settings, given, asked, len(sets), model.dimension)

    def tell(
        round: int, rounds: int, loss: float | None, accuracy: float | None, _: Any, sent: int
    ) -> bool | None:
        assert progress is not None
        return progress(round, sent, None if loss is None else (loss, accuracy))

    finished = native.simulate(
        file=None,
        settings=keys,
        train=None,
        test=None,
        clients=None,
        prepared_by_records=settings["prepared_by_records"],
        threads=1,
        progress=None if progress is None else tell,
        every=0.0,
        computed={
            "objective": problem,
            "settled": lambda kind, noisy: settle(model, counts, kind, noisy),
            "records": counts,
            "test": len(held[1]) if held is not None and tested else 0,
            "start": model.flatten().numpy(),
        },
    )
    trained = [torch.from_numpy(values) for _, _, values in finished.tensors()]
    names = [name for name, _, _ in finished.tensors()]
    shapes = {name: shape for name, shape, _ in finished.tensors()}
    parameters = {
        name: values.view(shapes[name]) for name, values in zip(names, trained, strict=True)
    }
    return Run(finished, model.module(parameters), model.mode)


_SETTINGS = tuple(
    name
    for name in inspect.signature(simulate).parameters
    if name not in ("module", "loss", "clients", "test", "gradients", "chunk", "config", "progress")
)
_DEFAULTS = {name: p.default for name, p in inspect.signature(simulate).parameters.items()}


def _configured(config: Mapping[str, Any] | None) -> dict[str, Any]:
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"`config` must be a mapping of keys, found {config!r}")
    given = _given(config)[1]
    for key in given:
        if key in _OWN or key.startswith(("deployment.", "schema.")):
            raise ConfigError(f"`config`: {key} is not for a module: leave it out")
    return given


#: Keys that follow from the module and its records.
_OWN = (
    "model.kind",
    "model.init",
    "model.parameters",
    "model.architecture",
    "data.source",
    "data.test",
    "data.clients",
    "data.partition",
)


def _keys(
    module: nn.Module,
    settings: dict[str, Any],
    given: dict[str, Any],
    asked: dict[str, Any],
    clients: int,
    dimension: int,
) -> list[tuple[str, str, str]]:
    """The configuration of the run. A key of `config` stands for the argument at its default."""
    parameters, architecture = architecture_of(module)
    place = "simulate({})"
    keys: list[tuple[str, str, str]] = []
    own = dict(
        zip(
            _OWN,
            ("elsewhere", "given", parameters, architecture, "memory", None, clients, "given"),
            strict=True,
        )
    )
    keys += [
        (key, _toml(key, value), place.format("module"))
        for key, value in own.items()
        if value is not None
    ]
    keys += [(key, _toml(key, value), place.format("config=...")) for key, value in given.items()]
    preset = "algorithm.preset" in given
    if not preset:
        keys.append(
            ("algorithm.preset", f'"soteriafl-{settings["estimator"]}"', place.format("estimator"))
        )
    for name, key, value in _arguments(settings, dimension):
        argument = name.partition(" ")[0]
        default = asked[argument] == _DEFAULTS[argument]
        if key in given:
            if not default and given[key] != value:
                _refuse_key(given, key, value, argument)
        elif not (preset and default):
            keys.append((key, _toml(argument, value), place.format(f"{argument}=...")))
    return keys


def _arguments(settings: dict[str, Any], dimension: int) -> Iterator[tuple[str, str, Any]]:
    """Arguments as keys of the configuration."""
    if settings["sigma"] is None:
        yield "epsilon", "privacy.epsilon", settings["epsilon"]
    else:
        yield "sigma", "privacy.sigma", settings["sigma"]
    yield "delta", "privacy.delta", settings["delta"]
    yield "adjacency", "privacy.adjacency", settings["adjacency"]
    yield "noise", "privacy.noise", "secure" if settings["secure"] else "float"
    yield "clip", "privacy.clip", settings["clip"]
    yield "clip_scope", "privacy.clip_scope", settings["clip_scope"]
    yield "estimator", "algorithm.estimator", settings["estimator"]
    if settings["estimator"] != "gd" and settings["batch"] is not None:
        yield "batch", "algorithm.batch", settings["batch"]
    if settings["estimator"] in ("svrg", "saga"):
        yield "difference_clip", "privacy.difference_clip", settings["difference_clip"]
    if settings["estimator"] == "svrg":
        share = settings["snapshot_probability"]
        yield "snapshot_probability", "algorithm.snapshot_probability", share
    yield "compressor", "algorithm.compressor", settings["compressor"]
    if settings["compressor"] == "rand-k":
        k = max(1, min(dimension, round(settings["fraction"] * dimension)))
        yield "fraction", "algorithm.k", k
        yield "fraction coordinates", "algorithm.coordinates", "own"
    if settings["compressor"] == "qsgd":
        yield "levels", "algorithm.levels", settings["levels"]
    if not settings["shift"]:
        yield "shift", "algorithm.shift", "off"
    yield "participation", "algorithm.participation", settings["participation"]
    yield "rounds", "algorithm.rounds", settings["rounds"]
    yield "step_size", "algorithm.step_size", settings["step_size"]
    yield "schedule", "algorithm.schedule", settings["schedule"]
    yield "momentum", "algorithm.momentum", settings["momentum"]
    decay = settings["weight_decay"]
    yield "weight_decay", "model.regularizer", "l2" if decay else "none"
    if decay:
        yield "weight_decay lambda", "model.lambda", decay
    yield "seed", "run.seed", settings["seed"]
    yield "evaluate_every", "run.eval_every", settings["evaluate_every"]


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
    if asked["epsilon"] is not None and asked["sigma"] is not None:
        raise ConfigError("give `epsilon` or `sigma`, not both")
    noisy = asked["epsilon"] is not None or asked["sigma"] is not None
    if noisy and asked["clip"] is None:
        raise ConfigError("noise needs a `clip`: it hides no more than what is bounded")
    if asked["schedule"] not in ("constant", "cosine", "inverse-sqrt"):
        raise ConfigError(
            f"`schedule` must be constant, cosine or inverse-sqrt, found {asked['schedule']!r}"
        )
    chosen = asked["estimator"] or ("gd" if asked["batch"] is None else "sgd")
    if chosen not in ("gd", "sgd", "svrg", "saga"):
        raise ConfigError(f"`estimator` must be gd, sgd, svrg or saga, found {chosen!r}")
    if chosen != "gd" and asked["batch"] is None:
        raise ConfigError(f'`estimator = "{chosen}"` draws batches: say how large by `batch`')
    checked["estimator"] = chosen
    kind = asked["compressor"] or ("identity" if asked["fraction"] is None else "rand-k")
    if asked["fraction"] is not None and kind != "rand-k":
        raise ConfigError(f'`fraction` is for compressor="rand-k", found {kind!r}')
    if kind == "rand-k" and asked["fraction"] is None:
        raise ConfigError('`compressor="rand-k"` needs `fraction`, the part that travels')
    if kind not in ("identity", "rand-k", "qsgd", "natural"):
        raise ConfigError(f"`compressor` must be identity, rand-k, qsgd or natural, found {kind!r}")
    checked["compressor"] = kind
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


def _way(gradients: Gradients, secure: bool) -> Gradients:
    if not secure:
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


def settle(model: PerRecord, counts: list[int], estimator: str, noisy: bool) -> None:
    """What an estimator asks of a model, once it is known which one a run has.

    Where batches are drawn, one record must not move the coins of others, or noise for one record
    would not hide it; and gradients of a record at two models are only close with the same coins.
    """
    if estimator not in (("gd",) if noisy else ("gd", "sgd")):
        model.require_own_coins()
    tables = 4 * sum(counts) * model.dimension
    if estimator in ("saga", "sag") and tables > _TABLES:
        raise ConfigError(
            f'`estimator = "{estimator}"` keeps {model.dimension} numbers for each of '
            f"{sum(counts)} records, {tables / 2**30:.1f} GB; at most {_TABLES >> 30} GB: use svrg"
        )


def _classifies(model: PerRecord, test: tuple[Any, torch.Tensor]) -> bool:
    X, y = test
    _, outputs = model.losses(model.flatten(), at(X, slice(0, 2)), y[:2])
    return classifies(outputs, y)
