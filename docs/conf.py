"""Configures Sphinx, which makes the site of the pages, the notebooks and the docstrings: `make docs`."""

import importlib.metadata
import pathlib
import sys
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx.application import Sphinx

# The package, and the extension `reference` beside this file.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]

project, author = "jaxrl_dist", "the authors of jaxrl_dist"
project_copyright = author
version = release = importlib.metadata.version("jaxrl-dist")
# The sources lie in the root, so that a link between pages and notebooks is the same here and in the repository.
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "benchmarks/reference/README.md"]
exclude_patterns = [".*", "build", "runs", "site", "tests"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
extensions += ["reference"]

html_theme = "furo"
html_title = "jaxrl_dist"
html_theme_options = {"navigation_with_keys": True}
html_static_path, templates_path = ["static"], ["templates"]
html_css_files = ["extra.css", "keyboard.css"]
html_js_files = ["scrolling.js", "from_disk.js"]
html_show_sphinx = html_copy_source = False
html_math_renderer = "mathml"
# Dashes alone: docstrings quote what is code.
smartquotes_action = "D"

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
# A link to a name of this package that the reference lacks is a warning; other projects have pages of their own.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!jaxrl_dist\.).*|jaxrl_dist\.\w+\.resolve\.ConfigT|jaxrl_dist\.training\.predicting\.State")
]
autoclass_content = "both"
# The heading names the module.
add_module_names = False
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_attr_annotations = False
# Keeps the end of a name such as lambda_.
strip_signature_backslash = True
napoleon_use_rtype = False
napoleon_numpy_docstring = False


def setup(app: Sphinx) -> None:
    """Says how equations are written."""
    app.add_html_math_renderer("mathml", (_write_math(False), None), (_write_math(True), None))
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
