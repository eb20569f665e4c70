"""What releases cost in privacy, and how much noise meets a target.

A :class:`Mechanism` says what one client does in every round; :func:`epsilon`, :func:`delta`,
:func:`calibrate` and :func:`spent` ask about rounds of it, an :class:`Accountant` about several
different releases of the same records. All costs are upper bounds, computed by privacy-loss
distributions rounded upwards, for rounds that were fixed in advance.

`sigma` is the standard deviation of the noise *per coordinate of the estimate*, which is a mean
over the batch. The noise multiplier of other libraries is `sigma * batch / clip` for SGD and
`sigma * records / clip` for GD: :meth:`Mechanism.noise_multiplier`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from . import _soteriafl as native
from ._arguments import real, whole, word
from .errors import AccountError, BudgetExceeded

__all__ = [
    "Accountant",
    "Adjacency",
    "Calibration",
    "Cost",
    "Event",
    "Mechanism",
    "Method",
    "Shifts",
    "calibrate",
    "delta",
    "epsilon",
    "spent",
]

Adjacency = Literal["replace-one", "zero-out"]
Method = Literal["pld", "rdp"]

#: What SAG's memory is where a run's configuration does not say it.
_MEMORY = 0.5

_real = functools.partial(real, error=AccountError)
_whole = functools.partial(whole, error=AccountError)
_word = functools.partial(word, error=AccountError)


def _set(instance: object, **values: object) -> None:
    """Replaces fields of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


class _Released:
    """What mechanisms and shifts have in common."""

    _release: native.Release
    records_per_person: int

    @property
    def shifts(self) -> tuple[tuple[float, float], ...]:
        """How far one record, or one person, moves the estimate, and with which probability."""
        return tuple(self._release.shifts)

    def noise_multiplier(self, sigma: float) -> float:
        """The noise over the farthest that one record moves the estimate, also where a claim is
        about persons."""
        return _real("sigma", sigma) / self._farthest()

    def sigma(self, noise_multiplier: float) -> float:
        """The noise of this multiplier."""
        return _real("noise_multiplier", noise_multiplier) * self._farthest()

    def _farthest(self) -> float:
        return max(shift for shift, _ in self.shifts)


@dataclass(frozen=True, kw_only=True)
class Mechanism(_Released):
    """What one client does in every round, before any noise.

    Parameters
    ----------
    estimator
        "gd" (all records), "sgd" (every record by a coin of its own), "svrg", "saga", "sag" (a
        table of last visits beside a batch), or "recursive" (increments whose noise follows their
        clip: a message costs what one of sgd does).
    records
        The client's number of records. It is public.
    batch
        The expected number of records of an estimate; GD has no use for it.
    clip
        The norm to which every record's gradient is clipped.
    difference_clip
        SVRG and SAGA: the norm to which every record's difference of gradients is clipped; None
        where only gradients are.
    memory
        SAG: the weight of its table's mean, above 0 and at most 1; the batch's mean has the rest.
        Unless given it is 0.5, as in a run.
    clip_scope
        "record": the clip bounds the record's whole gradient. "selected": its coordinates that
        travel.
    rand_k
        The share of coordinates that travel, drawn by the client afresh for every message; None
        where all do.
    records_per_person
        Costs are for all that up to so many records of one person contribute at this client (up to
        1000). It changes nothing that the client does.

    Examples
    --------
    >>> from soteriafl import Mechanism
    >>> mechanism = Mechanism(estimator="sgd", records=1000, batch=50, clip=2.0)
    >>> mechanism.shifts
    ((0.0, 0.95), (0.04, 0.05))
    >>> mechanism.noise_multiplier(sigma=0.08)
    2.0
    >>> Mechanism(records=1000, clip=2.0, records_per_person=3).shifts
    ((0.006, 1.0),)
    """

    estimator: Literal["gd", "sgd", "svrg", "saga", "sag", "recursive"] = "gd"
    records: int
    batch: float | None = None
    clip: float = 1.0
    difference_clip: float | None = None
    memory: float | None = None
    clip_scope: Literal["record", "selected"] = "record"
    rand_k: float | None = None
    records_per_person: int = 1
    _release: native.Release = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.estimator == "sag" and self.memory is None:
            _set(self, memory=_MEMORY)
        optional = {
            name: None if value is None else _real(name, value)
            for name, value in (
                ("batch", self.batch),
                ("difference_clip", self.difference_clip),
                ("memory", self.memory),
                ("rand_k", self.rand_k),
            )
        }
        _set(
            self,
            estimator=_word("estimator", self.estimator),
            records=_whole("records", self.records),
            clip=_real("clip", self.clip),
            clip_scope=_word("clip_scope", self.clip_scope),
            records_per_person=_whole("records_per_person", self.records_per_person),
            **optional,
        )
        if self.records_per_person > 1000:
            raise AccountError(
                f"`records_per_person` must be at most 1000, found {self.records_per_person}"
            )
        _set(self, _release=native.Release.of_mechanism(**self._parameters()))

    def _farthest(self) -> float:
        if self.records_per_person == 1:
            return super()._farthest()
        return dataclasses.replace(self, records_per_person=1)._farthest()

    def _parameters(self) -> dict[str, Any]:
        fields = dataclasses.fields(self)
        return {f.name: getattr(self, f.name) for f in fields if f.init}

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Mechanism, **self._parameters()), ()


