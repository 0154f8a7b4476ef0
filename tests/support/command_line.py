"""Running commands of `kudulite` in this process."""

import json
from typing import Any

from typer.testing import CliRunner

from kudulite.tools.cli import app


def output(*arguments: object, status: int = 0) -> str:
    """The output of a command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    # Bytes that a command writes are only in `stdout`.
    return result.stdout if status == 0 else result.output


def value(*arguments: object, status: int = 0) -> Any:
    """The JSON output of a command, decoded."""
    return json.loads(output(*arguments, "--json", status=status))


def error(*arguments: object) -> str:
    """The message of the error that a command ends with."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is not None
    return f"{result.output}{result.exception}"
