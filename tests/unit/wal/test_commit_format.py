"""Commits: what is encoded comes back; damaged bytes are refused, and never reach beyond them."""

import json
import re
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kudulite.errors import CorruptionError
from kudulite.wal import commit_format
from kudulite.wal.commit_format import CommitInfo, LoggedCommit, decode_commits, encode_commit
from kudulite.wal.row_codec import RecordSizeError
from kudulite.wal.segment import LogPosition
from tests.support.tables.wal_changes import SECOND_TABLET, TABLET

INFO = CommitInfo("c1", "MERGE", "é\n\0", "stream", 7, 1, 2, 3, 1 << 40)
FEW = CommitInfo("c2", "WRITE")
FRAME_END = LogPosition(3, 4096)
COMMITS = {
    "one part": encode_commit(5, {TABLET: b"rowsrows"}),
    "two parts": encode_commit(5, {TABLET: b"rowsrows", SECOND_TABLET: b"ROWSROWS" * 3}),
    "with an info": encode_commit(5, {SECOND_TABLET: b"rowsrows", TABLET: b"ROWSROWS"}, INFO),
    "without rows": encode_commit(5, {}, FEW),
}
any_commit = pytest.mark.parametrize("encoded", COMMITS.values(), ids=COMMITS)

texts = st.text(st.characters(exclude_categories=["Cs"]))
counts = st.integers(0, (1 << 64) - 1)
versions = st.integers(-(1 << 63), (1 << 63) - 1)
infos = st.builds(
    CommitInfo,
    commit_id=texts,
    operation=texts,
    message=st.none() | texts,
    application_id=st.none() | texts,
    application_version=st.none() | versions,
    inserted=counts,
    updated=counts,
    deleted=counts,
    ignored=counts,
)
row_parts = st.dictionaries(
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.binary(min_size=1, max_size=40).map(lambda rows: rows * 8),
    max_size=4,
)
commits = st.tuples(counts, row_parts, st.none() | infos).filter(lambda c: c[1] or c[2])


def decode(content: bytes, begin: int = 0, end: int | None = None) -> list[LoggedCommit]:
    """The commits in the bytes [begin, end)."""
    found: list[LoggedCommit] = []
    stop = len(content) if end is None else end
    decode_commits(found, pa.py_buffer(content), memoryview(content), begin, stop, FRAME_END)
    assert all(commit.end == FRAME_END for commit in found)
    return found


def plain(commit: LoggedCommit) -> tuple[int, dict[str, bytes], CommitInfo | None]:
    """A commit as it was written."""
    parts = {tablet: rows.to_pybytes() for tablet, rows in commit.parts.items()}
    return commit.timestamp, parts, commit.info


def outcome(content: bytes) -> object:
    """The commits in bytes, or that they are refused."""
    try:
        return [plain(commit) for commit in decode(content)]
    except CorruptionError:
        return None


def test_the_worked_example_is_the_format():
    """The bytes of the module docstring."""
    tablet = bytes(range(16)).hex()
    text = encode_commit(5, {tablet: b"aaaaaaaa"}).hex()
    example = re.search(r"\n    05000000.*?\n\n", commit_format.__doc__, re.DOTALL)[0]
    assert text == "".join(example.split())


def test_the_golden_bytes_of_an_info_are_the_format():
    """Members in this order, without white space, text in ASCII."""
    info = (
        b'{"commit_id":"c1","operation":"MERGE","message":"\\u00e9\\n\\u0000",'
        b'"application_id":"stream","application_version":7,'
        b'"inserted":1,"updated":2,"deleted":3,"ignored":1099511627776}'
    )
    head = struct.pack("<QII", 5, 2, len(info)) + info + bytes(-len(info) % 8)
    parts = b"\xbb" * 16 + bytes([8, *[0] * 7]) + b"\xaa" * 16 + bytes([8, *[0] * 7])
    assert COMMITS["with an info"] == head + parts + b"rowsrows" + b"ROWSROWS"


