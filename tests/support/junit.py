#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a JUnit file as CTest and pytest write it. Prints each failed case with the end of its output,
each skipped case with its reason, and at last one line: passed failed skipped."""

import sys
import xml.etree.ElementTree as ElementTree

LINES_OF_A_FAILURE = 30


def _text(case: ElementTree.Element, verdict: ElementTree.Element) -> str:
    """What a person wants to see: pytest puts it into the verdict, CTest beside it."""
    return verdict.text or case.findtext("system-out") or verdict.get("message") or ""


def _reason(case: ElementTree.Element, verdict: ElementTree.Element) -> str:
    """One line. googletest prints the reason on the line after `Skipped`."""
    lines = (case.findtext("system-out") or "").splitlines()
    for line, following in zip(lines, lines[1:]):
        if line.endswith("Skipped"):
            return following.strip()
    return verdict.get("message") or ""


def main(path: str) -> None:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name", "?")
        failure = next((e for tag in ("failure", "error") if (e := case.find(tag)) is not None), None)
        skip = case.find("skipped")
        if failure is not None:
            counts["failed"] += 1
            print(f"FAILED {name}")
            for line in _text(case, failure).rstrip().splitlines()[-LINES_OF_A_FAILURE:]:
                print(f"    {line}")
        elif skip is not None:
            counts["skipped"] += 1
            print(f"skipped {name}: {_reason(case, skip)}")
        else:
            counts["passed"] += 1
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main(sys.argv[1])
