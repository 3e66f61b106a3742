# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Lengths of files and functions."""

import ast
import pathlib
import re
from collections.abc import Iterator

MAX_FILE = 500
MAX_TEST_FILE = 600
MAX_FUNCTION = 50
CODE = {".cc", ".h", ".hpp", ".c", ".cu", ".cuh", ".py", ".sh", ".proto"}
CPP = {".cc", ".h", ".hpp", ".c", ".cu", ".cuh"}

# A brace that opens one of these is no function.
_NO_FUNCTION = re.compile(r"^\s*(namespace|class|struct|enum|union|extern\s+\"C\"|template\s*<[^>]*>\s*(class|struct))\b")
_LITERALS = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
                       re.DOTALL)
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)


def check(root: pathlib.Path, files: list[pathlib.Path]) -> Iterator[str]:
    for path in files:
        if path.suffix not in CODE and path.name != "CMakeLists.txt":
            continue
        source = (root / path).read_text()
        lines = source.count("\n")
        limit = MAX_TEST_FILE if path.parts[0] == "tests" else MAX_FILE
        if lines > limit:
            yield f"{path}:{limit + 1}: the file has {lines} lines, more than {limit}"
        functions = cpp_functions(source) if path.suffix in CPP else python_functions(path, source)
        for name, start, length in functions:
            if length > MAX_FUNCTION:
                yield f"{path}:{start}: function {name} has {length} lines, more than {MAX_FUNCTION}"


def python_functions(path: pathlib.Path, source: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function."""
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def cpp_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each outermost function, by counting braces."""
    code = without_literals(source)
    scopes: list[tuple[bool, int, str]] = []  # (is a function, line of its head, name)
    head_start = 0
    for match in re.finditer(r"[{};]", code):
        if match[0] == ";" and _open_parentheses(code[head_start:match.start()]) == 0:
            head_start = match.end()
        elif match[0] == "{":
            head = code[head_start:match.start()]
            inside = any(scope[0] for scope in scopes)
            is_value = head.rstrip().endswith("=")
            is_function = not inside and ")" in head and not is_value and not _NO_FUNCTION.match(head)
            skipped = len(head) - len(head.lstrip())
            scopes.append((is_function, code.count("\n", 0, head_start + skipped) + 1, _name(head)))
            head_start = match.end()
        elif match[0] == "}" and scopes:
            is_function, line, name = scopes.pop()
            if is_function:
                yield name, line, code.count("\n", 0, match.end()) + 2 - line
            head_start = match.end()


def without_literals(source: str) -> str:
    """The source with comments, strings, characters and preprocessor lines blanked, lines kept."""
    for literal in (_LITERALS, _PREPROCESSOR):
        source = literal.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    return source


def _open_parentheses(text: str) -> int:
    return text.count("(") - text.count(")")


def _name(head: str) -> str:
    found = re.search(r"([\w:~]+|operator\S+)\s*\(", head)
    return found[1] if found else "?"