@given(st.lists(commits, max_size=4), st.integers(0, 3))
def test_commits_come_back(written: list, before: int):
    """All of a payload, in order, wherever it stands in a segment; the order of parts as well."""
    payload = b"".join(encode_commit(*commit) for commit in written)
    assert len(payload) % 8 == 0
    content = bytes(8 * before) + payload + b"frame..."
    found = [plain(c) for c in decode(content, 8 * before, 8 * before + len(payload))]
    assert found == written
    assert [list(parts) for _, parts, _ in found] == [list(parts) for _, parts, _ in written]


@given(commits, st.integers(0, 10**6), st.integers(1, 255), st.binary(max_size=64))
def test_damaged_bytes_are_refused_or_stay_within_them(
    written: tuple, place: int, flip: int, behind: bytes
):
    """Flipped, cut, or with other bytes behind: no other exception, and no part from elsewhere."""
    encoded = bytearray(encode_commit(*written))
    place %= len(encoded)
    encoded[place] ^= flip
    for content in (bytes(encoded), bytes(encoded[:place]), bytes(encoded) + behind):
        found = outcome(content)
        if found is not None:
            rows = b"".join(rows for _, parts, _ in found for rows in parts.values())
            assert len(rows) < len(content) or not content
            assert all(parts or info for _, parts, info in found)


@any_commit
def test_every_flipped_byte_is_refused_or_seen(encoded: bytes):
    """No byte is without a meaning."""
    for at in range(len(encoded)):
        for flip in (1, 0x80, 0xFF):
            damaged = bytearray(encoded)
            damaged[at] ^= flip
            assert outcome(bytes(damaged)) != outcome(encoded)


@any_commit
def test_every_shorter_length_is_refused(encoded: bytes):
    """And the error names the byte of the commit in its frame."""
    whole = COMMITS["two parts"]
    for length in range(1, len(encoded)):
        with pytest.raises(CorruptionError, match=rf"^commit at byte {len(whole)} of its frame: "):
            decode(whole + encoded[:length])


@given(commits, st.integers(0, 10**6), st.integers(0, 255))
def test_a_commit_of_one_part_is_decoded_as_any_other(written: tuple, place: int, flip: int):
    """The short path for it agrees with the general one, on damage, too."""
    content = bytearray(encode_commit(*written))
    content[place % len(content)] ^= flip
    buffer, view = pa.py_buffer(bytes(content)), memoryview(bytes(content))
    plain_path: object = []
    position = 0
    try:
        while position < len(view):
            commit, position = commit_format._decode_commit(
                buffer, view, position, len(view), FRAME_END
            )
            plain_path.append(plain(commit))
    except CorruptionError:
        plain_path = None
    assert outcome(bytes(content)) == plain_path


@pytest.mark.parametrize(
    ("name", "offset", "value", "message"),
    [
        ("one part", 8, 0, r"no parts and no info, expected one of them"),
        ("one part", 8, 2, r"48 bytes, expected 64 for 2 parts"),
        ("one part", 8, (1 << 32) - 1, r"48 bytes, expected \d+ for 4294967295 parts"),
        ("one part", 12, 800, r"info of 32 bytes, expected 800"),
        ("one part", 12, 1, r"info at byte 16: not the info of a commit: "),
        ("one part", 32, 0, r"part 0 has 0 bytes of rows, then 0; expected a multiple of 8"),
        ("one part", 32, 4, r"part 0 has 4 bytes of rows, then 0; expected a multiple of 8"),
        ("one part", 32, 16, r"part 0 has 16 bytes of rows, then 0; .* from 8 to 8, then 0"),
        ("one part", 36, 1, r"part 0 has 8 bytes of rows, then 1; .*, then 0"),
        ("two parts", 56, 32, r"part 1 has 32 bytes of rows, .* from 8 to 24, then 0"),
        ("two parts", 60, 1, r"part 1 has 24 bytes of rows, then 1"),
    ],
)
def test_each_field_is_checked(name: str, offset: int, value: int, message: str):
    """The error says what was found and what was expected."""
    encoded = bytearray(COMMITS[name])
    struct.pack_into("<I", encoded, offset, value)
    with pytest.raises(CorruptionError, match=rf"commit at byte 0 of its frame: {message}"):
        decode(bytes(encoded))


