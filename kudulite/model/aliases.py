"""Names for the kinds of values that users pass; for signatures only, nothing checks them."""

from __future__ import annotations

from datetime import date, datetime

# A HybridTime as in `WriteResult.timestamp`, microseconds since 1970, a datetime (UTC where it has
# no zone), or ISO 8601 text.
Moment = int | str | datetime | date
