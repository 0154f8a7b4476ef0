"""Figures as OpenMetrics text, for Prometheus.

**Source**: the OpenMetrics text format, version 1.0.0; names as in Kudu's metrics where it has one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One metric: its name, `counter` or `gauge`, what it means, and its values by their labels."""

    name: str
    kind: str
    about: str
    samples: Iterable[tuple[Mapping[str, str], float]]


def openmetrics(families: Iterable[Family]) -> str:
    """Return metrics in the OpenMetrics text format; names begin with `kudulite_`."""
    lines = []
    for family in families:
        name = f"kudulite_{family.name}"
        suffix = "_total" if family.kind == "counter" else ""
        lines.append(f"# TYPE {name} {family.kind}")
        if name.endswith(("_seconds", "_bytes")):
            lines.append(f"# UNIT {name} {name.rpartition('_')[2]}")
        lines.append(f"# HELP {name} {family.about}")
        for labels, value in family.samples:
            named = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{suffix}{f'{{{named}}}' if named else ''} {value}")
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
