"""kudu-python's tree of errors, and how an error of the engine becomes one of it.

    KuduException
      KuduBadStatus               a call that failed; the text begins with Kudu's status
        KuduInvalidArgument       a ValueError as well
        KuduNotFound              a KeyError and an IndexError as well, if a column is missing
        KuduNotSupported
        KuduNotAuthorized, KuduAborted          never raised: there are no servers

A program catches the classes that it would catch with kudu-python. The engine's error, which says
what to do and may hold the keys of failed rows, is the `__cause__`.

`in_kudu_terms` decorates each class of this module whose methods reach the engine: a KuduliteError
that would leave a public method leaves it as a KuduException.

**Source**: Kudu python/kudu/errors.pyx; util/status.h for the names of the statuses.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from kudulite import errors as engine


class KuduException(Exception):
    """Base of all errors of this module."""


class KuduBadStatus(KuduException):
    """A call failed; the text begins with Kudu's status, such as `IO error:`."""


class KuduNotFound(KuduBadStatus):
    """The table, column or row that a call names does not exist."""


class KuduColumnNotFound(KuduNotFound, KeyError, IndexError):
    """No column has this name or number."""

    __str__ = Exception.__str__  # KeyError's puts the message in quotes


class KuduNotSupported(KuduBadStatus):
    """Kudu has no such operation, or kudulite has not."""


class KuduInvalidArgument(KuduBadStatus, ValueError):
    """The call cannot be right: kudu-python raises this or a ValueError."""


class KuduNotAuthorized(KuduBadStatus):
    """Never raised: the permissions of the directory say who may read and write."""


class KuduAborted(KuduBadStatus):
    """Never raised."""


# The first class that fits decides, so subclasses stand before their bases.
_KINDS: tuple[tuple[type[engine.KuduliteError], type[KuduBadStatus], str], ...] = (
    (engine.ColumnNotFoundError, KuduColumnNotFound, ""),
    (engine.NotFoundError, KuduNotFound, ""),
    (engine.NotSupportedError, KuduNotSupported, ""),
    (engine.TableExistsError, KuduBadStatus, "Already present: "),
    (engine.UsageError, KuduInvalidArgument, ""),
    (engine.RowError, KuduBadStatus, "IO error: "),
    (engine.StorageError, KuduBadStatus, "IO error: "),
    (engine.CorruptionError, KuduBadStatus, "Corruption: "),
    (engine.LockTimeoutError, KuduBadStatus, "Timed out: "),
    (engine.KuduliteError, KuduBadStatus, "Service unavailable: "),
)


def kudu_error(error: engine.KuduliteError) -> KuduBadStatus:
    """Return the error of this module that stands for one of the engine, with its notes."""
    kind, status = next(found[1:] for found in _KINDS if isinstance(error, found[0]))
    raised = kind(f"{status}{error}")
    for note in getattr(error, "__notes__", ()):
        raised.add_note(note)
    return raised


Returned = TypeVar("Returned")


def translated(function: Callable[..., Returned]) -> Callable[..., Returned]:
    """Return `function` with the engine's errors turned into those of this module."""

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Returned:
        try:
            return function(*given, **named)
        except engine.KuduliteError as error:
            raise kudu_error(error) from error

    return call


_SPECIAL = ("__init__", "__getitem__", "__setitem__", "__len__", "__enter__", "__exit__")
Kind = TypeVar("Kind", bound=type)


def in_kudu_terms(kind: Kind) -> Kind:
    """Translate the errors of all public methods and properties of a class, inherited ones too."""
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if inspect.isfunction(member):
            setattr(kind, name, translated(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(translated(member.fget), doc=member.__doc__))
    return kind