def test_a_tablet_twice_is_refused():
    """The second part would take the place of the first."""
    encoded = COMMITS["two parts"]
    twice = encoded[:40] + encoded[16:32] + encoded[56:]
    with pytest.raises(CorruptionError, match="2 parts of 1 tablets, expected each once"):
        decode(twice)


def test_padding_that_is_not_zero_is_refused():
    """Behind an info, up to the next multiple of 8."""
    text = b'{"commit_id":"","operation":"","inserted":0,"updated":0,"deleted":0,"ignored":0}'
    for pad in range(1, 8):
        stored = text + b" " * (-(len(text) + pad) % 8)
        zeros = -len(stored) % 8
        head = struct.pack("<QII", 5, 0, len(stored))
        assert decode(head + stored + bytes(zeros))[0].info == CommitInfo("", "")
        with pytest.raises(CorruptionError, match=rf"byte {16 + len(stored)}: padding that is not"):
            decode(head + stored + bytes(zeros - 1) + b"x")


def with_info(stored: bytes) -> bytes:
    """A commit with these bytes as its info."""
    return struct.pack("<QII", 5, 0, len(stored)) + stored + bytes(-len(stored) % 8)


@pytest.mark.parametrize(
    "changed",
    [
        {"commit_id": None},
        {"commit_id": 7},
        {"commit_id": "\ud800"},
        {"operation": ["WRITE"]},
        {"message": 1},
        {"application_id": {}},
        {"application_version": "1"},
        {"application_version": 1 << 63},
        {"application_version": True},
        {"inserted": -1},
        {"inserted": 1.0},
        {"updated": None},
        {"deleted": 1 << 64},
        {"ignored": False},
    ],
    ids=str,
)
def test_an_info_has_members_of_the_right_types(changed: dict):
    """Text, text or nothing, and whole numbers."""
    stored = json.dumps({**FEW.to_json(), **changed}).encode()
    with pytest.raises(CorruptionError, match=r"byte 0 of its frame: info at byte 16: not the"):
        decode(with_info(stored))


@pytest.mark.parametrize("name", ["commit_id", "operation", "inserted"])
def test_an_info_without_a_member_is_refused(name: str):
    """Those that are always written."""
    form = FEW.to_json()
    del form[name]
    with pytest.raises(CorruptionError, match=rf"info at byte 16: .*{name}"):
        decode(with_info(json.dumps(form).encode()))


@pytest.mark.parametrize(
    "stored", [b"x", b"7", b"null", b"[]", b'"text"', b"\xff\xfe", b"{", b"[" * 100_000], ids=len
)
def test_an_info_that_is_no_object_is_refused(stored: bytes):
    """Whatever it is instead."""
    with pytest.raises(CorruptionError, match=r"info at byte 16: not the info of a commit"):
        decode(with_info(stored))


def test_unknown_members_of_an_info_are_ignored():
    """A later kudulite may write more."""
    stored = json.dumps({**INFO.to_json(), "added": [1, {}], "message": None}).encode()
    (found,) = decode(with_info(stored))
    assert found.info == CommitInfo("c1", "MERGE", None, "stream", 7, 1, 2, 3, 1 << 40)


def test_an_info_has_no_members_for_none():
    """It is as short as it can be."""
    assert json.loads(FEW.json_text) == {
        "commit_id": "c2",
        "operation": "WRITE",
        **dict.fromkeys(["inserted", "updated", "deleted", "ignored"], 0),
    }


def test_a_commit_that_no_frame_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch):
    """By its size as a whole."""
    parts = {TABLET: bytes(80), SECOND_TABLET: bytes(80)}
    monkeypatch.setattr(commit_format, "PAYLOAD_BYTES_MAX", 224)
    assert len(encode_commit(5, parts)) == 224
    with pytest.raises(RecordSizeError, match="232 bytes, at most 224"):
        encode_commit(5, {**parts, TABLET: bytes(88)})


@pytest.mark.parametrize("parts", [{}, {"7f": bytes(8)}, {TABLET: bytes(7)}], ids=len)
def test_a_commit_that_could_not_be_read_is_not_written(parts: dict):
    """Our own mistakes: no rows and no info, no id of a tablet, no record."""
    with pytest.raises(AssertionError):
        encode_commit(5, parts)
