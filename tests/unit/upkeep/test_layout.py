"""Layouts drawn as text and as a picture: widths are shares of the bytes, fills say the state."""

import struct
import xml.etree.ElementTree as ET
import zlib

import numpy as np

from kudulite.upkeep.layout import TableLayout, encode_png, layout_png, layout_text, tablet_layout
from tests.support.doubles.simulated_upkeep import delta_file, rowset


def drawn(*metas, width=20):
    """The bars of a tablet without their labels."""
    lines = list(layout_text([tablet_layout("t", metas)], width))
    return [lines[0], *(line[:width].rstrip() for line in lines[1:])]


def test_bars_lie_where_their_keys_do():
    """In the order of their keys; touching and overlapping as rowsets do."""
    head, *bars = drawn(rowset(10, 20), rowset(0, 10), rowset(5, 15))
    assert head == "tablet 1 of 1 (t): 3 rowsets, height 1.67"
    starts = [len(bar) - len(bar.lstrip()) for bar in bars]
    assert starts == sorted(starts) and starts[0] == 0
    assert len(bars[-1]) == 20


def test_a_bar_says_what_state_its_rowset_is_in():
    """Clean, with deltas, of the past only; a rowset of one key is still seen."""
    metas = [
        rowset(0, 9, 3 << 20, 5000),
        rowset(0, 9, redo=[delta_file()], undo=[delta_file(), delta_file()]),
        rowset(0, 9, delete_timestamp=5),
        rowset(4, 4),
    ]
    _, *lines = layout_text([tablet_layout("t", metas)], 10)
    assert [line[:10] for line in lines] == ["█" * 10, "▒" * 10, "░" * 10, "    █     "]
    assert lines[0].endswith("   3.0 MiB         5,000 rows")
    assert lines[1].endswith("rows  1 redo, 2 undo")
    assert lines[2].endswith("rows  ended")


def test_an_empty_tablet_has_a_line():
    """No rowset, height 0."""
    assert drawn() == ["tablet 1 of 1 (t): 0 rowsets, height 0.00"]
    assert decoded(layout_png([tablet_layout("t", ())])).shape == (20, 1020, 3)


def test_the_picture_has_the_colours_of_the_states():
    """White around them; green, orange and grey bars from one another."""
    metas = [rowset(0, 9), rowset(0, 9, redo=[delta_file()]), rowset(0, 9, delete_timestamp=5)]
    pixels = decoded(layout_png([tablet_layout("t", metas)], 100))
    assert pixels.shape == (50, 120, 3)
    column = pixels[:, 60]
    assert [tuple(column[y]) for y in (0, 12, 22, 32, 49)] == [
        (255, 255, 255), (46, 125, 50), (239, 108, 0), (189, 189, 189), (255, 255, 255),
    ]  # fmt: skip


def test_a_png_is_what_its_specification_says():
    """Signature, header, deflated rows and checksums; read back by hand."""
    pixels = np.random.default_rng(1).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    assert (decoded(encode_png(pixels)) == pixels).all()


def decoded(content: bytes) -> np.ndarray:
    """The pixels of a PNG as `encode_png` writes them; every chunk's checksum is checked."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, payload = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", content, at + 8 + length)
        assert crc == zlib.crc32(kind + payload)
        chunks[kind] = payload
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_a_notebook_shows_the_picture_and_print_the_text():
    """A bar of the SVG for each rowset, with its keys in a title; nothing needs a library."""
    metas = [rowset(0, 9, 3 << 20, 5000), rowset(5, 14, redo=[delta_file()])]
    found = TableLayout((tablet_layout("<t>", metas),))
    picture = ET.fromstring(found.to_svg(400))
    bars = [each for each in picture if each.tag.endswith("rect")]
    assert [bar.get("fill") for bar in bars] == ["rgb(46, 125, 50)", "rgb(239, 108, 0)"]
    assert float(bars[1].get("x")) + float(bars[1].get("width")) <= 400
    assert "5,000 rows" in bars[0][0].text and bars[0][0].text.startswith("keys ")
    waiting = TableLayout((tablet_layout("t", (), 4000),))
    assert repr(waiting).endswith("0 rowsets, height 0.00; 4,000 rows in memory are not drawn")
    assert found.to_svg() in found._repr_html_() and "with updates" in found._repr_html_()
    assert repr(found).splitlines() == list(layout_text(found.tablets, 60))
    assert decoded(found.to_png(100)).shape[1] == 120
