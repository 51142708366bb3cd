"""The site: `make docs` makes it of the pages, here and of results/, and of the docstrings. It opens from disk."""

from __future__ import annotations

import logging as standard_logging
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from palmette import __version__

sys.path.insert(0, str(Path(__file__).parent))
from command_tables import reference

project = "palmette"
author = "The palmette authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "results/*.md", "results/**/*.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "runs", "src"]
# A list of pages may still be empty. Sphinx gives this warning no type by which it could be suppressed.
standard_logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: getattr(record, "subtype", "") != "empty_glob"
)

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as readers of Markdown elsewhere have them

default_role = "py:obj"  # `name` in a docstring is a link where there is such a name
highlight_language = "text"
autosummary_generate = False  # tables only; what they list is on the same page
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
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
html_extra_path = ["example-report.html"]  # beside docs/ in the site
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


def _open_what_is_here(app: Sphinx, tree: nodes.document) -> None:
    """A link to the report opens it, one to a folder opens its README; other files than pages are downloads."""
    for link in list(tree.findall(addnodes.download_reference)):
        name = Path(link["reftarget"]).name
        if name in html_extra_path:
            address = "../" * app.env.docname.count("/") + name
            link.replace_self(nodes.reference("", "", *link.children, refuri=address, internal=True))
    here = Path(app.env.doc2path(app.env.docname)).parent
    for link in list(tree.findall(addnodes.pending_xref)):
        if link["reftype"] == "myst" and (folder := (here / link["reftarget"]).resolve()).is_dir():
            readme = app.env.path2doc(folder / "README.md")
            if readme in app.env.found_docs:
                link.attributes |= {"refdomain": "doc", "reftarget": readme, "reftargetid": None}
            else:
                link.replace_self(link.children)


def _complete(app: Sphinx, name: str, source: list[str]) -> None:
    """Summaries of the names on an API page, at its mark, and all studies below the page of results."""
    if name == "results/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*/*\n```\n"
    names = re.findall(r"^\.\. auto(?:function|class):: (\S+)$", source[0], re.MULTILINE)
    rows = "".join(f"   ~{entry if '.' in entry else f'palmette.{entry}'}\n" for entry in names)
    table = f"```{{eval-rst}}\n.. autosummary::\n   :nosignatures:\n\n{rows}```"
    source[0] = source[0].replace("<!-- summary -->", table)


class _Command(SphinxDirective):
    """The reference of a command, as Markdown."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(Path(__file__).with_name("command_tables.py")))
        self.content = StringList(reference(self.arguments[0]).splitlines(), self.get_source_info()[0])
        return self.parse_content_to_nodes()


def _start(app: Sphinx, error: Exception | None) -> None:
    start = '<!doctype html><title>palmette</title><meta http-equiv="refresh" content="0; url=docs/index.html">'
    (Path(app.outdir) / "index.html").write_text(start + '<a href="docs/index.html">palmette</a>')


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_directive("palmette", _Command)
    app.connect("source-read", _complete)
    app.connect("doctree-read", _open_what_is_here, priority=100)  # before files are collected
    app.connect("build-finished", _start)
