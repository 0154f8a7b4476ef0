"""Errors of object stores: a reason that says what to do, and no secret in any of their texts."""

from __future__ import annotations

import errno
import traceback

import pytest
from obstore import exceptions

from kudulite.errors import StorageError
from kudulite.storage.object_errors import reason, store_errors
from kudulite.storage.object_path import ObjectPath

TARGET = ObjectPath("s3://b/t")
REQUEST = "Error performing PUT https://u:SECRET@h/b/t?sig=SECRET in 1ms"
BODY = (
    '<?xml version="1.0"?>\n<Error><Code>{}</Code><Message>{}</Message>'
    "<Token-0>SECRET</Token-0></Error>\n\nDebug source:\nSECRET"
)


class PanicException(BaseException):
    """As the library's, which is no Exception."""


ERRORS: dict[str, tuple[BaseException, int, str]] = {
    "an answer in XML": (
        exceptions.GenericError(f"{REQUEST} - 403: {BODY.format('ExpiredToken', 'It expired.')}"),
        errno.EIO,
        r"PUT https://…@h/b/t\?… in 1ms - 403: ExpiredToken: It expired; get new credentials$",
    ),
    "a clock that is wrong": (
        exceptions.PermissionDeniedError(f"{BODY.format('RequestTimeTooSkewed', 'Too large.')}"),
        errno.EACCES,
        "RequestTimeTooSkewed: Too large; set the clock of this machine$",
    ),
    "no permission": (
        exceptions.PermissionDeniedError(f"{REQUEST}: {BODY.format('AccessDenied', 'No.')}"),
        errno.EACCES,
        "AccessDenied: No.$",
    ),
    "no bucket, as no object": (
        FileNotFoundError(f"{REQUEST}: {BODY.format('NoSuchBucket', 'No.')}"),
        errno.ENXIO,
        "there is no such bucket; check its name, its region and the endpoint$",
    ),
    "no object": (FileNotFoundError(f"{REQUEST}: SECRET"), errno.ENOENT, "it does not exist$"),
    "no credentials": (
        exceptions.GenericError("S3 error: PUT http://169.254.169.254/latest/api/token"),
        errno.EIO,
        "no credentials were found, and this machine gives none .*the storage options aws_access_k",
    ),
    "no credentials for Azure": (
        exceptions.GenericError("MicrosoftAzure error: GET http://169.254.169.254/metadata"),
        errno.EIO,
        "no credentials were found.*the storage options azure_storage_account_key or azure_",
    ),
    "no permission to list": (
        exceptions.GenericError(f"{REQUEST} - 403 Forbidden: {BODY.format('AccessDenied', 'No.')}"),
        errno.EACCES,
        "403 Forbidden: AccessDenied: No.$",
    ),
    "nothing there": (
        exceptions.GenericError('HTTP error\n\nDebug source:\nSECRET "tcp connect error"'),
        errno.EIO,
        r"HTTP error \(nothing answers at this address\)$",
    ),
    "no TLS allowed": (
        exceptions.GenericError("HTTP error: builder error\n\nDebug source:\nBadScheme"),
        errno.EIO,
        "add the storage option allow_http='true'",
    ),
    "a panic": (PanicException("RelativeUrlWithoutBase"), errno.EIO, "RelativeUrlWithoutBase$"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_a_reason_and_no_secret(name: str):
    """Also not in the traceback, where the library's own text would be the cause."""
    error, number, text = ERRORS[name]
    with pytest.raises(StorageError, match=text) as found, store_errors("create", TARGET):
        raise error
    assert found.value.errno == number
    assert "cannot create s3://b/t: " in str(found.value)
    shown = traceback.format_exception(found.value)
    assert "SECRET" not in "".join(line for line in shown if "raise" not in line)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), StorageError(5, "x")])
def test_other_errors_pass(error: BaseException):
    """Those of the program, an interrupt, and what is a StorageError already."""
    with pytest.raises(type(error)) as found, store_errors("create", TARGET):
        raise error
    assert found.value is error


def test_a_reason_is_one_line():
    """Of a text without an answer."""
    assert reason("first\nsecond") == "first"
