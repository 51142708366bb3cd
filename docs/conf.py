"""The site: `make docs` makes it of the pages here and of the docstrings, in build/docs. It opens from disk."""

from __future__ import annotations

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

from palmette import __version__

project = "palmette"
author = "The palmette authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["weights-*.md", "training-*.md"]  # parts of benchmarks.md, as they were measured

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as readers of Markdown elsewhere have them

default_role = "py:obj"  # `name` in a docstring is a link where there is such a name
highlight_language = "text"
autodoc_typehints = "none"  # signatures have names and defaults; the text says what may be given
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_param = False  # "p, q: …" stays one line
napoleon_use_rtype = False
smartquotes_action = "D"  # dashes; what is quoted is often code

html_theme = "furo"
pygments_style, pygments_dark_style = "friendly", "github-dark"
html_title = "palmette"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["example-report.html"]
html_copy_source = False
html_show_search_summary = False  # it would be read from other pages, which browsers refuse on disk
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c8a", "color-brand-content": "#0b5c8a"},
    "dark_css_variables": {"color-brand-primary": "#6cb8e6", "color-brand-content": "#6cb8e6"},
}


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node, block=False))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="equation">{_mathml(node, block=True)}</div>\n')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, block: bool) -> str:
    """MathML, which browsers draw by themselves: no script, no network."""
    mathml = convert(node.astext(), display="block" if block else "inline")
    mathml = mathml.replace(r"\{", "{").replace(r"\}", "}")  # what convert leaves of \Big\{
    if "\\" in mathml:
        logging.getLogger(__name__).warning("an equation has a command that is not known: %s", node.astext())
    return mathml


def _open_pages(app: Sphinx, tree: nodes.document) -> None:
    """A link to a page that is part of the site as it is opens it; other files are downloads."""
    for link in list(tree.findall(addnodes.download_reference)):
        if link["reftarget"] in html_extra_path:
            page = nodes.reference("", "", *link.children, refuri=link["reftarget"], internal=True)
            link.replace_self(page)


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("doctree-read", _open_pages)
