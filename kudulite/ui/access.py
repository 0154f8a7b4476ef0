"""Access: which requests are answered at all.

    Host            the name that the browser was sent to is one of those given: a page of another
                    site cannot reach the server under a name of its own (DNS rebinding)
    Origin          a request that a page has sent comes from a page of this server
    Sec-Fetch-Site  costly work (a query, a check) is begun by these pages, and not by others
    token           with one, each request has it, as a cookie or `Authorization: Bearer …`
    method          without maintenance, GET and HEAD only; a form has the token of its page

The cookie is no token: it is made of it and of a secret of the process, and ends with the process.

**Threads**: any; nothing changes after the start.

**Source**: W3C, "Fetch Metadata Request Headers"; OWASP, "Cross-Site Request Forgery Prevention".
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from kudulite.errors import UsageError

COOKIE = "kudulite_ui"
TOKEN_CHARACTERS_MIN = 16
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
        " frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers would send "Origin: null" with the forms of these pages.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_READING = ("GET", "HEAD")


@dataclass(frozen=True)
class Refusal:
    """A request that is not answered: the status, and what to do."""

    status: int
    message: str


@dataclass(frozen=True)
class Access:
    """The rules of one server; `hosts` are names without a port, "*" is any name."""

    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    token: str | None = None
    allow_maintenance: bool = False
    form_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @staticmethod
    def of(hosts: Sequence[str], token: str | None, allow_maintenance: bool) -> Access:
        """Return the rules. Raises UsageError for a token that is easy to guess."""
        if token is not None and len(token) < TOKEN_CHARACTERS_MIN:
            raise UsageError(
                f"the token has {len(token)} characters; it takes at least {TOKEN_CHARACTERS_MIN},"
                ' as from: python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        return Access(tuple(host.lower() for host in hosts), token, allow_maintenance)

    @property
    def cookie(self) -> str:
        """The value of the cookie that stands for the token."""
        return hmac.digest(self._secret, (self.token or "").encode(), "sha256").hex()

    def refusal(self, request: Request, *, is_costly: bool, is_open: bool) -> Refusal | None:
        """Return why a request is not answered, None if it is; an open one needs no token."""
        headers = request.headers
        host = headers.get("host", "").lower()
        if "*" not in self.hosts and _name_of(host) not in self.hosts:
            return Refusal(
                403,
                f"this server does not answer to the name {host!r}, but to"
                f" {', '.join(self.hosts)}; open it under one of these",
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{request.url.scheme}://{host}":
            return Refusal(403, f"a page of {origin} may not use this server; open it directly")
        if is_costly and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refusal(
                403, "another site may not begin queries and checks here; begin it on this page"
            )
        if not is_open and not self.is_known(request):
            return Refusal(401, "these pages need the token that the server was started with")
        if request.method not in _READING and not is_open and not self.allow_maintenance:
            return Refusal(
                403, "these pages only read; start the server with --allow-maintenance to change it"
            )
        return None

    def is_known(self, request: Request) -> bool:
        """Whether a request has the token or its cookie; always, where there is no token."""
        if self.token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return _is_equal(request.cookies.get(COOKIE, ""), self.cookie)

    def is_token(self, given: str) -> bool:
        """Whether a text is the token."""
        return self.token is not None and _is_equal(given, self.token)

    def is_form_token(self, given: str) -> bool:
        """Whether a text is the token of the forms of these pages."""
        return _is_equal(given, self.form_token)


def is_loopback(host: str) -> bool:
    """Whether an address to listen at can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_equal(given: str, expected: str) -> bool:
    """Compare two texts in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())
