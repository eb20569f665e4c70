"""Our bytes in Flower's records, and what a node says that has no answer."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from ..errors import MessageError

__all__ = ["FOREIGN", "REFUSED", "UNABLE", "pack", "shown", "trouble", "unpack"]

#: The name of our record in a message.
_RECORD = "soteriafl"

#: The version of what is in it. Both sides refuse another one.
_PROTOCOL = 1

#: Above this many bytes they travel as an array, which Flower cuts into pieces.
_LARGE = 1 << 20

#: Characters of the other side's words that are shown.
_LONGEST_WORDS = 300

#: Codes of `flwr.app.Error`, far from Flower's own. What they say never depends on a record.
REFUSED, UNABLE, FOREIGN = 18101, 18102, 18103

_TEXT = {
    REFUSED: "this node does not take part in this run; its own log says why",
    UNABLE: "this node cannot answer now; its own log says why",
    FOREIGN: (
        "this node answers questions of SoteriaFL's protocol 1 and got something else: the server "
        "app must use soteriafl.flower.SoteriaStrategy, of the same version"
    ),
}


def pack(content: bytes) -> RecordDict:
    """The records of a message."""
    if len(content) <= _LARGE:
        return RecordDict({_RECORD: ConfigRecord({"protocol": _PROTOCOL, "bytes": content})})
    array = Array(
        dtype="uint8", shape=(len(content),), stype=f"soteriafl.{_PROTOCOL}", data=content
    )
    return RecordDict({_RECORD: ArrayRecord({"bytes": array})})


def unpack(message: Message) -> bytes:
    """The bytes of a message.

    Raises
    ------
    MessageError
        When it is none of ours, or of another version.
    """
    record = message.content.get(_RECORD) if message.has_content() else None
    if isinstance(record, ConfigRecord):
        found, content = record.get("protocol"), record.get("bytes")
    elif isinstance(record, ArrayRecord) and isinstance(record.get("bytes"), Array):
        array = record["bytes"]
        ours = array.stype == f"soteriafl.{_PROTOCOL}"
        found, content = _PROTOCOL if ours else array.stype, array.data
    else:
        raise MessageError("it has no record of SoteriaFL")
    if found != _PROTOCOL:
        raise MessageError(
            f"it is of protocol {shown(repr(found))}, and this side speaks {_PROTOCOL}: both need "
            "the same version of soteriafl"
        )
    if not isinstance(content, bytes):
        raise MessageError("its record holds no bytes")
    return content


def trouble(code: int) -> Error:
    """What is said instead of an answer."""
    return Error(code, _TEXT[code])


def shown(said: str) -> str:
    """What the other side said, for a log or an error: it may be long, and hold anything."""
    words = said[:_LONGEST_WORDS] + ("..." if len(said) > _LONGEST_WORDS else "")
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in words)
