"""Checks of arguments: what does not fit is refused by name."""

import math
import operator
from typing import SupportsFloat, SupportsIndex

from .errors import SoteriaError


def whole(name: str, value: SupportsIndex, *, least: int = 1, error: type[SoteriaError]) -> int:
    """A whole number of at least `least`; truth values are none."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    largest = 2**63 - 1
    if number is None or isinstance(value, bool) or not least <= number <= largest:
        raise error(f"`{name}` must be a whole number of at least {least}, found {value!r}")
    return number


def real(name: str, value: SupportsFloat | SupportsIndex, *, error: type[SoteriaError]) -> float:
    """A number; what it may be is for the library to say."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise error(f"`{name}` must be a number, found {value!r}")
    return number


def word(name: str, value: str, *, error: type[SoteriaError]) -> str:
    """A word; which ones there are is for the library to say."""
    if not isinstance(value, str):
        raise error(f"`{name}` must be a word, found {value!r}")
    return value
