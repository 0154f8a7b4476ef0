"""Sphinx builds the site from docs/: `sphinx-build -W docs site`, without a network."""

import re

project = "kudulite"
copyright = "the kudulite authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "kudulite"
templates_path: list[str] = []
exclude_patterns = ["peers.json"]

# Links to headings are those of the pages on a code host.
myst_heading_anchors = 3
# A link to a source file of the project stays text: the site has no copies of sources.
suppress_warnings = ["myst.xref_missing"]

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "signature"
autodoc_default_options = {
    "members": True,
    "exclude-members": "__init__, __new__",
    "inherited-members": "object,int,tuple,dict",
}
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


def setup(app):
    """Register the hook."""
    app.connect("autodoc-process-docstring", indented_lines_are_code)