@dataclass(frozen=True)
class Shifts(_Released):
    """Any other release: how far one record moves what is released, with which probability; or how
    far one person does, with up to `records_per_person` records.

    >>> from soteriafl import Shifts, epsilon
    >>> gaussian = Shifts((1.0,), (1.0,))
    >>> cost = epsilon(gaussian, sigma=10.0, rounds=25, delta=1e-5, adjacency="zero-out")
    >>> round(cost.epsilon, 3)
    1.993
    """

    sizes: tuple[float, ...]
    probabilities: tuple[float, ...]
    records_per_person: int = 1
    _release: native.Release = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            sizes, probabilities = tuple(self.sizes), tuple(self.probabilities)
        except TypeError:
            raise AccountError("`sizes` and `probabilities` must be sequences of numbers") from None
        sizes = tuple(_real("sizes", size) for size in sizes)
        probabilities = tuple(_real("probabilities", share) for share in probabilities)
        person = _whole("records_per_person", self.records_per_person)
        _set(self, sizes=sizes, probabilities=probabilities, records_per_person=person)
        _set(self, _release=native.Release.of_shifts(sizes, probabilities))

    def _parameters(self) -> dict[str, Any]:
        return {
            "sizes": list(self.sizes),
            "probabilities": list(self.probabilities),
            "records_per_person": self.records_per_person,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return Shifts, (self.sizes, self.probabilities, self.records_per_person)


@dataclass(frozen=True)
class Cost:
    """What releases cost. `float(cost)` is its epsilon; `str(cost)` the claim in words."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    method: Method
    epsilon_unamplified: float
    amplified: bool
    #: Whether random-k amplification made epsilon smaller, or why not.
    amplification: str
    #: Of how many records of one person it speaks.
    records_per_person: int = 1

    def __float__(self) -> float:
        return self.epsilon

    def __str__(self) -> str:
        amplified = ", amplified by random-k" if self.amplified else ""
        epsilon = _rounded_up(self.epsilon)
        return (
            f"epsilon {epsilon} at delta {self.delta:g}, {self.adjacency}{_persons(self)} "
            f"({self.method}{amplified})"
        )


@dataclass(frozen=True)
class Calibration:
    """The smallest noise for a target, and what it costs."""

    sigma: float
    noise_multiplier: float
    cost: Cost

    def __str__(self) -> str:
        return f"sigma {self.sigma:g} (noise multiplier {self.noise_multiplier:.4g}): {self.cost}"


def epsilon(
    mechanism: Mechanism | Shifts,
    *,
    sigma: float,
    rounds: int,
    delta: float,
    adjacency: Adjacency = "replace-one",
    method: Method = "pld",
    amplification: bool = True,
) -> Cost:
    """What `rounds` rounds of a mechanism cost with noise of standard deviation `sigma`.

    Parameters
    ----------
    adjacency
        "replace-one": neighbouring data sets differ in one record. "zero-out": one record is
        replaced by one whose gradient is zero.
    method
        "pld": privacy-loss distributions, or the closed form. "rdp": Rényi divergences.
    amplification
        Whether what random-k hides may count where that is proved.

    Examples
    --------
    >>> import soteriafl as sf
    >>> mechanism = sf.Mechanism(estimator="sgd", records=6000, batch=128)
    >>> print(sf.epsilon(mechanism, sigma=0.01, rounds=150, delta=1e-5, adjacency="zero-out"))
    epsilon 1.055 at delta 1e-05, zero-out (pld)
    """
    question = _question(rounds, delta, adjacency, method)
    parts = _released(mechanism)._release.cost(
        sigma=_real("sigma", sigma), amplification=bool(amplification), before=(), **question
    )
    return _cost(parts, mechanism, adjacency, method)[0]


def delta(
    mechanism: Mechanism | Shifts,
    *,
    sigma: float,
    rounds: int,
    epsilon: float,
    adjacency: Adjacency = "replace-one",
    method: Method = "pld",
) -> float:
    """The delta at which `epsilon` holds; amplification is not in it."""
    return _released(mechanism)._release.delta_at(
        sigma=_real("sigma", sigma),
        rounds=_whole("rounds", rounds),
        epsilon=_real("epsilon", epsilon),
        adjacency=_word("adjacency", adjacency),
        method=_word("method", method),
        before=(),
    )


def calibrate(
    mechanism: Mechanism | Shifts,
    *,
    epsilon: float,
    rounds: int,
    delta: float,
    adjacency: Adjacency = "replace-one",
    method: Method = "pld",
    amplification: bool = True,
) -> Calibration:
    """The smallest noise whose cost is at most `epsilon`, to six digits, rounded up.

    >>> import soteriafl as sf
    >>> mechanism = sf.Mechanism(records=3000, clip=0.5, rand_k=0.05)
    >>> found = sf.calibrate(mechanism, epsilon=1, rounds=100, delta=1e-5)
    >>> found.cost.amplified, 0.999 < float(found.cost) <= 1
    (True, True)
    """
    question = _question(rounds, delta, adjacency, method)
    released = _released(mechanism)
    parts = released._release.calibrate(
        epsilon=_real("epsilon", epsilon), amplification=bool(amplification), before=(), **question
    )
    cost, sigma = _cost(parts, released, adjacency, method)
    return Calibration(sigma, released.noise_multiplier(sigma), cost)


def spent(
    mechanism: Mechanism | Shifts,
    *,
    sigma: float,
    rounds: int,
    delta: float,
    adjacency: Adjacency = "replace-one",
    method: Method = "pld",
    amplification: bool = True,
    checkpoints: int = 64,
) -> NDArray[np.float64]:
    """The epsilon after 0, 1, ... and `rounds` rounds: an array of `rounds + 1` numbers.

    It is computed at about `checkpoints` of them; in between stands the next computed one, which is
    never too low.

    >>> import soteriafl as sf
    >>> curve = sf.spent(sf.Mechanism(records=1000), sigma=0.05, rounds=20, delta=1e-5)
    >>> len(curve), float(curve[0]), bool((curve[1:] > curve[:-1]).all())
    (21, 0.0, True)
    """
    return _released(mechanism)._release.spent(
        sigma=_real("sigma", sigma),
        amplification=bool(amplification),
        checkpoints=_whole("checkpoints", checkpoints),
        before=(),
        **_question(rounds, delta, adjacency, method),
    )


@dataclass(frozen=True)
class Event:
    """Rounds of one mechanism with one noise."""

    mechanism: Mechanism | Shifts
    sigma: float
    rounds: int


class Accountant:
    """Several different releases of the same records.

    Without a budget, releases count as fixed in advance, and the cost is that of all of them
    together by loss distributions. Whoever looks at what was released before choosing the next
    release, or whether there is one, needs a *filter*: a bound by Rényi divergences at a few fixed
    orders, which holds however releases are chosen. It is used with `adaptive=True`, and wherever
    there is a budget unless `adaptive=False` says that all was fixed in advance.

    Parameters
    ----------
    adjacency
        "replace-one" or "zero-out", for all releases.
    budget
        The largest epsilon and its delta: :meth:`compose` refuses what exceeds it.
    adaptive
        Whether releases may have been chosen by looking at earlier ones.

    Examples
    --------
    >>> import soteriafl as sf
    >>> accountant = sf.Accountant(budget=(2.0, 1e-5))
    >>> mechanism = sf.Mechanism(estimator="sgd", records=6000, batch=128)
    >>> _ = accountant.compose(mechanism, sigma=0.03, rounds=150)
    >>> accountant.get_epsilon(1e-5) < 1
    True
    >>> accountant.compose(mechanism, sigma=0.01, rounds=150)
    Traceback (most recent call last):
        ...
    soteriafl.errors.BudgetExceeded: with this release epsilon would be 2.64 at delta 1e-05, above \
the budget of 2; nothing was spent
    >>> len(accountant.events)
    1
    """

    def __init__(
        self,
        *,
        adjacency: Adjacency = "replace-one",
        budget: tuple[float, float] | None = None,
        adaptive: bool | None = None,
    ) -> None:
        self._adjacency: Adjacency = adjacency
        self._budget = None
        if budget is not None:
            try:
                limit, at = budget
            except (TypeError, ValueError):
                raise AccountError("`budget` must be a pair of epsilon and delta") from None
            limit, at = _real("budget", limit), _real("budget", at)
            if not limit > 0:
                raise AccountError(f"`budget`: epsilon must be above 0, found {limit!r}")
            self._budget = (limit, at)
        self._adaptive = self._budget is not None if adaptive is None else bool(adaptive)
        self._events: list[Event] = []
        # Words and delta are checked at once, not at the first question.
        native.filter_epsilon(
            (),
            delta=self._budget[1] if self._budget else 0.5,
            adjacency=_word("adjacency", adjacency),
        )

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours."""
        return self._adjacency

    @property
    def budget(self) -> tuple[float, float] | None:
        """The largest epsilon, and at which delta."""
        return self._budget

    @property
    def adaptive(self) -> bool:
        """Whether releases may have been chosen by looking at earlier ones."""
        return self._adaptive

    @property
    def records_per_person(self) -> int | None:
        """Of how many records of one person the cost of everything speaks: the fewest that any
        release does. None before there is one."""
        return min((event.mechanism.records_per_person for event in self._events), default=None)

    @property
    def events(self) -> tuple[Event, ...]:
        """What was released, in order; equal neighbours are one event."""
        return tuple(self._events)

    def compose(self, mechanism: Mechanism | Shifts, *, sigma: float, rounds: int = 1) -> Self:
        """Adds `rounds` rounds; with a budget, refuses *before* they are made if it is exceeded.

        Raises
        ------
        BudgetExceeded
            The cost would exceed the budget. Nothing was added.
        """
        event = Event(_released(mechanism), _real("sigma", sigma), _whole("rounds", rounds))
        events = list(self._events)
        last = events[-1] if events else None
        if last and (last.mechanism, last.sigma) == (event.mechanism, event.sigma):
            events[-1] = dataclasses.replace(last, rounds=last.rounds + event.rounds)
        else:
            events.append(event)
        limit, at = self._budget if self._budget else (None, 0.5)
        # Asked in any case: what cannot be accounted is refused now.
        cost = self._epsilon(events, at)
        if limit is not None and not cost <= limit:
            raise BudgetExceeded(
                f"with this release epsilon would be {_rounded_up(cost, 3)} at delta {at:g}, "
                f"above the budget of {limit:g}; nothing was spent"
            )
        self._events = events
        return self

    def get_epsilon(self, delta: float) -> float:
        """What everything so far costs at this delta, for :attr:`records_per_person`."""
        return self._epsilon(self._events, _real("delta", delta))

    def get_delta(self, epsilon: float) -> float:
        """The delta at which this epsilon holds for everything so far.

        A filter has one delta, fixed beforehand; so this is for releases fixed in advance only.
        """
        if self._adaptive:
            raise AccountError(
                "delta at a given epsilon is known for releases fixed in advance only: "
                "Accountant(adaptive=False)"
            )
        epsilon = _real("epsilon", epsilon)
        if not self._events:
            return 0.0
        *before, last = self._events
        return last.mechanism._release.delta_at(
            sigma=last.sigma,
            rounds=last.rounds,
            epsilon=epsilon,
            adjacency=self._adjacency,
            method="pld",
            before=_natives(before),
        )

    def calibrate(
        self, mechanism: Mechanism | Shifts, *, epsilon: float, delta: float, rounds: int
    ) -> Calibration:
        """The smallest noise for `rounds` further rounds within `epsilon` for everything.

        For releases fixed in advance. Nothing is added.
        """
        if self._adaptive:
            raise AccountError(
                "noise is calibrated among releases fixed in advance only: "
                "Accountant(adaptive=False)"
            )
        released = _released(mechanism)
        parts = released._release.calibrate(
            epsilon=_real("epsilon", epsilon),
            amplification=True,
            before=_natives(self._events),
            **_question(rounds, delta, self._adjacency, "pld"),
        )
        cost, sigma = _cost(parts, released, self._adjacency, "pld")
        cost = dataclasses.replace(
            cost, records_per_person=min(cost.records_per_person, self.records_per_person or 1000)
        )
        return Calibration(sigma, released.noise_multiplier(sigma), cost)

    def _epsilon(self, events: Sequence[Event], delta: float) -> float:
        filtered = native.filter_epsilon(_natives(events), delta=delta, adjacency=self._adjacency)
        if not events:
            return 0.0
        if self._adaptive:
            return filtered
        *before, last = events
        parts = last.mechanism._release.cost(
            sigma=last.sigma,
            amplification=True,
            before=_natives(before),
            **_question(last.rounds, delta, self._adjacency, "pld"),
        )
        # A filter holds for releases fixed in advance, too, and counts what random-k hides of each.
        return min(parts[0], filtered)

    def to_dp_event(self) -> Any:
        """The same as an event of Google's `dp_accounting`, which must be installed.

        Ask it under the relation ADD_OR_REMOVE_ONE for "zero-out" and REPLACE_ONE for
        "replace-one". It knows no amplification by random coordinates and no filter.
        """
        from dp_accounting import dp_event as dp

        return dp.ComposedDpEvent([_dp_event(dp, event) for event in self._events])

    def to_json(self) -> str:
        """Everything, as text: see :meth:`from_json`."""
        return json.dumps(
            {
                "adjacency": self._adjacency,
                "budget": self._budget,
                "adaptive": self._adaptive,
                "events": [
                    {
                        "kind": "mechanism" if isinstance(e.mechanism, Mechanism) else "shifts",
                        **e.mechanism._parameters(),
                        "sigma": e.sigma,
                        "rounds": e.rounds,
                    }
                    for e in self._events
                ],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What :meth:`to_json` wrote. The budget is kept, but not asked again."""
        try:
            found = json.loads(text)
            budget = tuple(found["budget"]) if found["budget"] is not None else None
            accountant = cls(
                adjacency=found["adjacency"],
                budget=budget,
                adaptive=found["adaptive"],
            )
            for entry in found["events"]:
                kinds: dict[str, type[Mechanism] | type[Shifts]] = {
                    "mechanism": Mechanism,
                    "shifts": Shifts,
                }
                kind = kinds[entry.pop("kind")]
                sigma, rounds = _real("sigma", entry.pop("sigma")), entry.pop("rounds")
                event = Event(kind(**entry), sigma, _whole("rounds", rounds))
                accountant._events.append(event)
        except AccountError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AccountError(f"this is no accountant's text: {error}") from None
        return accountant

    def __repr__(self) -> str:
        parts = [f"adjacency={self._adjacency!r}"]
        if self._budget is not None:
            parts.append(f"budget={self._budget!r}")
        return f"Accountant({', '.join(parts)}): {len(self._events)} events"


def _released(mechanism: Mechanism | Shifts) -> Mechanism | Shifts:
    if not isinstance(mechanism, (Mechanism, Shifts)):
        kind = type(mechanism).__name__
        raise AccountError(f"`mechanism` must be a Mechanism or Shifts, found {kind}")
    return mechanism


def _natives(events: Sequence[Event]) -> list[tuple[native.Release, float, int]]:
    return [(event.mechanism._release, event.sigma, event.rounds) for event in events]


def _question(rounds: int, delta: float, adjacency: str, method: str) -> dict[str, Any]:
    return {
        "rounds": _whole("rounds", rounds),
        "delta": _real("delta", delta),
        "adjacency": _word("adjacency", adjacency),
        "method": _word("method", method),
    }


def _cost(
    parts: tuple[float, float, float, bool, str, float],
    mechanism: Mechanism | Shifts,
    adjacency: Adjacency,
    method: Method,
) -> tuple[Cost, float]:
    epsilon, delta, sigma, amplified, words, unamplified = parts
    person = mechanism.records_per_person
    cost = Cost(epsilon, delta, adjacency, method, unamplified, amplified, words, person)
    return cost, sigma


def _persons(cost: Cost) -> str:
    many = cost.records_per_person
    return f", for persons with up to {many} records" if many > 1 else ""


def _rounded_up(value: float, digits: int = 4) -> str:
    """Significant digits, never below the value."""
    if not np.isfinite(value) or value <= 0:
        return f"{value:g}"
    unit = 10.0 ** (np.floor(np.log10(value)) - digits + 1)
    return f"{np.ceil(value / unit - 1e-9) * unit:.{digits}g}"


def _dp_event(dp: Any, event: Event) -> Any:
    parts = [(shift, share) for shift, share in event.mechanism.shifts if share > 0]
    (size, rate) = parts[-1]
    if len(parts) == 1:
        one = dp.GaussianDpEvent(event.sigma / size)
    elif len(parts) == 2 and parts[0][0] == 0:
        one = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(event.sigma / size))
    else:
        sizes, shares = zip(*parts, strict=True)
        one = dp.MixtureOfGaussiansDpEvent(event.sigma, list(sizes), list(shares))
    return dp.SelfComposedDpEvent(one, event.rounds)
