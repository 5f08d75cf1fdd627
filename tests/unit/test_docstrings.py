"""What a user installs explains itself: every public name of `shared/` has a docstring.

A *public name* is a module, a class, a function or a method that no part of its path marks as
private by a leading `_`. Three kinds of names do not count, since a docstring of theirs would
repeat one: dunder methods (the class says what they do), overloads, and methods that a documented
base class of the same package declares. A name counts as documented if its docstring stands alone,
and if it names what its own body raises; programming errors, which are assertions, are not named.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shared" / "bottomless"
WANTED = 0.95

FRAGMENT = re.compile(
    r"(?:The same|Same|As|Of|By|With|Without|For|From|And|Or|But|That|Those|These|Which|Who|Whoever"
    r"|Whose|Raises)\b",
)
"""A docstring that begins so leans on something that a tooltip does not show, or has no subject."""
LEANING = re.compile(r"\b[Rr]aises as\b|\bsee above\b|\bas above\b|\bthe same as above\b")

NUMBERS = re.compile(r"(?:int|float)\b")
SAID_BY_NAME = re.compile(
    r"offset|count|bytes|size|position|crc|epoch|version|generation|sequence|revision|status|port"
    r"|height|number|index|fanout|duplicates|seconds|_ms$|timestamp|percent|level"
)
"""Words of the glossary that are a unit in themselves: sizes and positions are in bytes, offsets
and counts are numbers of records or of what is named, timestamps are in ms since 1970."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Public:
    """A public name, where it is, and what its docstring says."""

    path: str
    name: str
    docstring: str
    raised: frozenset[str]

    @property
    def place(self) -> str:
        return f"{self.path}:{self.name}"

    def faults(self) -> list[str]:
        if not self.docstring:
            return ["it has no docstring"]
        found = []
        if FRAGMENT.match(self.docstring):
            found.append("its docstring does not stand alone")
        if LEANING.search(self.docstring):
            found.append("its docstring leans on another one")
        if not self.docstring.splitlines()[0].rstrip().endswith((".", "?", ":")) and not (
            _first_sentence_ends(self.docstring)
        ):
            found.append("its first paragraph is no sentence")
        if self.raised and "Raises:" not in self.docstring:
            found.append(f"it raises {', '.join(sorted(self.raised))} and does not say so")
        return found


def _first_sentence_ends(docstring: str) -> bool:
    return docstring.partition("\n\n")[0].rstrip().endswith((".", "?", ":"))


@cache
def public_names() -> tuple[Public, ...]:
    sources = [path for path in sorted(PACKAGE.rglob("*.py")) if not _is_private(path)]
    trees = {path: ast.parse(path.read_text()) for path in sources}
    documented = _documented_methods(list(trees.values()))
    return tuple(name for path, tree in trees.items() for name in _names(path, tree, documented))


def _is_private(path: Path) -> bool:
    return any(
        part.startswith("_") and part != "__init__.py" for part in path.relative_to(PACKAGE).parts
    )


def _names(path: Path, tree: ast.Module, documented: dict[str, set[str]]) -> Iterator[Public]:
    where = path.relative_to(ROOT).as_posix()
    yield Public(where, "module", ast.get_docstring(tree) or "", frozenset())

    def within(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[Public]:
        for child in node.body:
            if not isinstance(child, Definition) or child.name.startswith("_"):
                continue
            if isinstance(child, ast.ClassDef):
                said = ast.get_docstring(child) or ""
                yield Public(where, prefix + child.name, said, frozenset())
                yield from within(child, f"{prefix}{child.name}.")
            elif not _is_said_elsewhere(child, node, documented):
                said = ast.get_docstring(child) or ""
                yield Public(where, prefix + child.name, said, frozenset(_raised(child)))

    yield from within(tree, "")


def _is_said_elsewhere(
    method: ast.FunctionDef | ast.AsyncFunctionDef,
    owner: ast.Module | ast.ClassDef,
    documented: dict[str, set[str]],
) -> bool:
    marks = {ast.unparse(mark) for mark in method.decorator_list}
    if marks & {"overload", "typing.overload"} or any(mark.endswith(".setter") for mark in marks):
        return True
    if not isinstance(owner, ast.ClassDef) or ast.get_docstring(method):
        return False
    return any(method.name in documented.get(_plain(base), ()) for base in owner.bases)


def _documented_methods(trees: list[ast.Module]) -> dict[str, set[str]]:
    """Of each class of the package, the methods that have a docstring, inherited ones too."""
    classes = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def of(name: str) -> set[str]:
        if name not in classes:
            return set()
        node = classes[name]
        own = {
            child.name
            for child in node.body
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(child)
        }
        return own.union(*(of(_plain(base)) for base in node.bases))

    return {name: of(name) for name in classes}


def _plain(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _raised(function: ast.AST) -> Iterator[str]:
    """The errors that a body itself raises by their name: not those of a function inside of it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, Definition | ast.Lambda):
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            error = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            named = ast.unparse(error)
            if named != "typer.Exit":  # the end of a command, with its exit code
                yield named
        yield from _raised(child)


def test_nearly_every_public_name_of_what_users_install_has_a_docstring() -> None:
    names = public_names()
    assert len(names) > 1_000
    missing = [name.place for name in names if not name.docstring]
    share = 1 - len(missing) / len(names)
    assert share >= WANTED, f"{share:.1%} of {len(names)}; without one: {missing}"


def test_docstrings_of_what_users_install_stand_alone_and_name_what_is_raised() -> None:
    faults = {name.place: name.faults() for name in public_names() if name.docstring}
    assert {place: found for place, found in faults.items() if found} == {}


def test_every_number_of_a_public_value_has_its_unit_in_its_name_or_beside_it() -> None:
    found, without = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                for field, said in _numbers(node):
                    found += 1
                    known = SAID_BY_NAME.search(field) or said
                    if not known and field not in (ast.get_docstring(node) or ""):
                        without.append(f"{path.relative_to(ROOT)}:{node.name}.{field}")
    assert found > 150
    assert without == []


def _numbers(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """The public fields of a class that are numbers, and whether a docstring follows each."""
    for child, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            number = NUMBERS.match(ast.unparse(child.annotation))
            if number and not child.target.id.startswith("_"):
                said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                yield child.target.id, said


@pytest.mark.parametrize(
    ("docstring", "raised", "said"),
    [
        ("", frozenset(), "no docstring"),
        ("The same for a tenant.", frozenset(), "does not stand alone"),
        ("Whoever asks gets it.", frozenset(), "does not stand alone"),
        ("Read one. Raises as `read`.", frozenset(), "leans on another"),
        ("Read it", frozenset(), "no sentence"),
        ("Read it.", frozenset({"Corrupt"}), "raises Corrupt"),
    ],
)
def test_a_docstring_that_says_too_little_is_found(
    docstring: str, raised: frozenset[str], said: str
) -> None:
    (fault,) = Public("a.py", "read", docstring, raised).faults()
    assert said in fault


def test_a_whole_docstring_has_no_fault() -> None:
    whole = "Read it.\n\nRaises:\n    Corrupt: it is damaged."
    assert Public("a.py", "read", whole, frozenset({"Corrupt"})).faults() == []
