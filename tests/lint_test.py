# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Each gate finds its fault in a tree that has one, and nothing in a tree that has none."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SPDX = "// SPDX-FileCopyrightText: 2026 The dmuon authors\n// SPDX-License-Identifier: Apache-2.0\n"
HEADER = ROOT / "client/include/dmuon/dmuon.h"
PYTHON = ROOT / "client/python/dmuon_client/_abi.py"
TABLE = ROOT / "daemon/base/metric_table.h"


def findings(tree: pathlib.Path, files: dict[str, str]) -> list[str]:
    """What the lint says of a tree with these files."""
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        for folder in path.relative_to(tree).parents:
            (tree / folder / "README.md").touch()
    run = subprocess.run([sys.executable, ROOT / "tests/lint.py", tree], capture_output=True, text=True)
    lines = run.stdout.splitlines()
    assert run.returncode == (1 if lines else 0), run.stderr
    return lines


def body(lines: int) -> str:
    return SPDX + "int F() {\n" + "  G();\n" * (lines - 2) + "}\n"


def test_a_clean_tree_has_no_findings(tmp_path):
    assert findings(tmp_path, {
        "daemon/node/a.cc": body(50),
        "daemon/node/b.h": SPDX + "#pragma once\n#include \"daemon/plan/plan.h\"\n",
        "daemon/node/main.cc": SPDX + "#include <grpcpp/grpcpp.h>\n#include \"daemon/coordinator/host.h\"\n",
        "client/include/dmuon/dmuon.h": HEADER.read_text(),
        "client/python/dmuon_client/_abi.py": PYTHON.read_text(),
        "daemon/base/metric_table.h": TABLE.read_text(),
        "kernels/unrolled.h": SPDX + "#pragma once\n#define UNROLL _Pragma(\"unroll\")\nnamespace a {\n" + "int b;\n" * 60 + "}\n",
        "dashboards/a.json": '"rate(dmuon_step_duration_seconds_bucket[1m])"\n',
    }) == []


@pytest.mark.parametrize(("name", "content", "finding"), [
    ("kernels/a.cc", body(51), "kernels/a.cc:3: function F has 51 lines, more than 50"),
    ("kernels/a.cc", SPDX + "\n" * 499, "kernels/a.cc:501: the file has 501 lines, more than 500"),
    ("tests/a.py", SPDX.replace("//", "#") + "def f():\n" + "    g()\n" * 50, "tests/a.py:3: function f has 51 lines"),
    ("kernels/a.cc", SPDX + '#include "daemon/base/log.h"\n', "kernels/a.cc:3: kernels/ may not include daemon/base"),
    ("daemon/node/a.cc", SPDX + '#include "daemon/coordinator/host.h"\n', "daemon/node/ may not include"),
    ("client/src/a.cc", SPDX + '#include "kernels/backend.h"\n', "client/src/ may not include kernels/backend.h"),
    ("daemon/plan/a.cc", SPDX + "#include <thread>\n", "thread in pure code"),
    ("kernels/a.h", SPDX + "#pragma once\n#include <grpcpp/server.h>\n", "grpcpp/server.h in a header"),
    ("kernels/a.h", SPDX, "no #pragma once"),
    ("kernels/a.cc", "int a;\n", "the two SPDX lines are missing"),
    ("kernels/a.cc", SPDX + "int a;", "no newline at the end"),
    ("kernels/a.cc", SPDX + "// TO" "DO: all\n", "unfinished work"),
    ("kernels/a.cc", SPDX + "void F() { try { G(); } catch (...) {} }\n", "catch outside of"),
    ("kernels/a.cc", SPDX + "// see /ro" "ot/x\n", "names a place of one machine"),
    ("daemon/utils/a.cc", SPDX, "a folder of this name says nothing"),
])
def test_a_fault_is_found(tmp_path, name, content, finding):
    (line,) = findings(tmp_path, {name: content})
    assert line.startswith(name.rpartition("/")[0]) and finding in line


def test_braces_in_strings_and_comments_do_not_count(tmp_path):
    source = SPDX + 'const char* a = "{{{";  // {{{\nconst char b = \'{\';\n' + body(50).removeprefix(SPDX)
    assert findings(tmp_path, {"kernels/a.cc": source}) == []


@pytest.mark.parametrize(("old", "new", "finding"), [
    ("DMUON_LIMIT = 11", "DMUON_LIMIT = 12", "constant DMUON_LIMIT differs: header 11, python 12"),
    ("DMUON_ADAMW = 2\n", "", "constant DMUON_ADAMW of dmuon.h is missing"),
    ('        ("rank", c_uint32),\n        ("world_size", c_uint32),\n',
     '        ("world_size", c_uint32),\n        ("rank", c_uint32),\n', "struct dmuon_config differs"),
    ('("lr", c_double)', '("lr", c_int32)', "struct dmuon_hyper differs"),
    ('dmuon_begin', 'dmuon_start', "function dmuon_begin of dmuon.h is not declared"),
])
def test_a_difference_of_the_abi_is_found(tmp_path, old, new, finding):
    python = PYTHON.read_text()
    assert old in python
    lines = findings(tmp_path, {"client/include/dmuon/dmuon.h": HEADER.read_text(),
                                "client/python/dmuon_client/_abi.py": python.replace(old, new)})
    assert len(lines) == 1 and finding in lines[0]


def test_an_unknown_metric_is_found(tmp_path):
    (line,) = findings(tmp_path, {"daemon/base/metric_table.h": TABLE.read_text(),
                                  "dashboards/a.json": "{}\n\"dmuon_steps\"\n"})
    assert line == "dashboards/a.json:2: metric dmuon_steps is not in daemon/base/metric_table.h"


def test_a_folder_without_a_readme_is_found(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/a.cc").write_text(SPDX)
    (tmp_path / "README.md").write_text("x\n")
    run = subprocess.run([sys.executable, ROOT / "tests/lint.py", tmp_path], capture_output=True, text=True)
    assert run.stdout == "kernels:1: neither a README.md here nor a word about kernels/ in one above\n"
