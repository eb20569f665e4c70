"""The server's side: a strategy that asks nodes, closes rounds durably, and leaves a run directory.

What is asked and what is done with answers is the library's (:class:`Server`, the coordinator of
`soteria serve`); here is who is asked when. A node is asked again when its answer is lost or late,
and pauses, longer each time, after trouble. A node that refuses is not asked again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .. import _soteriafl as native
from ..errors import ConfigError, MessageError, RunRefused, SoteriaError
from ..results import Run, load
from ..simulation import given_settings
from .envelope import FOREIGN, REFUSED, pack, shown, unpack

__all__ = ["SoteriaStrategy"]

_log = logging.getLogger("flwr.soteriafl")

#: Sections of the configuration: other keys of a run_config are the app's own.
_SECTIONS = ("algorithm", "data", "deployment", "model", "privacy", "run")

#: The longest pause of a node that is in trouble, the longest between two looks for answers, and
#: the longest between two where looking itself takes long.
_LONGEST_PAUSE, _LONGEST_LOOK, _LONGEST_REST = 30.0, 0.25, 2.0

#: Seconds between two looks for nodes that came or went.
_NODES_EVERY = 2.0

#: A look for answers may take one part of the time, and so many parts are left to whoever answers.
_BETWEEN_LOOKS = 4.0

#: Questions in one request to the transport, which has limits of its own.
_AT_ONCE = 500


@dataclass
class _Peer:
    """A node, as far as this process knows it."""

    #: When it was asked what it has not answered yet.
    asked: float | None = None
    #: Answers heard from all nodes until then, and those on their way to which it came last.
    behind: int = 0
    #: Not asked before this time, after so many troubles in a row.
    pause: float = 0.0
    troubles: int = 0
    #: What it said last instead of an answer.
    said: str | None = None
    refused: bool = False


class SoteriaStrategy(Strategy):
    """Coordinates a run of SoteriaFL over Flower's nodes.

    Parameters
    ----------
    config
        The configuration, as :func:`soteriafl.simulate` takes it: keys and values, or a file. Keys
        of no section (``context.run_config`` may have some) are the app's own.
    state
        The directory in which the run lives. A server app that is started again with the same
        configuration and state goes on where the last one stopped.
    out
        The run's directory: the five files of `soteria train`, report included.
    overwrite
        Whether files of another run may be overwritten there.
    test_seed
        Of a test run, whose noise everybody knows: it claims nothing, and repeats
        `soteria train --seed`. Nodes must be given the same.
    nodes
        Which client each node may be, by node id; unless given, what nodes say, one number for a
        node and one node for a number.
    patience
        Seconds after which a node is asked again that has not answered; more, as long as answers
        come to what was asked before.
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
        nodes: Mapping[int, int] | None = None,
        patience: float = 60.0,
    ) -> None:
        if isinstance(config, Mapping):
            config = {
                key: value
                for key, value in config.items()
                if str(key).partition(".")[0] in _SECTIONS
            }
        file, settings = given_settings(config, "SoteriaStrategy(config=...)")
        self._out = os.fspath(out)
        self._server = native.Server(
            file=file,
            settings=settings,
            state=os.fspath(state),
            out=self._out,
            overwrite=overwrite,
            data_dir=None if data_dir is None else os.fspath(data_dir),
            test_seed=test_seed,
        )
        self._nodes = dict(nodes) if nodes is not None else None
        self._patience = float(patience)
        self._began = time.monotonic()
        self._peers: dict[int, _Peer] = {}
        self._known: set[int] = set()
        #: Whom each question went to that has no answer yet.
        self._asked: dict[str, int] = {}
        #: How many answers have come, when the last one did, and how long the last look took.
        self._heard, self._last, self._look = 0, -self._patience, 0.0
        self._looked = -_NODES_EVERY
        self._metrics: dict[int, MetricRecord] = {}
        for warning in self._server.warnings:
            _log.warning("soteriafl: %s", warning)

    # --- what is known ---------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self._server.rounds

    @property
    def round(self) -> int:
        """The open round; the number of rounds at the end."""
        return self._server.round

    @property
    def arrays(self) -> ArrayRecord:
        """The tensors of the model, empty before the run has begun."""
        return ArrayRecord(
            {name: Array(values.reshape(shape)) for name, shape, values in self._server.tensors()}
        )

    def run(self) -> Run:
        """The finished run."""
        return load(self._out)

    def summary(self) -> None:
        """Says what is coordinated."""
        _log.info("soteriafl: %s", self._server.about)

    # --- the whole run ---------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs all rounds that are left, and writes the run's files.

        `timeout` is how many seconds may pass in which nothing happens; then the run stops with an
        error that says whom it waited for, and goes on when it is started again. Rounds, the start
        of the model and everything that clients do follow from the configuration: other arguments
        of Flower's strategies are refused, where they say otherwise. `evaluate_fn` is called after
        every round that closes here.
        """
        self._refuse_others(initial_arrays, num_rounds, train_config, evaluate_config)
        self.summary()
        result = Result()
        seen, moved, look = self.round, time.monotonic(), 0.001
        while not self._server.acknowledged:
            happened = self._exchange(grid)
            happened = self._server.tick(self._now()) or happened
            if self.round > seen:
                seen = self.round
                self._closed(result, evaluate_fn)
            # With thousands of nodes a look takes long, and so does what it keeps from going on.
            rest = min(_BETWEEN_LOOKS * self._look, _LONGEST_REST)
            if happened:
                moved, look = time.monotonic(), 0.001
                time.sleep(rest)
                continue
            self._may_go_on(time.monotonic() - moved, timeout)
            if self._server.finished and time.monotonic() - moved > min(timeout, self._patience):
                # Whoever does not answer learns the end when it asks its own operator.
                _log.warning("soteriafl: not all clients know the end")
                break
            time.sleep(max(look, rest))
            look = min(2 * look, _LONGEST_LOOK)
        for found in self._server.finish():
            _log.warning("soteriafl: %s", found)
        result.arrays = self.arrays
        _log.info("soteriafl: the run is over: %s", os.path.join(self._out, "report.html"))
        return result

    def _refuse_others(
        self,
        initial_arrays: ArrayRecord | None,
        num_rounds: int | None,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
    ) -> None:
        if num_rounds is not None and num_rounds != self.rounds:
            raise ConfigError(
                f"`num_rounds` is {num_rounds}, and the run that nodes are asked to agree to has "
                f"{self.rounds}: set algorithm.rounds in `config`"
            )
        for name, value in {
            "initial_arrays": initial_arrays,
            "train_config": train_config,
            "evaluate_config": evaluate_config,
        }.items():
            if value:
                raise ConfigError(
                    f"`{name}` would not reach the nodes: what they do is the configuration that "
                    "they agreed to"
                )

    def _closed(
        self,
        result: Result,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        """A round has: what was measured, if anything was."""
        measured = self._server.measured
        if measured is not None and measured[0] == self.round:
            figures = {"loss": measured[1], "accuracy": measured[2]}
            known = {name: value for name, value in figures.items() if value is not None}
            if known:
                result.evaluate_metrics_serverapp[self.round] = MetricRecord(known)
            text = "".join(f", {name} {value:.4f}" for name, value in known.items())
            _log.info("soteriafl: round %d of %d%s", self.round, self.rounds, text)
        if evaluate_fn is not None:
            found = evaluate_fn(self.round, self.arrays)
            if found is not None:
                result.evaluate_metrics_serverapp[self.round] = found

    def _exchange(self, grid: Grid) -> bool:
        """Asks whom there is to ask, and hears what has come; says whether anything has."""
        questions = self._questions(grid)
        for first in range(0, len(questions), _AT_ONCE):
            self._push(grid, questions[first : first + _AT_ONCE])
        began = time.monotonic()
        replies = list(grid.pull_messages(list(self._asked))) if self._asked else []
        self._look = time.monotonic() - began
        heard = False
        for reply in replies:
            heard = self._hear(reply) or heard
        return heard

    def _push(self, grid: Grid, questions: list[Message]) -> None:
        """Sends questions. What could not be sent is asked again."""
        names = {name for name in grid.push_messages(questions) if name}
        now = time.monotonic()
        for question in questions:
            # A grid gives names to the messages themselves; of what it could not send it may say
            # nothing, so the place in its answer would be another question's.
            name, node = question.metadata.message_id, question.metadata.dst_node_id
            peer = self._peers[node]
            if name not in names:
                peer.pause = now + min(1.0, self._patience)
                continue
            self._asked[name], peer.asked = node, now
        behind = self._heard + len(self._asked)
        for question in questions:
            self._peers[question.metadata.dst_node_id].behind = behind

    # --- Flower's own loop -----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The questions to everybody whose answer the open round waits for."""
        return self._questions(grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hears answers; the model, if a round has closed."""
        before = self.round
        for reply in replies:
            self._hear(reply)
        self._server.tick(self._now())
        return (self.arrays if self.round > before else None), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: no metric comes from clients."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing, as nothing was asked."""
        return None

    # --- who is asked ----------------------------------------------------------------------------

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _questions(self, grid: Grid) -> list[Message]:
        now = time.monotonic()
        if now - self._looked >= _NODES_EVERY or len(self._known) < self._server.clients:
            self._looked = now
            self._see(set(grid.get_node_ids()))
        missing = set(self._server.missing())
        questions = []
        for node in sorted(self._known):
            peer = self._peers.setdefault(node, _Peer())
            if peer.refused or now < peer.pause or self._waits_for(peer, now):
                continue
            client = self._server.client_of(node)
            if client is None:
                question = self._server.introduce() if missing else None
            else:
                question = self._server.ask(client) if client in missing else None
            if question is not None:
                name = str(self._server.round)
                questions.append(Message(pack(question), node, MessageType.TRAIN, group_id=name))
        return questions

    def _waits_for(self, peer: _Peer, now: float) -> bool:
        """Whether its answer may still come: if little time has passed, or if answers come, and
        not as many as were due before its own. A transport that needs longer for all nodes than
        the patience with one would otherwise be given everything twice."""
        if peer.asked is None:
            return False
        if now - peer.asked < self._patience:
            return True
        return self._heard < peer.behind and now - self._last < self._patience

    def _see(self, nodes: set[int]) -> None:
        """Nodes that are there; others may answer as the clients of those that are not."""
        for gone in self._known - nodes:
            self._server.forget(gone)
            self._peers.pop(gone, None)
        self._known = nodes

    # --- what comes back -------------------------------------------------------------------------

    def _hear(self, reply: Message) -> bool:
        """Hears a reply; says whether it brought the run on."""
        # Whom we asked is who answers; Flower's own loop does not tell which question it was.
        node = self._asked.pop(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
        peer = self._peers.setdefault(node, _Peer())
        peer.asked = None
        self._heard, self._last = self._heard + 1, time.monotonic()
        if reply.has_error():
            self._trouble(node, peer, reply.error.code, reply.error.reason or "")
            return False
        try:
            content = unpack(reply)
            self._check_number(node, content)
            kind, client = self._server.hear(node, content, self._now())
        except MessageError as error:
            self._trouble(node, peer, None, str(error))
            return False
        if kind == "refused":
            self._trouble(node, peer, REFUSED, "it does not take part")
            return False
        if client is not None and peer.said is not None:
            _log.info("soteriafl: node %d answers again, as client %d", node, client)
        peer.troubles, peer.said = 0, None
        return True

    def _check_number(self, node: int, content: bytes) -> None:
        if self._nodes is None:
            return
        client = native.client_of_answer(content)
        if client is not None and self._nodes.get(node) != client:
            raise MessageError(
                f"node {node} answers as client {client}, and may be client "
                f"{self._nodes.get(node, 'of none')}"
            )

    def _trouble(self, node: int, peer: _Peer, code: int | None, reason: str) -> None:
        peer.refused = code in (REFUSED, FOREIGN)
        first = min(1.0, self._patience)
        peer.pause = time.monotonic() + min(first * 2.0**peer.troubles, _LONGEST_PAUSE)
        peer.troubles = min(peer.troubles + 1, 16)
        reason = shown(reason)
        if peer.said != reason:
            peer.said = reason
            _log.warning("soteriafl: node %d: %s", node, reason)

    def _may_go_on(self, quiet: float, timeout: float) -> None:
        """Stops where waiting is of no use.

        Raises
        ------
        RunRefused
            When so many nodes do not take part that the run cannot have its clients.
        SoteriaError
            When nothing has happened for too long.
        """
        refused = [node for node in self._known if self._peers.get(node, _Peer()).refused]
        able = len(self._known) - len(refused)
        clients = self._server.clients
        if refused and not self._server.begun and len(self._known) >= clients > able:
            raise RunRefused(
                f"{len(refused)} of {len(self._known)} nodes do not take part, and the run needs "
                f"{clients} clients: {self._words(refused)}"
            )
        if quiet < timeout or self._server.finished:
            return
        missing = self._server.missing()
        shown = ", ".join(str(client) for client in missing[:10])
        more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
        troubled = [node for node in self._known if self._peers.get(node, _Peer()).said]
        raise SoteriaError(
            f"nothing has happened for {quiet:.0f} s: round {self.round} of {self.rounds} waits "
            f"for client {shown}{more}; {len(self._known)} nodes are connected"
            + (f": {self._words(troubled)}" if troubled else "")
            + "; started again with the same state the run goes on"
        )

    def _words(self, nodes: list[int]) -> str:
        said = [f"node {node}: {self._peers[node].said}" for node in nodes[:5]]
        more = [f"and {len(nodes) - 5} more"] if len(nodes) > 5 else []
        return "; ".join(said + more)
