"""Options: every documented one is parsed, any other is refused with the known ones listed."""

import pytest

from kudulite.errors import OptionError
from kudulite.tablet.operation import OPERATION_NAMES
from kudulite_spark.options import (
    KNOWN_NAMES,
    ReadOptions,
    WriteOptions,
    local_path,
    named_options,
)


def test_read_options_have_the_documented_defaults():
    """A bare path reads all columns of all rows as of now, without pushdown."""
    read = ReadOptions.parse({"path": "/t"})
    assert read == ReadOptions("/t", None, None, None, False, None, False)


def test_every_read_option_is_parsed_whatever_the_case_of_its_name():
    """Spark lower-cases names; the typed form is what the reader works with."""
    read = ReadOptions.parse(
        {
            "PATH": "file:/data/t%20x",
            "columns": " a , b",
            "FILTER": "a = 1",
            "snapshottimestamp": "2026-11-21",
            "pushDown": "TRUE",
            "splitsizebytes": "64m",
            "faulttolerantscan": "true",
        }
    )
    assert read == ReadOptions("/data/t x", ("a", "b"), "a = 1", "2026-11-21", True, 64 << 20, True)


def test_every_write_option_is_parsed():
    """The forms are those of docs/spark_write.md."""
    write = WriteOptions.parse(
        {
            "path": "/t",
            "operation": "INSERT_IGNORE",
            "orderingColumn": "seq",
            "primaryKey": "a,b",
            "hashPartitions": "a:4; b,c:8",
            "rangePartitions": '{"columns": ["a"], "bounds": [[null, 3], [3, null]]}',
            "ignoreNull": "true",
            "repartition": "false",
            "applicationId": "job",
            "applicationVersion": "-7",
        }
    )
    assert write == WriteOptions(
        path="/t",
        operation="insert_ignore",
        ordering_column="seq",
        ignore_null=True,
        application_id="job",
        application_version=-7,
        primary_key=("a", "b"),
        hash_partitions=((("a",), 4), (("b", "c"), 8)),
        range_partitions={"columns": ["a"], "bounds": [[None, 3], [3, None]]},
    )


@pytest.mark.parametrize("parse", [ReadOptions.parse, WriteOptions.parse])
def test_unknown_option_names_itself_and_all_known_ones(parse):
    """The message is enough to correct the call."""
    with pytest.raises(OptionError) as caught:
        parse({"path": "/t", "snapshotTs": "1"})
    assert str(caught.value) == f"unknown option 'snapshotTs'; known: {', '.join(KNOWN_NAMES)}"


def test_unknown_operation_lists_the_eight():
    """Also a read refuses it: a view is written with the options that it is read with."""
    for parse in (ReadOptions.parse, WriteOptions.parse):
        with pytest.raises(OptionError, match=f"unknown operation 'merge'.*{OPERATION_NAMES[-1]}"):
            parse({"path": "/t", "operation": "merge"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'path' is missing.*CREATE TEMPORARY VIEW"),
        ({"paths": '["/a", "/b"]'}, "one path, 2 given"),
        ({"path": "s3:bucket/t"}, "directory that every Spark process mounts"),
        ({"path": "/t", "columns": "a,,b"}, "empty name"),
        ({"path": "/t", "columns": "a,b,a"}, "a given more than once"),
        ({"path": "/t", "columns": '["a"'}, "is not JSON"),
        ({"path": "/t", "primaryKey": " "}, "names no column"),
        ({"path": "/t", "pushdown": "yes"}, "'pushdown' is true or false, found 'yes'"),
        ({"path": "/t", "splitSizeBytes": "big"}, "positive number of bytes.*'big'"),
        ({"path": "/t", "splitSizeBytes": "0"}, "positive number of bytes"),
        ({"path": "/t", "hashPartitions": "a"}, "'a' is not 'columns:buckets'"),
        ({"path": "/t", "hashPartitions": "a:1"}, "at least 2"),
        ({"path": "/t", "rangePartitions": "[1]"}, "expected a JSON dict"),
        ({"path": "/t", "rangePartitions": '{"bounds": []}'}, "JSON with 'columns'"),
        *(
            (
                {"path": "/t", "rangePartitions": f'{{"columns": ["a"], "bounds": [{wrong}]}}'},
                "is \\[10, 20, \\[",
            )
            for wrong in (
                "[1]",
                "[1, 2, 3]",
                "[1, 2, [], 4]",
                '[1, 2, [["a"]]]',
                '[1, 2, ["a", 4]]',
            )
        ),
        ({"path": "/t", "applicationId": "x"}, "need each other"),
        (
            {"path": "/t", "applicationId": "x", "applicationVersion": "one"},
            "is an integer, found 'one'",
        ),
        ({"path": "/t", "operation": "delete", "operationColumn": "op"}, "exclude each other"),
    ],
)
def test_bad_values_say_what_is_expected(options, message):
    """Every value is checked, in whichever direction the option is used."""
    for parse in (ReadOptions.parse, WriteOptions.parse):
        with pytest.raises(OptionError, match=message):
            parse(options)


