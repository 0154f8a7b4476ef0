"""The one tree of errors, split by who must act.

    KuduliteError
      UsageError        the caller: a wrong option, name, type, path or timestamp
      RowError          the caller's data: rows that the table cannot take
      RetryableError    nobody: the same call may succeed later
      StorageError      the operator: disk full, permission, missing file
      CorruptionError   the operator: bytes on disk are not what was written

Programs written for kudu-python catch these under its names, at the end of this file; they are the
same classes.

A message says what was being done, to which object, what was found, what was expected, and what to
do. Broken invariants of our own code are `assert`, never one of these.
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
    """What the call names is not there."""


class NotSupportedError(UsageError):
    """Kudu has it, or may have it, and kudulite does not; the message says what to do instead."""


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

    A batch had no effect then; of a session's flush all other rows are applied. `reason` is one of
    the REASON_ constants, `row_count` how many rows failed for it, `keys` the first few of their
    primary keys as tuples.
    """

    REASON_ALREADY_PRESENT = "key already present"
    REASON_NOT_FOUND = "key not found"
    REASON_NO_PARTITION = "no range partition covers the key"
    REASON_NULL = "null in a column that is NOT NULL"
    REASON_MISSING = "no value provided for a required column"
    REASON_INVALID = "value does not fit the column"

    def __init__(
        self, message: str, *, reason: str = "", row_count: int = 0, keys: tuple[tuple, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.row_count = row_count
        self.keys = keys

    def __reduce__(self) -> tuple:
        """Keep the attributes when the error travels between processes."""
        return (_rebuild_row_error, (self.args[0], self.reason, self.row_count, self.keys))


def _rebuild_row_error(message: str, reason: str, row_count: int, keys: tuple) -> RowError:
    return RowError(message, reason=reason, row_count=row_count, keys=keys)


class RetryableError(KuduliteError):
    """Nothing is wrong with the call; the same call may succeed later."""


class LockTimeoutError(RetryableError, TimeoutError):
    """Another writer held a tablet for longer than the caller wanted to wait."""


class ConflictError(RetryableError):
    """The table changed under a write in a way that the write cannot be fitted to."""


class StorageError(KuduliteError, OSError):
    """The file system refused: no space, no permission, a file that should exist is missing."""


class CorruptionError(KuduliteError):
    """Bytes on disk are not what was written: length, checksum, or structure differ."""


class FormatVersionError(CorruptionError):
    """A file was written by a newer kudulite; upgrade to read it."""


# kudu-python's names. There every failed call is a KuduBadStatus; here not found and not supported
# are kinds of an invalid argument.
KuduException = KuduBadStatus = KuduliteError
KuduInvalidArgument = UsageError
KuduNotFound = NotFoundError
KuduNotSupported = NotSupportedError
