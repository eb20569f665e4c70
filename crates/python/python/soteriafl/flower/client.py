"""The client app: answers the server's questions with a :class:`Node` whose memory is a directory.

Flower starts a new process for every message of a deployment and keeps nothing of its own when a
SuperNode starts again, so shift, estimator, ledger and unsent messages live in the node's state
directory, durable before a byte leaves.

Everything that limits what the records may cost comes from the node's own configuration
(`--node-config`), never from the server's `run_config`. An exception, whatever raised it, is told
to the node's log alone: Flower would send its text to the server, and it may be about a record.
Whether a module fails may be about a record, too: after the first failure the state answers
nothing more until its owner has removed the file ``stopped`` in it.
"""

from __future__ import annotations

import difflib
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from .. import _soteriafl as native
from ..deployment import holding_of, terms_of
from ..errors import (
    BudgetExceeded,
    ConfigError,
    DataError,
    MessageError,
    RunRefused,
    SoteriaError,
)
from .envelope import FOREIGN, REFUSED, UNABLE, pack, trouble, unpack

__all__ = ["Problem", "Simulated", "answer", "client_app"]

#: A child of Flower's logger, which shows it where Flower shows its own.
_log = logging.getLogger("flwr.soteriafl")

#: Gives the node's records: see :func:`client_app`.
Load = Callable[[Context], Any]


@dataclass(frozen=True)
class Problem:
    """Records behind a PyTorch module, for a run that :func:`soteriafl.torch.describe` describes.

    The parameters of the module do not matter, they are the run's; its layers must be the same at
    all clients.
    """

    module: Any
    #: Of the outputs and the targets of records, as PyTorch's losses are.
    loss: Any
    #: A pair ``(X, y)`` of tensors, or a data set of such pairs.
    dataset: Any
    gradients: Literal["auto", "hooks", "vmap", "exact"] = "auto"
    chunk: int = 32


@dataclass(frozen=True)
class Simulated:
    """What a node of Flower's simulation engine is given, which has no configuration of its own.

    It is the app's word, so it is used only where the owner of the machine has said that this is a
    simulation, by the environment variable ``SOTERIA_SIMULATION``, and where the node's
    configuration says nothing but ``partition-id`` and ``num-partitions``. Every node keeps its
    state in a directory of its own below `state`, a whole path.
    """

    state: str | os.PathLike[str]
    #: As in the node's configuration; `None` where only the run's own epsilon is a limit.
    max_epsilon: float | None = None
    #: Of a test run, whose noise everybody knows: it repeats `soteria train` with this seed.
    test_seed: int | None = None
    #: The column that names persons, if one does.
    person: str | None = None


def client_app(load: Load | None = None, *, simulated: Simulated | None = None) -> ClientApp:
    """A client app that trains on this node's records, within this node's limits.

    `load(context)` gives the records: the name of a source as in `soteria join --data`,
    ``"csv:/data/patients.csv"`` or a part of one, ``"a9a:0/10"``; a pair ``(X, y)`` of arrays; or a
    :class:`Problem`, for a PyTorch module. The node's configuration can name a source instead, by
    ``soteria-data``.

    The node's configuration holds ``soteria-state`` (a directory that outlives every process),
    ``max-epsilon`` (a number, or "none": the run's own), and, if wanted, the options of
    `soteria join`: ``max-delta``, ``max-read``, ``adjacency``, ``records-per-person``, ``person``,
    ``disjoint-data-sets``, ``accept-unknown-cost``, ``shape``, ``test-seed`` (with
    ``accept-unknown-cost=true``, for it hides nothing), ``data-dir``. Which client of the run this
    is, is Flower's ``partition-id``, or ``soteria-client``.

    Other functions can be added to the app, such as ``@app.evaluate()``; whatever they send is
    theirs, and no limit covers it.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, load, simulated=simulated)

    return app


def answer(
    message: Message,
    context: Context,
    load: Load | None = None,
    *,
    simulated: Simulated | None = None,
) -> Message:
    """The reply to a question, for a train function of one's own: see :func:`client_app`."""
    try:
        question = unpack(message)
        node = _node(context, load, simulated)
        reply = node.answer(question, _show)
    except MessageError as error:
        _log.error("soteriafl: not a question for this node: %s", error)
        return Message(trouble(FOREIGN), reply_to=message)
    except (RunRefused, BudgetExceeded, ConfigError, DataError) as error:
        _log.error("soteriafl: this node does not take part: %s", error)
        return Message(trouble(REFUSED), reply_to=message)
    except SoteriaError as error:
        _log.error("soteriafl: no answer: %s", error)
        return Message(trouble(UNABLE), reply_to=message)
    except Exception as error:
        _log.error("soteriafl: no answer: %s", error, exc_info=error)
        return Message(trouble(UNABLE), reply_to=message)
    return Message(pack(reply), reply_to=message)


def _show(lines: list[str], warnings: list[str]) -> None:
    for line in lines:
        _log.info("soteriafl: %s", line)
    for warning in warnings:
        _log.warning("soteriafl: %s", warning)


