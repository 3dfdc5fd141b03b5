"""Sphinx's settings; `make docs` builds the pages with warnings as errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the extensions beside this file

project = "tracemill"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "docstrings",
    "public_names",
    "registered",
]
exclude_patterns = ["_build", "jupyter_execute"]
default_role = "code"  # docstrings write `code` as Markdown does

html_theme = "furo"
html_theme_options = {"dark_css_variables": {"mystnb-source-border-color": "#3d444d"}}
html_title = "tracemill"
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88

myst_heading_anchors = 3
nb_execution_mode = "force"  # what the notebooks show is what the code of today does
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_merge_streams = True
