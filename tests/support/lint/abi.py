# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""dmuon.h against its Python copy: constants, structs and functions of _abi.py."""

import ast
import pathlib
import re
from collections.abc import Iterator

HEADER = "client/include/dmuon/dmuon.h"
PYTHON = "client/python/dmuon_client/_abi.py"

# C type -> ctypes type of a struct's field.
SCALARS = {"size_t": "c_size_t", "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64",
           "uint64_t": "c_uint64", "double": "c_double", "const char*": "c_char_p",
           "const int64_t*": "ctypes.POINTER(c_int64)", "const double*": "ctypes.POINTER(c_double)"}


def check(root: pathlib.Path, files: list[pathlib.Path]) -> Iterator[str]:
    present = {str(path) for path in files}
    if HEADER not in present or PYTHON not in present:
        return
    header = re.sub(r"/\*.*?\*/", " ", (root / HEADER).read_text(), flags=re.DOTALL)
    tree = ast.parse((root / PYTHON).read_text())
    yield from _compare("constant", constants_of_header(header), constants_of_python(tree))
    yield from _compare("struct", structs_of_header(header), structs_of_python(tree))
    names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for function in re.findall(r"^DMUON_API\s[^;(]*?(\w+)\(", header, re.MULTILINE):
        if function not in names:
            yield f"{PYTHON}:1: function {function} of dmuon.h is not declared"


def _compare(kind: str, header: dict, python: dict) -> Iterator[str]:
    for name in sorted(header.keys() | python.keys()):
        if name not in python:
            yield f"{PYTHON}:1: {kind} {name} of dmuon.h is missing"
        elif name not in header:
            yield f"{PYTHON}:1: {kind} {name} is not in dmuon.h"
        elif header[name] != python[name]:
            yield f"{PYTHON}:1: {kind} {name} differs: header {header[name]}, python {python[name]}"


def constants_of_header(header: str) -> dict[str, int]:
    values = {name: int(value) for name, value in re.findall(r"#define (DMUON_\w+) (\d+)$", header, re.MULTILINE)}
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", header, re.DOTALL):
        values.update((name, int(value)) for name, value in re.findall(r"(DMUON_\w+) = (\d+)", body))
    return values


def constants_of_python(tree: ast.Module) -> dict[str, int]:
    return {target.id: node.value.value
            for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id.startswith("DMUON_") and isinstance(node.value.value, int)}


def structs_of_header(header: str) -> dict[str, list[tuple[str, str]]]:
    """Name -> fields in order, each with the ctypes spelling of its type."""
    return {name: [_field(line.strip()) for line in body.split(";") if line.strip()]
            for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", header, re.DOTALL)}


def _field(declaration: str) -> tuple[str, str]:
    kind, name, array = re.fullmatch(r"(.+?)\s*\b(\w+)(?:\[(\w+)\])?", declaration).groups()
    kind = re.sub(r"\s+\*", "*", kind)
    # An enum is an int of 32 bits in every ABI that we support; other names are structs of ours.
    spelled = SCALARS.get(kind, "c_int32" if kind.endswith("_t") else kind)
    return (name, f"{spelled} * {array}" if array else spelled)


def structs_of_python(tree: ast.Module) -> dict[str, list[tuple[str, str]]]:
    structs = {}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not node.name.startswith("dmuon_"):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "_fields_":
                structs[node.name] = [(field.elts[0].value, ast.unparse(field.elts[1])) for field in statement.value.elts]
    return structs
