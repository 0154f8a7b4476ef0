"""A record as the chain has it: what it gives back, and what it refuses."""

import zlib
from dataclasses import replace

import pytest

from kudulite.chain.record_entry import RecordEntry, new_record_id, record_writer
from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.wal.commit_format import CommitInfo, encode_commit

TABLET = "00" * 16
RECORD = RecordEntry(
    table_id="a" * 32,
    number=8,
    id=new_record_id(),
    version=7,
    timestamp=9,
    previous_crc32=5,
    commits=RecordEntry.text_of(
        encode_commit(8, {TABLET: b"rowsrows"})
        + encode_commit(9, {}, CommitInfo("c", "upsert", application_id="app"))
    ),
)


def test_a_record_is_read_back_with_its_commits():
    """Their end is the position of the record."""
    content = RECORD.encode()
    found = RecordEntry.decode(content, "x")
    assert found == RECORD and found.file_crc32 is not None
    commits = found.decode_commits("x")
    assert [commit.timestamp for commit in commits] == [8, 9]
    assert bytes(commits[0].parts[TABLET]) == b"rowsrows"
    assert commits[1].info is not None and commits[1].info.application_id == "app"
    assert {tuple(commit.end) for commit in commits} == {(8, 40)}
    assert replace(RECORD, commits="").decode_commits("x") == []


def test_a_version_is_no_record():
    """It is decoded as what it is."""
    assert RecordEntry.decode(b'{"format_version":8}\n{"crc32":1}\n', "x") is None


def test_each_record_has_an_id_of_its_process():
    """No two are equal."""
    ids = {new_record_id() for _ in range(100)}
    assert len(ids) == 100 and {len(each) for each in ids} == {32}
    assert all(each.startswith(record_writer()) for each in ids)
    assert RECORD.writer == record_writer()


@pytest.mark.parametrize("place", range(20, 300, 7))
def test_a_flipped_byte_is_found(place: int):
    """Anywhere in the file."""
    content = bytearray(RECORD.encode())
    place %= len(content)
    content[place] ^= 1
    if bytes(content[:18]) == RECORD.encode()[:18]:
        with pytest.raises(CorruptionError):
            RecordEntry.decode(bytes(content), "x")


def test_a_newer_record_is_refused():
    """With the versions in the text."""
    text = RECORD.encode().replace(b'"record_version":1', b'"record_version":2')
    line = text.partition(b"\n")[0]
    with pytest.raises(FormatVersionError, match="version 2, this kudulite reads 1"):
        RecordEntry.decode(line + b'\n{"crc32":%d}\n' % zlib.crc32(line), "x")


def test_commits_that_are_no_commits_are_damage():
    """Not base64, or cut."""
    with pytest.raises(CorruptionError, match="no base64"):
        replace(RECORD, commits="*").decode_commits("x")
    with pytest.raises(CorruptionError, match="x: commit at byte 0"):
        replace(RECORD, commits=RecordEntry.text_of(b"12345678")).decode_commits("x")
