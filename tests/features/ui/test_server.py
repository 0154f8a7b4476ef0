"""The command `kudulite ui`: it listens, answers, and ends; it refuses to be open to all."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest

import kudulite
from kudulite.ui.access import is_loopback
from tests.support.command_line import error

MAIN = "from kudulite.tools.entry import main; main()"


def test_the_command_answers_until_it_is_ended(tmp_path):
    """Port 0 is a free one, and the address is printed."""
    kudulite.connect(tmp_path / "wh").create_table(
        "t", kudulite.schema([kudulite.column("k", "int64")], primary_key="k")
    )
    command = [sys.executable, "-c", MAIN, "ui", str(tmp_path / "wh"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.findall(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())[0]
            with urllib.request.urlopen(address) as answer:
                assert b"/table/t" in answer.read()
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


def test_an_address_that_others_reach_needs_a_token(tmp_path):
    """And one that is in use says so."""
    assert "needs a token" in error("ui", tmp_path, "--host", "0.0.0.0")
    short = error("ui", tmp_path, "--host", "0.0.0.0", "--token", "short")
    assert "at least 16" in short
    assert "not a directory of tables" in error("ui", tmp_path / "none")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True)),
        *(("localhost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)),
        *(("example.org", False), ("localhost.example.org", False), ("", False)),
    ],
)
def test_loopback_addresses(host, expected):
    """Anything else may be reached by others."""
    assert is_loopback(host) is expected
