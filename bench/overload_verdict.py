#!/usr/bin/env python3
"""Is overload smooth? Reads reports of `kvasir bench --sweep` and says, for each, what holds beyond capacity.

usage: overload_verdict.py REPORT.json ...

Smooth: at every load of 2 and more, output within 10 % of the run's peak, inter-token p99 at most twice that of the
lowest load, every refusal with Retry-After, no error. Prints the numbers either way; the exit code is 0.
"""
import json
import sys


def verdict(report):
    levels = sorted(report["levels"], key=lambda level: level["load"])
    over = [level for level in levels if level["load"] >= 2]
    peak = max(level["out_tps"] for level in levels)
    unloaded = levels[0]["inter_token_s"]["p99"]
    lines = []
    for level in over:
        share = level["out_tps"] / peak if peak else float("nan")
        gap = level["inter_token_s"]["p99"]
        ratio = gap / unloaded if gap is not None and unloaded else float("nan")
        errors = sum(level["errors"].values())
        holds = share >= 0.9 and ratio <= 2 and errors == 0 and level["refused_no_retry_after"] == 0
        lines.append("  load %-4g output %3.0f %% of the peak, inter-token p99 %.1f times load %g's, refused %2.0f %%, %d without "
                     "Retry-After, %d errors, %d not sent, preempted %d: %s"
                     % (level["load"], share * 100, ratio, levels[0]["load"],
                        100 * (level["refused_429"] + level["refused_503"]) / max(1, level["offered"]),
                        level["refused_no_retry_after"], errors, level["not_sent"],
                        level["server"].get("preemptions", 0), "smooth" if holds else "NOT smooth"))
    return lines


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__.strip())
        return 0 if len(sys.argv) > 1 else 2
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            report = json.load(f)
        print("%s: capacity %.3g requests/s" % (report["label"] or path, report["capacity_rps"]))
        print("\n".join(verdict(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
