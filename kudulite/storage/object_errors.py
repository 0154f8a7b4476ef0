"""Errors of object stores: the library's, as the StorageError of the object that was asked for.

    GenericError: Generic S3 error: Error performing PUT http://… 403 Forbidden: <?xml …
    StorageError: cannot create s3://bucket/t/a: … 403 Forbidden: AccessDenied: Access Denied.

The library's text has a request, an answer in XML, and a dump of its own objects. The request's
line and the answer's code and message are kept. They have no secret; the rest may have some.

The library ends a call by a panic where an address of the environment is none, and does not end it
at all in a process that was forked after its first use. Both become a StorageError.

**Threads**: any.

**Source**: obstore's `exceptions`; the codes are those of S3's and Azure's documentation.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from obstore import exceptions

from kudulite.errors import NotSupportedError, StorageError, TableNotFoundError
from kudulite.storage.storage_error import storage_error

_NUMBERS: dict[type[BaseException], int] = {
    exceptions.PermissionDeniedError: errno.EACCES,
    exceptions.UnauthenticatedError: errno.EACCES,
}
# Of a URL: it may be signed, or have a user.
_QUERY, _USER = re.compile(r"\?[^\s\"'>)]*"), re.compile(r"(?<=://)[^/@\s]+@")
_DUMP = "\n\nDebug source:"
_CODE = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")
# Of answers whose message leaves out what to do.
_ADVICE = {
    "RequestTimeTooSkewed": "set the clock of this machine",
    "ExpiredToken": "get new credentials",
}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
# Where a machine asks for its own credentials, when there are no others.
_INSTANCES = ("169.254.169.254", "metadata.google.internal")
_CREDENTIALS = {
    "MicrosoftAzure": "azure_storage_account_key or azure_storage_sas_key",
    "GCS": "google_service_account",
    "S3": "aws_access_key_id and aws_secret_access_key",
}
_REFUSALS = ("401 Unauthorized", "403 Forbidden")
# Of the library's dump, for a request that reached no server.
_CAUSES = {
    "tcp connect error": "nothing answers at this address",
    "dns error": "the name of the host is not known",
    "InvalidContentType": "the server speaks no TLS: write http://, with allow_http='true'",
    "UnknownIssuer": "the certificate of the server is of no known authority; give it as storage"
    " option root_certificate",
    "TimedOut": "there was no answer in time",
    "BadScheme": "http:// sends data without TLS; add the storage option allow_http='true'",
}


class _UsedIn:
    """The process that has used a store: the library's threads are in it alone."""

    process_id: int | None = None


def check_process(action: str, target: object) -> None:
    """Raise StorageError in a process that was forked from one that has used a store."""
    own = os.getpid()
    if _UsedIn.process_id is None:
        _UsedIn.process_id = own
    elif _UsedIn.process_id != own:
        raise StorageError(
            errno.EDEADLK,
            f"cannot {action} {target}: process {_UsedIn.process_id} had used an object store when"
            f" this one, {own}, was forked from it, where its connections do not work; start the"
            " process with multiprocessing's method spawn or forkserver, or before the first use",
        )


class store_errors:
    """Turns an error of the library in its `with` block into a StorageError.

    Its text is not kept as the cause, which a traceback would show with all secrets in it. `doubt`
    ends the text of an error after which a store may have acted, and its number is EINPROGRESS.
    """

    def __init__(self, action: str, target: object, doubt: str = "") -> None:
        self._action, self._target, self._doubt = action, target, doubt

    def __enter__(self) -> None:
        check_process(self._action, self._target)

    def __exit__(self, kind: type | None, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, StorageError):
            return
        text = str(error)
        if isinstance(error, (OSError, exceptions.BaseError)) and _is_of_bucket(text):
            raise self._error(
                errno.ENXIO, "there is no such bucket; check its name, its region and the endpoint"
            ) from None
        if isinstance(error, OSError):
            raise storage_error(self._action, str(self._target), error) from None
        if isinstance(error, exceptions.BaseError) or is_panic(error):
            number = _NUMBERS.get(type(error), errno.EIO)
            if any(status in text.partition(_DUMP)[0] for status in _REFUSALS):
                number = errno.EACCES  # a list has no error of its own for it
            if self._doubt and number == errno.EIO:
                raise self._error(errno.EINPROGRESS, reason(text) + self._doubt) from None
            raise self._error(number, reason(text)) from None

    def _error(self, number: int, text: str) -> StorageError:
        return StorageError(number, f"cannot {self._action} {self._target}: {text}")


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of the library, which is no Exception."""
    return type(error).__name__ == "PanicException"


def reason(text: str) -> str:
    """Return what a text of the library says to a user, without secrets, and what to do."""
    said, _, dump = text.partition(_DUMP)
    line = without_urls_secrets(said.partition("\n")[0].partition(": <?xml")[0])
    code = _CODE.search(said)
    if code:
        line = f"{line}: {code[1]}: {code[2]}"
    if code and code[1] in _ADVICE:
        line = f"{line.rstrip('.')}; {_ADVICE[code[1]]}"
    if any(place in line for place in _INSTANCES):
        names = next((found for kind, found in _CREDENTIALS.items() if kind in line), "of a key")
        return (
            f"no credentials were found, and this machine gives none ({line}); give the storage"
            f" options {names}, or set them in the environment; a public bucket needs none with"
            " the option skip_signature='true'"
        )
    cause = next((found for word, found in _CAUSES.items() if word in dump), None)
    return f"{line} ({cause})" if cause else line


def without_urls_secrets(text: str) -> str:
    """Return a text without users and queries of URLs, which may be credentials."""
    return _USER.sub("…@", _QUERY.sub("?…", text))


def _is_of_bucket(text: str) -> bool:
    return any(code in text for code in _NO_BUCKET)


def not_conditional(root: Path) -> NotSupportedError:
    """Return the error for a store that replaces an object."""
    return NotSupportedError(
        f"{root}: this store does not refuse to put an object that exists (If-None-Match: *), so of"
        " two commits at once one would be lost; use one that does: Amazon S3, Google Cloud"
        " Storage, Azure, MinIO, SeaweedFS"
    )


def is_bucket(root: Path) -> TableNotFoundError:
    """Return the error for a bucket that is taken for a table."""
    return TableNotFoundError(
        f"{root} is a bucket, and no table: a table has a name in it, as in {root}/metrics"
    )
