"""How the pages write values."""

from kudulite.ui.rendering import with_commands


def test_commands_of_a_text_are_code_and_nothing_else_is_markup():
    """A text may have a name of a table in it."""
    assert str(with_commands("run `kudulite check <t>` & see")) == (
        "run <code>kudulite check &lt;t&gt;</code> &amp; see"
    )
    assert str(with_commands("a ` alone <b>")) == "a ` alone &lt;b&gt;"
