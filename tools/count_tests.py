#!/usr/bin/env python3
"""Sums up a ctest run whose GoogleTest programs wrote their results as XML.

usage: count_tests.py FOLDER      prints "PASSED FAILED SKIPPED"

FOLDER holds ctest.junit and one PROGRAM.xml for each GoogleTest program. A program counts as many tests as it has; a
program that failed without a failed test in its file (crash, sanitizer report, time limit) counts as one failure more,
and a ctest entry without a file (a script) as one test.
"""
import glob
import os
import sys
import xml.etree.ElementTree as ET


def gtest_counts(path):
    passed = failed = skipped = 0
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue  # DISABLED_ tests
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.get("result") == "skipped" or case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def count(folder):
    programs = {}
    for path in glob.glob(os.path.join(folder, "*.xml")):
        try:
            programs[os.path.basename(path)[:-4]] = gtest_counts(path)
        except ET.ParseError:
            pass  # cut short by a crash: ctest knows
    sums = [0, 0, 0]
    for case in ET.parse(os.path.join(folder, "ctest.junit")).getroot().iter("testcase"):
        name, status = case.get("name"), case.get("status")
        # ctest entry "base" is the program base_test; those of tests/ are named as their program
        own = programs.pop(name + "_test", None) or programs.pop(name, None)
        if own is None:
            # "notrun" is also what a program that was not built gets
            asked = status == "disabled" or "SKIP" in (case.find("skipped").get("message", "") if case.find("skipped") is not None else "")
            own = (1, 0, 0) if status == "run" else (0, 0, 1) if asked else (0, 1, 0)
        elif status not in ("run", "disabled") and own[1] == 0:
            own = (own[0], 1, own[2])
        sums = [a + b for a, b in zip(sums, own)]
    return sums


if __name__ == "__main__":
    print(*count(sys.argv[1]))
