"""First lines of the product's docstrings: they say what a thing does or is, in its own words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from compat_tests.support.paths import ROOT

CLAUSE = re.compile(r"(Returns |Yields )?[Ww]hat\b")
"""`Returns the tolerance`, `The end of a name`; `What is allowed` is a riddle until its end."""

QUESTION = re.compile(r"(How|Where|Whether|Which|When|Who|Why)\b")
"""A module or a class is a thing or does one; a property may be `Whether it is`, or `How many`."""

NO_VERB = re.compile(r"(What|Whether|Which|While|How|When|Where|Who|Why|That|Is|Does so|The|An?)\b")
"""A function does something: its docstring begins with a verb, such as `Returns whether`."""


def documented(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yields what has a docstring, values with one below them included, and its first line."""
    for node in ast.walk(tree):
        statements = getattr(node, "body", None)
        if not isinstance(statements, list):
            continue
        for position, statement in enumerate(statements):
            text = getattr(getattr(statement, "value", None), "value", None)
            if isinstance(statement, ast.Expr) and isinstance(text, str):
                lines = text.strip().splitlines() or [""]
                yield statements[position - 1] if position else node, lines[0]


def is_function(node: ast.AST) -> bool:
    """Returns whether a node is a function that is called as one: no property, no setter."""
    if not isinstance(node, ast.FunctionDef):
        return False
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return not any("property" in each or each.endswith(".setter") for each in decorators)


def riddles(tree: ast.AST) -> list[str]:
    """Returns the first lines that break a rule."""
    return [
        line
        for node, line in documented(tree)
        if CLAUSE.match(line)
        or (is_function(node) and NO_VERB.match(line))
        or (isinstance(node, (ast.Module, ast.ClassDef)) and QUESTION.match(line))
    ]


@pytest.mark.parametrize("package", ["tf2_engine", "estimator_bridge"])
def test_a_docstring_says_what_a_thing_does(package: str) -> None:
    """No docstring begins with a "what" clause, and that of a function begins with a verb."""
    sources = sorted((ROOT / package).rglob("*.py"))
    assert sources
    broken = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if (lines := riddles(ast.parse(path.read_text())))
    }
    assert broken == {}


def test_every_kind_of_docstring_is_read() -> None:
    """Modules, classes, functions, properties and values are; a property may name what it is."""
    source = '''"""What a."""
B = 1
"""What b."""
class C:
  """What c."""
  d: int
  """The d."""
  @property
  def e(self):
    """Whether e."""
  @functools.cached_property
  def f(self):
    """What f."""
  def g(self):
    """Whether g."""
  def i(self):
    """Returns what is i."""
    def h():
      """The h."""
      return """What is no docstring"""
class J:
  """How j."""
'''
    lines = riddles(ast.parse(source))
    wanted = ["How j.", "Returns what is i.", "The h."]
    assert sorted(lines) == [*wanted, "What a.", "What b.", "What c.", "What f.", "Whether g."]