def _node(context: Context, load: Load | None, simulated: Simulated | None) -> native.Node:
    own = context.node_config
    state = own.get("soteria-state")
    if simulated is not None and _is_simulation(own):
        if not os.path.isabs(simulated.state):
            raise RunRefused(
                f"`state` of Simulated must be a whole path, found {os.fspath(simulated.state)!r}"
            )
        terms = _terms(own, simulated.max_epsilon, simulated.test_seed, simulated.person)
        state = Path(simulated.state) / f"client-{terms['client']}"
    elif not isinstance(state, str) or not os.path.isabs(state):
        raise RunRefused(
            "this node's configuration must name a directory for its state by its whole path, "
            "which outlives every process: --node-config 'soteria-state=\"/var/lib/soteria\"'"
            + ("" if state is None else f", found {state!r}")
        )
    else:
        terms = _terms(own, _limit(own), _whole(own, "test-seed", 0), _word(own, "person"))
    return native.Node(os.fspath(state), _holding(context, load), terms, False)


def _is_simulation(own: Mapping[str, Any]) -> bool:
    """Whether the owner of this machine lets an app say what a simulated node is given."""
    return bool(os.environ.get("SOTERIA_SIMULATION")) and set(own) <= _FLOWERS


def _holding(context: Context, load: Load | None) -> native.Holding:
    own = context.node_config
    data: Any = None
    if "soteria-data" in own:
        data = _word(own, "soteria-data")
    elif load is not None:
        data = load(context)
    if isinstance(data, str):
        return holding_of(data=data, data_dir=_word(own, "data-dir"))
    if isinstance(data, Problem):
        return holding_of(
            module=data.module,
            loss=data.loss,
            dataset=data.dataset,
            gradients=data.gradients,
            chunk=data.chunk,
        )
    if isinstance(data, tuple) and len(data) == 2:
        return holding_of(X=data[0], y=data[1])
    raise ConfigError(
        "`load` must return the name of a source, a pair (X, y) of arrays or a Problem, or the "
        f"node's configuration must name a source by soteria-data; found {type(data).__name__}"
    )


def _limit(own: Mapping[str, Any]) -> float | None:
    given = own.get("max-epsilon")
    if given == "none":
        return None
    if given is None:
        raise RunRefused(
            "this node's configuration sets no limit: --node-config 'max-epsilon=2.0', or "
            'max-epsilon="none" where the run\'s own epsilon is limit enough'
        )
    return _number(own, "max-epsilon")


#: What Flower's simulation engine says of a node.
_FLOWERS = {"partition-id", "num-partitions"}

_KNOWN = {
    "accept-unknown-cost",
    "adjacency",
    "data-dir",
    "disjoint-data-sets",
    "max-delta",
    "max-epsilon",
    "max-read",
    "person",
    "records-per-person",
    "shape",
    "soteria-client",
    "soteria-data",
    "soteria-state",
    "test-seed",
}


def _is_misspelt(key: str) -> bool:
    """Whether a key that means nothing may be meant for us: dropped, a limit would be lost."""
    plain = key.lower().replace("_", "-")
    ours = plain.startswith("max-") or "soteria" in plain or "epsilon" in plain
    return ours or bool(difflib.get_close_matches(plain, _KNOWN, 1, 0.8))


def _terms(
    own: Mapping[str, Any],
    max_epsilon: float | None,
    test_seed: int | None,
    person: str | None,
) -> dict[str, Any]:
    """What the node's configuration says, with every value checked by name."""
    for key in own:
        if key not in _KNOWN | _FLOWERS and _is_misspelt(key):
            known = ", ".join(sorted(_KNOWN))
            raise RunRefused(f"this node's configuration has {key!r}, which means nothing: {known}")
    adjacency = own.get("adjacency")
    if adjacency not in (None, "replace-one"):
        raise _unfit("adjacency", '"replace-one"', adjacency)
    accepts = _truth(own, "accept-unknown-cost")
    if "test-seed" in own and not accepts:
        raise RunRefused(
            "test-seed in this node's configuration makes a test run, whose noise everybody knows "
            "and which costs nobody can say how much: accept_unknown_cost is needed beside it "
            "(accept-unknown-cost=true)"
        )
    which = "soteria-client" if "soteria-client" in own else "partition-id"
    if which not in own:
        raise RunRefused(
            "this node's configuration does not say which client it is: --node-config "
            "'partition-id=0'"
        )
    persons = _whole(own, "records-per-person", 1)
    try:
        return terms_of(
            client=_whole(own, which, 0),
            max_epsilon=max_epsilon,
            max_delta=_number(own, "max-delta"),
            max_read=_number(own, "max-read"),
            adjacency=adjacency,
            accept_unknown_cost=accepts,
            records_per_person=1 if persons is None else persons,
            person=person,
            disjoint_data_sets=_truth(own, "disjoint-data-sets"),
            shape=_word(own, "shape"),
            test_seed=test_seed,
        )
    except ConfigError as error:
        said = str(error).replace("_", "-")
        raise RunRefused(f"this node's configuration: {said}") from error


def _unfit(key: str, wanted: str, found: object) -> RunRefused:
    return RunRefused(f"`{key}` of the node's configuration must be {wanted}, found {found!r}")


def _whole(own: Mapping[str, Any], key: str, least: int) -> int | None:
    value = own.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**32:
        raise _unfit(key, f"a whole number of at least {least}", value)
    return value


def _number(own: Mapping[str, Any], key: str) -> float | None:
    value = own.get(key)
    if value is None:
        return None
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not math.isfinite(value) or value < 0:
        raise _unfit(key, "a number of at least 0", value)
    return float(value)


def _word(own: Mapping[str, Any], key: str) -> str | None:
    value = own.get(key)
    if value is not None and not isinstance(value, str):
        raise _unfit(key, "a word", value)
    return value


def _truth(own: Mapping[str, Any], key: str) -> bool:
    value = own.get(key, False)
    if not isinstance(value, bool):
        raise _unfit(key, "true or false", value)
    return value
