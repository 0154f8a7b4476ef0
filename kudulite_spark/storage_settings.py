"""Options of object stores in Spark: of a read or write, of the session, and of Hadoop's s3a.

    .option("aws_region", "eu-west-1")                  of one read or write
    spark.kudulite.storage.aws_region                   of the session, where it is not an option
    spark.hadoop.fs.s3a.endpoint.region                 where neither is given, for s3:// and s3a://
    spark.hadoop.fs.s3a.bucket.NAME.endpoint.region     the same for one bucket, before the other

Of Hadoop's settings these are taken: `endpoint`, `endpoint.region`, `access.key`, `secret.key`,
`session.token`, `path.style.access`, `connection.ssl.enabled`, and `aws.credentials.provider` if it
is the anonymous one.

Spark writes options and settings to plans, its pages and its event log. It hides a value if the
name contains secret, password, token or access.key. Other names of secrets are therefore refused,
and taken with `secret.` in front, as in `secret.azure_storage_account_key`. The JVM extension
hands settings to Python processes as options of theirs, which are in no plan.

**Invariants**: no text that is made here has a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

import kudulite
from kudulite.errors import OptionError

SECRET_PREFIX = "secret."
SESSION_PREFIX = "spark.kudulite.storage."
HADOOP_PREFIX = "spark.hadoop.fs.s3a."
# The JVM extension puts it before the name of a setting, to hand this on as an option.
FRONT_PREFIX = "kudulitesetting."

# The default of spark.redaction.regex.
_HIDDEN = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)
_S3_ADDRESS = re.compile("s3a?://?([^/]*)", re.IGNORECASE)
_COPIED = {
    "access.key": "aws_access_key_id",
    "secret.key": "aws_secret_access_key",
    "session.token": "aws_session_token",
    "endpoint.region": "aws_region",
}
_KEYS_OF_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Hadoop's name for "the endpoint of the region".
_CENTRAL_ENDPOINT = "s3.amazonaws.com"
_ANONYMOUS = "AnonymousAWSCredentialsProvider"


def storage_name(option: str) -> str | None:
    """Return the storage option that an option of Spark is; None for another one.

    Raises OptionError for a secret that Spark would show.
    """
    lowered = option.lower()
    name = lowered.removeprefix(SECRET_PREFIX)
    if not kudulite.is_storage_option(name):
        return None
    if name == lowered and kudulite.is_secret_storage_option(name) and not _HIDDEN.search(name):
        raise OptionError(
            f"option {option!r} is a secret, and Spark would show it in plans and in its event log;"
            f" write '{SECRET_PREFIX}{name}', whose value Spark hides, or set it in the environment"
            " of the driver and of the executors"
        )
    return name


def session_options(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options in the settings of a session. Raises OptionError."""
    found = {}
    for setting, value in settings.items():
        if not setting.lower().startswith(SESSION_PREFIX):
            continue
        name = storage_name(setting[len(SESSION_PREFIX) :])
        if name is None:
            raise OptionError(
                f"setting {setting!r} names no storage option; write for example"
                f" '{SESSION_PREFIX}aws_region'"
            )
        found[name] = value
    return found


def hadoop_options(settings: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the storage options that Hadoop's settings of s3a mean for a path."""
    match = _S3_ADDRESS.match(path)
    if match is None:
        return {}
    own = f"bucket.{match[1].lower()}."
    given: dict[str, str] = {}
    # The settings of the bucket come last, and so replace the others.
    for name, value in sorted(settings.items(), key=lambda item: own in item[0].lower()):
        lowered = name.lower()
        if lowered.startswith(HADOOP_PREFIX) and value.strip():
            key = lowered.removeprefix(HADOOP_PREFIX).removeprefix(own)
            given[key] = value.strip()
    found = {option: given[key] for key, option in _COPIED.items() if key in given}
    found |= _endpoint_options(given)
    if _ANONYMOUS in given.get("aws.credentials.provider", ""):
        found["aws_skip_signature"] = "true"
    return found


def _endpoint_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the server; Hadoop's endpoint may have no scheme."""
    found = {}
    endpoint = given.get("endpoint", "")
    if endpoint and endpoint != _CENTRAL_ENDPOINT:
        if "://" not in endpoint:
            is_secure = given.get("connection.ssl.enabled", "true").lower() != "false"
            endpoint = f"{'https' if is_secure else 'http'}://{endpoint}"
        found["aws_endpoint_url"] = endpoint
        if urlsplit(endpoint).scheme == "http":
            found["allow_http"] = "true"
    style = given.get("path.style.access", "").lower()
    # With an endpoint of its own, the bucket in the host's name would be part of the endpoint.
    if style == "true" or (style == "false" and "aws_endpoint_url" not in found):
        found["aws_virtual_hosted_style_request"] = str(style == "false").lower()
    return found


def storage_options(
    path: str, options: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the storage options of a read or write of `path`. Raises OptionError.

    The options that it has itself precede those of the session, and these Hadoop's.
    """
    own: dict[str, str] = {}
    for option, value in options.items():
        name = storage_name(option)
        if name is not None:
            own[name] = value
    session, hadoop = session_options(settings), hadoop_options(settings, path)
    found = kudulite.merged_storage_options(path, own, session, hadoop)
    if hadoop.get("aws_endpoint_url", "") not in found.values():
        hadoop.pop("allow_http", None)  # it is for Hadoop's endpoint, and for no other one
        found = kudulite.merged_storage_options(path, own, session, hadoop)
    return found


def with_hidden_key(
    path: str, options: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the options that a client of Spark Connect finds in its session, for its own calls.

    Spark gives clients no setting whose name it hides, so the id of a key is there without the
    secret. Both are then those of the client's environment. Raises OptionError if it has none.
    """
    has_id = any(name.lower().endswith("access_key_id") for name in options)
    if not has_id or any(name.lower().endswith("secret_access_key") for name in options):
        return dict(options)
    own = {name.lower(): environment.get(name) for name in _KEYS_OF_ENVIRONMENT}
    if not own["aws_access_key_id"] or not own["aws_secret_access_key"]:
        raise OptionError(
            f"{path}: Spark does not tell a client of Spark Connect the secrets of its session, and"
            " this call works in the client's process; set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY in its environment"
        )
    return without_keys(options) | {name: value for name, value in own.items() if value}


def without_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options without secrets, and without the id of a key."""
    return {
        name: value
        for name, value in options.items()
        if not kudulite.is_secret_storage_option(name)
        and not name.lower().endswith("access_key_id")
    }


def source_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options as options of a read or write, under names whose values are hidden."""
    return {
        SECRET_PREFIX + name if kudulite.is_secret_storage_option(name) else name: value
        for name, value in options.items()
    }


def front_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the JVM extension has handed on as options."""
    return {
        name.lower().removeprefix(FRONT_PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(FRONT_PREFIX)
    }
