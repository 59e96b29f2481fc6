"""How Sphinx makes the site of the pages, the notebooks and the docstrings: `make docs`."""

import importlib.metadata
import pathlib
import re
import sys
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

project, author = "jaxrl_dist", "the authors of jaxrl_dist"
project_copyright = author
version = release = importlib.metadata.version("jaxrl-dist")
# The sources lie in the root, so that a link between pages and notebooks is the same here and in the repository.
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "benchmarks/reference/README.md"]
exclude_patterns = [".*", "build", "runs", "site", "tests"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]

html_theme = "furo"
html_title = "jaxrl_dist"
html_theme_options = {"navigation_with_keys": True}
html_static_path, templates_path = ["static"], ["templates"]
html_css_files = ["extra.css", "keyboard.css"]
html_js_files = ["scrolling.js", "from_disk.js"]
html_show_sphinx = html_copy_source = False
html_math_renderer = "mathml"

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False
napoleon_numpy_docstring = False


def setup(app: Sphinx) -> None:
    """Connects what follows to Sphinx."""
    app.add_html_math_renderer("mathml", (_write_math(False), None), (_write_math(True), None))
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _escape)
    # After the theme, which makes the navigation at the usual priority of 500.
    app.connect("html-page-context", _mend, priority=900)


def _write_math(is_block: bool) -> Any:
    """Writes equations as MathML, which a browser draws by itself: no script and no font is fetched."""

    def write(writer: Any, node: nodes.Node) -> None:
        tree = latex2mathml.tex2mathml(node.astext(), as_block=is_block)
        writer.body.append(f'<div class="math">{tree}</div>' if is_block else tree)
        raise nodes.SkipNode

    return write


def _mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Gives the headings of the navigation a level, and the list of sources the form of a list, for who cannot see."""
    navigation = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')
    if page == "_modules/index":
        title, _, items = context["body"].partition("<ul>")
        context["body"] = f"{title}<ul>{items.replace('<ul>', '').replace('</ul>', '')}</ul>"


def _skip(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool:
    """Leaves out the fields of records, whose docstrings list them with what they mean."""
    return skip or type(member).__name__ == "_tuplegetter"


def _escape(app: Sphinx, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Keeps reStructuredText from reading * and | as markup: docstrings have none but backquotes."""
    for i, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[i] = "".join(part if part.startswith("`") else re.sub(r"([*|])", r"\\\1", part) for part in parts)
