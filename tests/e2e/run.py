#!/usr/bin/env python3
"""End-to-end tests: a built kvasir binary, real sockets, real clients.

    python tests/e2e/run.py --binary build/release/kvasir [--filter A0] [--fixtures DIR] [--list]

Needs a Python environment with tests/e2e/requirements.txt. Fixture models are made in a temporary folder by
../shared/cases/make_fixtures.py; tests that need ../shared, the demo model or a missing tool say SKIP and why.
One line a test; exit status 1 if one failed. --seed repeats a random run.
"""
import argparse
import random
import sys
import time
import traceback

import harness
import test_api  # noqa: F401  (importing registers the tests)
import test_bench  # noqa: F401
import test_books  # noqa: F401
import test_cache  # noqa: F401
import test_cache_load  # noqa: F401
import test_certify  # noqa: F401
import test_clients  # noqa: F401
import test_limits  # noqa: F401
import test_loader  # noqa: F401
import test_process  # noqa: F401
import test_quant  # noqa: F401
import test_text  # noqa: F401


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", required=True)
    ap.add_argument("--filter", default="", help="only tests whose name contains this (case ignored; several by comma)")
    ap.add_argument("--fixtures", help="folder that make_fixtures.py wrote")
    ap.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    words = [w.lower() for w in a.filter.split(",")]
    chosen = [(n, f) for n, f in harness.TESTS if any(w in n.lower() for w in words)]
    if a.list:
        print("\n".join(n for n, _ in chosen))
        return 0
    print("seed %d" % a.seed, flush=True)
    context, counts = harness.Context(a), {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for name, function in chosen:
        context.problems, context.notes, started = [], [], time.time()
        context.random = random.Random("%d %s" % (a.seed, name))
        reason = None
        try:
            function(context)
        except harness.Skip as e:
            reason = str(e)
        except ModuleNotFoundError as e:
            reason = "Python package missing: %s (tests/e2e/requirements.txt)" % e.name
        except Exception as e:
            context.problems.append("%r at %s" % (e, traceback.format_exc().strip().splitlines()[-3].strip()))
        context.after_test()
        verdict = "FAIL" if context.problems else "SKIP" if reason else "PASS"
        counts[verdict] += 1
        remarks = "; ".join(([reason] if reason else []) + context.notes)
        print("%s  %s (%.1f s)%s" % (verdict, name, time.time() - started, "  " + remarks if remarks else ""), flush=True)
        for problem in context.problems[:12]:
            print("      - %s" % problem, flush=True)
        if len(context.problems) > 12:
            print("      - and %d more" % (len(context.problems) - 12), flush=True)
    context.close()
    print("%d passed, %d failed, %d skipped" % (counts["PASS"], counts["FAIL"], counts["SKIP"]))
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
