"""Networked clients: :func:`join` is the program's `soteria join` over what Python holds."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import _records
from . import _soteriafl as native
from ._arguments import real, whole
from .errors import ConfigError, DataError, RunWarning

__all__ = ["JoinCost", "Joined", "join"]


@dataclass(frozen=True)
class JoinCost:
    """What taking part in a run costs, before anything has left."""

    #: The run's name: the digest of its description.
    run: str
    #: This client's records.
    records: int
    #: Messages of the whole run, and how many of them were made already.
    messages: int
    messages_made: int
    #: The whole run's at its own `delta`; `None` where nobody can say.
    epsilon: float | None
    delta: float
    adjacency: str
    records_per_person: int
    claim: str
    #: What the other runs of this state have spent, and what all have with this one, at the delta
    #: at which the limit is judged.
    spent_before: float | None
    total: float | None
    total_delta: float
    #: The limit.
    max_epsilon: float | None


@dataclass(frozen=True)
class Joined:
    """What the ledger says of a run after its end."""

    run: str
    client: int
    #: Messages that were made, all of them accounted for.
    messages: int
    records: int
    epsilon: float | None
    delta: float
    adjacency: str
    records_per_person: int
    claim: str
    finished: bool


def join(
    server: str,
    *,
    client: int,
    state: str | os.PathLike[str],
    X: Any = None,
    y: Any = None,
    data: str | None = None,
    module: Any = None,
    loss: Any = None,
    dataset: Any = None,
    gradients: Literal["auto", "hooks", "vmap", "exact"] = "auto",
    chunk: int = 32,
    tls: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    max_epsilon: float | None = None,
    max_delta: float | None = None,
    max_read: float | None = None,
    adjacency: Literal["replace-one"] | None = None,
    records_per_person: int = 1,
    person: str | None = None,
    disjoint_data_sets: bool = False,
    accept_unknown_cost: bool = False,
    shape: str | None = None,
    test_seed: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    consent: Callable[[JoinCost], bool] | None = None,
    progress: bool | Callable[[int, int], bool | None] = True,
) -> Joined | None:
    """Takes part in the run of a server (`soteria serve`) as one client, to its end.

    What `soteria join` does, with the same ledger and limits and the same bytes: the cost of the
    whole run is computed here, from these records alone, before anything leaves; every message is
    stored before it is sent; killed at any moment, it goes on when called again with the same
    `state`. The ledger in `state` counts all runs that it has joined (`soteria ledger`).

    Parameters
    ----------
    server
        Its address, such as ``https://127.0.0.1:7443``.
    client
        Which client this is, from 0.
    state
        A directory of this client alone: its ledger, and what it needs to go on.
    X, y
        The records: what :func:`simulate` takes, as they are. How they are scaled is in the run's
        description. Or, as in `soteria join`, the name of a source:
    data
        such as ``"csv:records.csv"``.
    module, loss, dataset
        A PyTorch module, the loss of its outputs, and its records, ``(X, y)`` or a data set of such
        pairs: for a run that :func:`soteriafl.torch.describe` has described. The parameters of the
        module do not matter, they are the run's; its layers, and parameters that are frozen, must
        be the same at all clients. `gradients` and `chunk` as in :class:`soteriafl.torch.PerRecord`
        (a run with secure noise computes records one by one).
    tls, insecure
        The directory with ``ca.pem`` and this client's certificate and key, or plain text on one
        machine.
    max_epsilon
        Refuse if all that these records have spent, this run included, exceeds it, or if nobody can
        say. `max_delta`, `max_read`, `adjacency`, `records_per_person`, `disjoint_data_sets`,
        `accept_unknown_cost` and `shape` say how that is judged, as the options of `soteria join`.
    person
        The column of a table that names persons. A run that takes a column for that is refused
        unless it is this one: the server is told how many different names it holds.
    test_seed
        Derives all randomness from a number, in a test run on this machine that claims nothing.
    consent
        Is asked before anything leaves; the run is refused if it returns False. Without a limit and
        without it, a warning says what the run costs.
    progress
        True shows a bar (by tqdm where that is installed). A function is called with the round and
        the number of rounds, a few times a second; False ends the client, which can go on later.

    Returns
    -------
    What the ledger says at the end; None if `progress` has ended it.

    Raises
    ------
    BudgetExceeded
        The run costs more than the limit. Nothing was sent or spent.
    RunRefused
        This client does not take part, or the server does not take it.
    DataError
        The records do not fit the run. An exception of the module or the loss comes out as it was
        raised; no message of that round exists then, and, since it may be about a record, this
        state goes on only once the file `stopped` in it has been removed.
    """
    terms = terms_of(
        client=client,
        test_seed=test_seed,
        max_epsilon=max_epsilon,
        max_delta=max_delta,
        max_read=max_read,
        adjacency=adjacency,
        records_per_person=records_per_person,
        person=person,
        disjoint_data_sets=disjoint_data_sets,
        accept_unknown_cost=accept_unknown_cost,
        shape=shape,
    )
    if (tls is None) != bool(insecure):
        raise ConfigError("give `tls`, a directory of keys, or `insecure=True`, and not both")
    holding = holding_of(
        X=X,
        y=y,
        data=data,
        data_dir=data_dir,
        module=module,
        loss=loss,
        dataset=dataset,
        gradients=gradients,
        chunk=chunk,
    )
    companion = _Companion(consent, progress, silent=max_epsilon is not None or consent is not None)
    try:
        answer = native.join(
            server=server,
            tls=None if tls is None else os.fspath(tls),
            state=os.fspath(state),
            holding=holding,
            terms=terms,
            companion=companion,
        )
    except _Ended:
        return None
    finally:
        companion.close()
    return None if answer is None else Joined(**answer)


def holding_of(
    *,
    X: Any = None,
    y: Any = None,
    data: str | None = None,
    data_dir: Any = None,
    module: Any = None,
    loss: Any = None,
    dataset: Any = None,
    gradients: Any = "auto",
    chunk: int = 32,
) -> native.Holding:
    """The records, given in one of three ways."""
    given = [
        name for name, value in (("X", X), ("data", data), ("module", module)) if value is not None
    ]
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or "none of them"
        raise DataError(
            f"give the records once: X and y, data, or module, loss and dataset; found {found}"
        )
    for name, value, beside in (
        ("y", y, "X"),
        ("loss", loss, "module"),
        ("dataset", dataset, "module"),
    ):
        if (value is not None) != (beside in given):
            missing = (
                f"`{beside}` needs `{name}`"
                if beside in given
                else f"`{name}` goes with `{beside}`"
            )
            raise DataError(missing)
    if data is not None:
        if not isinstance(data, str):
            raise DataError(f"`data` must be the name of a source, found {data!r}")
        return native.Holding.source(data, None if data_dir is None else os.fspath(data_dir))
    if module is not None:
        from .torch.deployment import holding

        return holding(module, loss, dataset, gradients=gradients, chunk=chunk)
    X, y = _records.split(X, y)
    rows = _records.rows("X", X)
    labels = _records.labels("y", y, rows.count)
    rows.label("y", labels.written, labels.codes)
    return native.Holding.memory(rows)


def terms_of(**asked: Any) -> dict[str, Any]:
    """Terms, checked by name."""
    terms = dict(asked)
    terms["client"] = whole("client", asked["client"], least=0, error=ConfigError)
    if terms["client"] >= 2**32:
        raise ConfigError("`client` must be below 2**32")
    terms["records_per_person"] = whole(
        "records_per_person", asked["records_per_person"], error=ConfigError
    )
    if terms["records_per_person"] > 1000:
        raise ConfigError("`records_per_person` must be at most 1000")
    if asked["test_seed"] is not None:
        terms["test_seed"] = whole("test_seed", asked["test_seed"], least=0, error=ConfigError)
    for name, least, most, what in (
        ("max_epsilon", 0.0, float("inf"), "a number of at least 0"),
        ("max_delta", 1e-300, 1.0, "a number from 1e-300 to below 1"),
        ("max_read", 5e-324, float("inf"), "a number above 0"),
    ):
        if asked[name] is not None:
            terms[name] = real(name, asked[name], error=ConfigError)
            if not least <= terms[name] < most:
                raise ConfigError(f"`{name}` must be {what}, found {asked[name]!r}")
    if asked["max_read"] is not None and asked["max_epsilon"] is None:
        raise ConfigError("`max_read` goes with `max_epsilon`")
    if asked["adjacency"] not in (None, "replace-one"):
        raise ConfigError(f"`adjacency` must be replace-one, found {asked['adjacency']!r}")
    terms["replace_one"] = terms.pop("adjacency") is not None
    for name in ("disjoint_data_sets", "accept_unknown_cost"):
        if not isinstance(asked[name], bool):
            raise ConfigError(f"`{name}` must be True or False, found {asked[name]!r}")
    for name, what in (("shape", "a shape"), ("person", "a column")):
        if asked[name] is not None and not isinstance(asked[name], str):
            raise ConfigError(f"`{name}` must be the name of {what}, found {asked[name]!r}")
    return terms


class _Ended(Exception):
    """`progress` has ended the client."""


class _Companion:
    """What the native part tells while a client takes part."""

    def __init__(
        self,
        consent: Callable[[JoinCost], bool] | None,
        progress: bool | Callable[[int, int], bool | None],
        *,
        silent: bool,
    ) -> None:
        if consent is not None and not callable(consent):
            raise ConfigError(f"`consent` must be a function, found {consent!r}")
        self._consent, self._progress, self._silent = consent, progress, silent
        self._bar: Any = None
        self._began = self._said = time.monotonic()

    def agrees(self, cost: dict[str, Any], told: list[str]) -> bool:
        for text in told:
            if not (self._silent and text.startswith("no limit was given")):
                warnings.warn(text, RunWarning, stacklevel=3)
        return self._consent is None or bool(self._consent(JoinCost(**cost)))

    def says(self, event: str, text: str) -> None:
        if self._progress is True:
            print(text, file=sys.stderr)

    def reached(self, round: int, rounds: int) -> None:
        if callable(self._progress):
            if self._progress(round, rounds) is False:
                raise _Ended
        elif self._progress and time.monotonic() - self._began > 0.5:
            self._show(round, rounds)

    def _show(self, round: int, rounds: int) -> None:
        if self._bar is None:
            try:
                from tqdm import tqdm

                self._bar = tqdm(total=rounds, unit="round", leave=False)
            except ImportError:
                if time.monotonic() - self._said > 1 or round == rounds:
                    self._said = time.monotonic()
                    print(f"round {round} of {rounds}", file=sys.stderr)
                return
        self._bar.update(round - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
