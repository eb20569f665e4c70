"""What can go wrong, as exceptions. Messages name the argument at fault and what it may be."""

__all__ = [
    "AccountError",
    "BudgetExceeded",
    "ConfigError",
    "DataDependentWarning",
    "DataError",
    "MessageError",
    "RunRefused",
    "RunWarning",
    "SoteriaError",
    "UnsupportedModule",
]


class SoteriaError(Exception):
    """The base of all exceptions of this package."""


class AccountError(SoteriaError, ValueError):
    """A question to the accountant that makes no sense, has no proof or has no answer."""


class ConfigError(SoteriaError, ValueError):
    """Settings that do not exist, do not fit or do not go together."""


class DataError(SoteriaError, ValueError):
    """Records that cannot be used: wrong shapes, values that are not finite, unfit labels."""


class BudgetExceeded(SoteriaError):
    """A release that the privacy budget does not allow. Nothing was spent."""


class RunRefused(SoteriaError):
    """A networked run in which this client does not take part. Nothing was sent."""


class MessageError(SoteriaError, ValueError):
    """Bytes that are no message of this run, or come at the wrong time."""


class UnsupportedModule(SoteriaError, TypeError):
    """A PyTorch module whose records cannot be bounded one by one."""


class RunWarning(UserWarning):
    """What a run says about itself: that noise swamps the signal, that a column is out of scale."""


class DataDependentWarning(UserWarning):
    """Something before the private training looks at the records, and no accounting covers that."""
