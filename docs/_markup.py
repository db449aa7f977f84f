"""Two things Markdown lacks, on pages and in docstrings alike: equations, and doctests without a fence.

Equations (`$$` on lines of its own around one, `$x$` in a line, `.. math::` in docstrings) become MathML when the site
is built. Browsers show that by themselves: no script, no font, no network.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the extension; mkdocstrings reads the same list."""
    config.markdown_extensions.append(Markup())  # type: ignore[arg-type]
    return config


class Markup(Extension):
    """Equations and doctests."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register before fences are taken out (25) and after white space is put in order (30)."""
        md.preprocessors.register(_Blocks(md), "aol-blocks", 28)
        md.inlinePatterns.register(_Inline(r"(?<![\\$\w])\$([^$\n]+?)\$(?![\w$])", md), "aol-maths", 185)


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802
        return self.md.htmlStash.store(convert(m.group(1))), m.start(0), m.end(0)


class _Blocks(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return list(self._run(lines))

    def _run(self, lines: list[str]) -> Iterator[str]:
        rest = iter([*lines, ""])
        for line in rest:
            bare, margin = line.strip(), line[: len(line) - len(line.lstrip())]
            if bare.startswith("```"):
                yield line
                yield from _through(rest, lambda each, mark=margin: each.strip() == "```" and each.startswith(mark))
            elif bare == "$$":
                found = list(_through(rest, lambda each: each.strip() == "$$"))[:-1]
                yield from ("", margin + self._equation(" ".join(found)), "")
            elif bare.startswith(".. math::"):
                found = list(_through(rest, lambda each: not each.strip()))
                yield from ("", margin + self._equation(" ".join([bare[len(".. math::") :], *found])), "")
            elif bare.startswith(">>> "):
                found = [line, *_through(rest, lambda each: not each.strip())]
                code = textwrap.dedent("\n".join(found)).rstrip().splitlines()
                yield from (f"{margin}{each}" for each in ("```pycon", *code, "```", ""))
            else:
                yield line

    def _equation(self, latex: str) -> str:
        # A blank command of our own sources; MathML knows \text and \quad, not every delimiter size.
        plain = re.sub(r"\\[bB]ig+\b", "", latex).strip()
        return self.md.htmlStash.store(f'<p class="equation">{convert(plain, display="block")}</p>')


def _through(lines: Iterator[str], last: object) -> Iterator[str]:
    """Yield lines up to and with the one that ends a block."""
    assert callable(last)
    for line in lines:
        yield line
        if last(line):
            return
