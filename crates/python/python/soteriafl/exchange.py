"""The two ends of a networked run for a transport of one's own: bytes in, bytes out.

A :class:`Server` has questions, a :class:`Client` answers them from its own records; whoever
carries the bytes can be anything that says truly from whom they come, and keeps them from others'
eyes. They are the program's own two ends, as `soteria serve`, `soteria join` and `soteriafl.flower`
are, with the same ledger, the same limits and the same messages.

Both keep everything that matters in a directory, durable before a byte leaves: either may end at
any instant and be made again with the same arguments. Questions and answers may be lost, late,
repeated or out of order; no message is made twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _soteriafl as native
from ._arguments import whole
from .deployment import holding_of, terms_of
from .errors import ConfigError
from .results import Run, load
from .simulation import given_settings

__all__ = ["Client", "Heard", "Server"]


class Client:
    """One client, which answers a server's questions about its own records.

    The records and terms are those of :func:`join`: `X` and `y`, or `data`, or `module`, `loss` and
    `dataset`. `max_epsilon` must be said: a number, or None where the run's own epsilon is limit
    enough. `state` is a directory of this client alone, which outlives the process. `told` is given
    lines of text about what taking part costs, before the first message exists. `keep_open` keeps
    the state's files open between questions, which is faster: no other process may use them then.

    See :class:`Server` for an example.
    """

    def __init__(
        self,
        *,
        client: int,
        state: str | os.PathLike[str],
        max_epsilon: float | None,
        X: Any = None,
        y: Any = None,
        data: str | None = None,
        module: Any = None,
        loss: Any = None,
        dataset: Any = None,
        gradients: Literal["auto", "hooks", "vmap", "exact"] = "auto",
        chunk: int = 32,
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
        told: Callable[[list[str]], object] | None = None,
        keep_open: bool = False,
    ) -> None:
        if told is not None and not callable(told):
            raise ConfigError(f"`told` must be a function, found {told!r}")
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
        heard = told if told is not None else _unheard
        self._shown = lambda lines, warnings: heard(lines + warnings)
        self._node = native.Node(os.fspath(state), holding, terms, bool(keep_open))

    def answer(self, question: bytes) -> bytes:
        """The answer to a question of the server.

        Raises
        ------
        BudgetExceeded
            The run costs more than the limit. Nothing was spent.
        RunRefused
            This client does not take part.
        MessageError
            This is no question, or one that does not fit what was answered before.
        DataError
            The records do not fit the run. An exception of a module or a loss comes out as it was
            raised; no message of that round exists then, and the state answers nothing more until
            its owner has removed the file `stopped` in it.
        """
        return self._node.answer(_bytes("question", question), self._shown)


class Heard(NamedTuple):
    """What an answer was: "joined", "behind" (it goes on where it was), "message", "done" (it knows
    the end) or "refused"; and of which client."""

    kind: str
    client: int | None


class Server:
    """Coordinates a run over a transport of one's own. It has no records but its own test set.

    `config` is as in :func:`simulate`; `state` is the directory in which the run lives, `out` where
    the files of `soteria train` are left, and `overwrite` whether those of another run may be
    replaced there. With `test_seed`, which clients must be given, too, all randomness follows from
    a number: a test that claims nothing, and leaves the bytes of `soteria train --seed`.

    Peers are numbers of the transport: whoever answers first as a client is that client until it is
    forgotten. Who a peer is must be known by the transport: see `docs/operating.md`.

    >>> import tempfile, numpy as np, soteriafl as sf
    >>> X = np.linspace(-1, 1, 120).reshape(40, 3).astype(np.float32)
    >>> y = (X[:, 0] > 0).astype(int)
    >>> place = tempfile.mkdtemp()
    >>> server = sf.Server(
    ...     {"data.source": "clients", "data.clients": 2, "deployment.records": 20,
    ...      "deployment.features": ["a", "b", "c"],
    ...      "deployment.labels": ["0", "1"],
    ...      "algorithm.preset": "soteriafl-gd", "algorithm.rounds": 3,
    ...      "privacy.epsilon": 1.0, "privacy.delta": 1e-3, "privacy.clip": 0.5},
    ...     state=f"{place}/server", out=f"{place}/run")
    >>> hospitals = [
    ...     sf.Client(client=i, X=X[i::2], y=y[i::2], state=f"{place}/{i}", max_epsilon=2)
    ...     for i in range(2)]
    >>> while not server.acknowledged:
    ...     for peer, hospital in enumerate(hospitals):
    ...         question = server.question(peer)
    ...         if question is not None:
    ...             _ = server.hear(peer, hospital.answer(question))
    ...     _ = server.tick()
    >>> server.finish().privacy.epsilon <= 1
    True
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        state: str | os.PathLike[str],
        out: str | os.PathLike[str],
        overwrite: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        test_seed: int | None = None,
    ) -> None:
        if test_seed is not None:
            test_seed = whole("test_seed", test_seed, least=0, error=ConfigError)
        file, settings = given_settings(config, "Server(config=...)")
        self._out = os.fspath(out)
        self._began = time.monotonic()
        self._server = native.Server(
            file=file,
            settings=settings,
            state=os.fspath(state),
            out=self._out,
            overwrite=bool(overwrite),
            data_dir=None if data_dir is None else os.fspath(data_dir),
            test_seed=test_seed,
        )

    def question(self, peer: int) -> bytes | None:
        """What to ask a peer now; None if it is to wait, or knows the end.

        Asked again before there is an answer, it is the same question.
        """
        client = self._server.client_of(_peer(peer))
        missing = self._server.missing()
        if client is None:
            return self._server.introduce() if missing else None
        return self._server.ask(client) if client in missing else None

    def hear(self, peer: int, answer: bytes) -> Heard:
        """Takes a peer's answer.

        Raises
        ------
        MessageError
            This is no answer, or not one of this peer. The run is as it was.
        """
        passed = time.monotonic() - self._began
        return Heard(*self._server.hear(_peer(peer), _bytes("answer", answer), passed))

    def tick(self) -> bool:
        """Closes the open round if all have answered, or enough at its deadline; says whether it
        did. To be called now and then."""
        return self._server.tick(time.monotonic() - self._began)

    def forget(self, peer: int) -> None:
        """A peer is gone: another one may answer as its client."""
        self._server.forget(_peer(peer))

    def client_of(self, peer: int) -> int | None:
        """Which client answers from there, if any has."""
        return self._server.client_of(_peer(peer))

    def finish(self) -> Run:
        """Writes the files of a run whose rounds are over, and reads them."""
        if not self.finished:
            raise ConfigError(f"round {self.round} of {self.rounds} is open: nothing to finish yet")
        self._server.finish()
        return load(self._out)

    @property
    def model(self) -> dict[str, NDArray[np.float32]]:
        """The tensors of the open round's model by name; none before the run has begun."""
        return {name: values.reshape(shape) for name, shape, values in self._server.tensors()}

    @property
    def missing(self) -> list[int]:
        """The clients whose answer is waited for."""
        return self._server.missing()

    @property
    def round(self) -> int:
        """The open round; the number of rounds at the end."""
        return self._server.round

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self._server.rounds

    @property
    def clients(self) -> int:
        """How many clients the run has."""
        return self._server.clients

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self._server.finished

    @property
    def acknowledged(self) -> bool:
        """Whether all clients know that."""
        return self._server.acknowledged

    @property
    def warnings(self) -> list[str]:
        """What the owner of the configuration should be warned of."""
        return self._server.warnings

    def __repr__(self) -> str:
        return f"Server({self._server.about})"


def _unheard(lines: list[str]) -> None:
    pass


def _bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ConfigError(f"`{name}` must be bytes, found {type(value).__name__}")
    return bytes(value)


def _peer(peer: Any) -> int:
    number = whole("peer", peer, least=0, error=ConfigError)
    if number >= 2**64:
        raise ConfigError("`peer` must be below 2**64")
    return number
