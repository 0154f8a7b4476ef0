"""Sphinx builds the site from docs/: `sphinx-build -W docs site`, without a network."""

import inspect
import re

from sphinx.util.inspect import stringify_signature

import kudulite

project = "kudulite"
copyright = "the kudulite authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_title = "kudulite"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path: list[str] = []
exclude_patterns = ["peers.json"]

# Links to headings are those of the pages on a code host.
myst_heading_anchors = 3
# A link to a source file of the project stays text: the site has no copies of sources.
suppress_warnings = ["myst.xref_missing"]
# The notebook has its outputs, which a test compares with the code.
nb_execution_mode = "off"

# The button copies what was typed, without prompts and without what was printed.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_copy_empty_lines = False

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "signature"
autodoc_default_options = {
    "members": True,
    "exclude-members": "__init__, __new__",
    "inherited-members": "object,int,tuple,dict",
}
# A longer signature has each parameter in a line of its own.
maximum_signature_line_length = 80
# A class with fewer members needs no table of them.
MEMBERS_MIN = 4
# The first sentence of a paragraph, to its dot or to the colon before an example.
SENTENCE = re.compile(r".*?(?=\. |[.:]$|$)")
_TRAILING_UNDERSCORE = re.compile(r"(\w)_(?=[^\w`]|$)")

# In docstrings `name` is code.
default_role = "code"


def indented_lines_are_code(app, what, name, obj, options, lines):
    """Docstrings show code and tables as indented lines; in reStructuredText these need `::`."""
    text, is_code = [], False
    for line in lines:
        is_indented = line.startswith("    ")
        if is_indented and not is_code:
            text += ["", "::", ""]
        elif is_code and line and not is_indented:
            text.append("")
        is_code = is_indented or (is_code and not line)
        # Outside of code, `name_` would be the name of a link.
        text.append(line if is_code else _TRAILING_UNDERSCORE.sub(r"\1\_", line))
    lines[:] = text


def signature_as_written(app, what, name, obj, options, signature, returns):
    """A signature has the types as the source names them, and nothing that catches mistakes."""
    if what not in ("function", "method") or signature is None:
        return None
    written = inspect.signature(obj)
    shown = [p for p in written.parameters.values() if p.annotation != "Never"]
    if what == "method" and shown and shown[0].name in ("self", "cls"):
        del shown[0]
    text = stringify_signature(written.replace(parameters=shown), unqualified_typehints=True)
    arguments, _, result = text.replace("Unpack[WriteOptions]", "WriteOptions").partition(" -> ")
    return arguments, result or None


def new_session(self, *parameters, **options):
    """Return a new `Session`, with the parameters of `Session`, which explains them."""


# The client has the class itself under this name, which would be shown as an alias.
_of_session = inspect.signature(kudulite.Session.__init__)
new_session.__signature__ = _of_session.replace(return_annotation="Session")


def table_of_members(app, what, name, obj, options, lines):
    """A class begins with a table of its methods and attributes, each with its first sentence."""
    if what != "class":
        return
    rows = list(_members(obj))
    if len(rows) < MEMBERS_MIN:
        return
    lines += ["", ".. list-table::", "   :class: members", ""]
    for member, sentence in rows:
        lines += [f"   * - :py:obj:`{member} <{name}.{member}>`", f"     - {sentence}"]
    lines.append("")


def _members(cls):
    """Yield the public methods and properties of a class with the first sentences about them."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__.split(".")[0] not in ("kudulite", "kudulite_spark"):
            continue
        for member, value in vars(base).items():
            text = inspect.getdoc(value if not inspect.isclass(value) else value.__init__)
            is_shown = callable(value) or isinstance(value, property | classmethod | staticmethod)
            if member.startswith("_") or member in seen or not is_shown or not text:
                continue
            seen.add(member)
            paragraph = " ".join(text.split("\n\n")[0].split())
            yield member, _TRAILING_UNDERSCORE.sub(r"\1\_", SENTENCE.match(paragraph)[0]) + "."


def setup(app):
    """Register the hooks."""
    app.connect("autodoc-process-docstring", indented_lines_are_code)
    app.connect("autodoc-process-docstring", table_of_members)
    app.connect("autodoc-process-signature", signature_as_written)
    kudulite.Client.new_session = new_session