@pytest.mark.parametrize("name", ["filter", "snapshotTimestamp"])
def test_a_view_of_some_rows_or_of_the_past_takes_no_writes(name):
    """The rows written would not be seen by reading the same view."""
    with pytest.raises(OptionError, match="belongs to a read"):
        WriteOptions.parse({"path": "/t", name: "2020-01-01"})


def test_what_sparks_catalog_adds_is_no_option():
    """CREATE TABLE hands over its own properties beside the user's."""
    given = {"path": "/t", "owner": "me", "provider": "kudulite", "option.path": "/t"}
    assert named_options(given) == {"path": "/t"}


def test_local_paths_keep_what_looks_like_a_scheme_only_inside():
    """Only a leading `scheme:` makes a URL; percent signs of plain paths stay."""
    assert local_path("file:///a/b%25c") == "/a/b%c"
    assert local_path("/a/b%25c:d") == "/a/b%25c:d"
    assert local_path("rel/ative") == "rel/ative"


def test_the_options_of_changes_are_parsed():
    """Changes begin after a moment, and end at one or now."""
    read = ReadOptions.parse({"path": "/t", "startTimestamp": "1", "endTimestamp": "2"})
    assert (read.is_of_changes, read.start_timestamp, read.end_timestamp) == (True, "1", "2")
    assert read.change_images == "after"
    read = ReadOptions.parse({"path": "/t", "startTimestamp": "1", "changeImages": "BOTH"})
    assert (read.end_timestamp, read.change_images) == (None, "both")
    assert not ReadOptions.parse({"path": "/t"}).is_of_changes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endTimestamp": "2"}, "option 'endTimestamp' .'2'. .*'startTimestamp'"),
        ({"changeImages": "both"}, "option 'changeImages' .'both'. .*'startTimestamp'"),
        ({"startTimestamp": "1", "snapshotTimestamp": "2"}, "exclude each other"),
        ({"startTimestamp": "1", "changeImages": "before"}, "'before' is unknown.*after, both"),
    ],
)
def test_options_of_changes_that_do_not_fit_are_refused(options, message):
    """The message says what is missing, or what to choose from."""
    with pytest.raises(OptionError, match=message):
        ReadOptions.parse({"path": "/t", **options})


@pytest.mark.parametrize("name", ["startTimestamp", "endTimestamp", "changeImages"])
def test_changes_cannot_be_written_to(name):
    """As a filtered view or a view of the past."""
    with pytest.raises(OptionError, match=f"option '{name}' belongs to a read"):
        WriteOptions.parse({"path": "/t", name: "1"})


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("mergeschema", "write 'schemaEvolution'"),
        ("timestampasof", "write 'snapshotTimestamp'"),
        ("versionasof", "write 'snapshotTimestamp' with a moment: a version's number is none"),
        ("as-of-timestamp", "write 'snapshotTimestamp', with ISO time or microseconds"),
        ("replacewhere", r"delete the rows with Table.delete\(where=…\), then append"),
        ("primary_key", "write 'primaryKey'"),
    ],
)
def test_the_word_of_another_store_is_answered_with_the_own_one(word, advice):
    """Before the list of all options."""
    with pytest.raises(OptionError, match=f"unknown option '{word}'; {advice}.*; known: "):
        WriteOptions.parse({"path": "/t", word: "x"})
