"""The one tree of errors, split by who must act.

    KuduliteError
      UsageError        the caller: a wrong option, name, type, path or timestamp
      RowError          the caller's data: rows that the table cannot take
      RetryableError    nobody: the same call may succeed later
      StorageError      the operator: disk full, permission, missing file
      CorruptionError   the operator: bytes on disk are not those that were written

Programs written for kudu-python catch the classes of kudu/errors.py.

A message names the action, its object, the found and the expected value, and the next step. Broken
invariants of our own code are `assert`, never one of these.
"""


class KuduliteError(Exception):
    """Base of everything that kudulite raises on purpose."""


class UsageError(KuduliteError, ValueError):
    """The call cannot be right, whatever the table holds."""


class OptionError(UsageError):
    """An option is unknown or its value is not legal; the message lists the known ones."""


class SchemaError(UsageError):
    """A schema, a type, a partitioning, or a batch's columns do not fit the table."""


class NotFoundError(UsageError):
    """The object that the call names does not exist."""


class NotSupportedError(UsageError):
    """A feature of Kudu that kudulite does not have; the message says what to do instead."""


class ColumnNotFoundError(SchemaError, NotFoundError, KeyError, IndexError):
    """A column is not in the table, by name or by number; the message lists those that are."""

    __str__ = Exception.__str__  # KeyError's puts the message in quotes


class TableNotFoundError(NotFoundError):
    """There is no table at this path or of this name."""


class TableExistsError(UsageError):
    """A table of this name exists already."""


class TimestampError(UsageError):
    """A snapshot time is ahead of the clock, before the ancient history mark, or unreadable."""


class RowError(KuduliteError, ValueError):
    """Rows of a write that the table cannot take.

    A batch with such a row has no effect; a session's flush applies all other rows. `reason` is one
    of the REASON_ constants, `row_count` the number of rows that failed for it, and `keys` holds
    the first few of their primary keys as tuples. Pickling keeps all of them.
    """

    REASON_ALREADY_PRESENT = "key already present"
    REASON_NOT_FOUND = "key not found"
    REASON_REPEATED = "more than one source row matches the row"
    REASON_NO_PARTITION = "no range partition covers the key"
    REASON_NULL = "null in a column that is NOT NULL"
    REASON_MISSING = "no value provided for a required column"
    REASON_INVALID = "value does not fit the column"
    REASON_IMMUTABLE = "UPDATE not allowed for immutable column"
    REASON_NO_FIELDS = "No fields updated"
    REASON_ID_GIVEN = (
        "auto-incrementing column should not be set for INSERT/INSERT_IGNORE operations"
    )
    REASON_NO_ID_LEFT = "max auto-incrementing column value reached"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        row_count: int = 0,
        keys: tuple[tuple[object, ...], ...] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.row_count = row_count
        self.keys = keys


class RetryableError(KuduliteError):
    """Nothing is wrong with the call; the same call may succeed later."""


class OutOfMemoryError(RetryableError, MemoryError):
    """The process or the machine has not enough memory, or no thread, for this call."""


class LockTimeoutError(RetryableError, TimeoutError):
    """Another writer held the table for longer than the caller's lock timeout."""


class ConflictError(RetryableError):
    """The table changed during a write in a way to which the write cannot be rebased."""


class StorageError(KuduliteError, OSError):
    """The file system refused: no space, no permission, a file that should exist is missing."""


class CorruptionError(KuduliteError):
    """Bytes on disk differ from those that were written: in length, checksum or structure."""


class FormatVersionError(CorruptionError):
    """A file was written by a newer kudulite; upgrade to read it."""
