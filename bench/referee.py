#!/usr/bin/env python3
"""Runs ../shared/tools/peerbench.py unchanged and adds to each workload's figures `itl_max`, the longest gap between two chunks.

usage: referee.py PEERBENCH URL [flags of peerbench.py]; needs a Python with aiohttp. The report is what --json gets.
"""
import asyncio
import sys


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as f:
        source = f.read()
    call = "asyncio.run(main())"
    if source.rstrip().split("\n")[-1] != call:
        sys.exit("%s does not end with %s" % (path, call))
    space = {"__name__": "peerbench", "__file__": path}
    exec(compile(source.rstrip()[:-len(call)], path, "exec"), space)
    stat = space["stat"]

    def with_longest(requests, wall, name):
        out = stat(requests, wall, name)
        gaps = [b - a for r in requests for a, b in zip(r["times"], r["times"][1:])]
        out["itl_max"] = max(gaps) if gaps else None
        return out

    space["stat"] = with_longest
    sys.argv = [path] + sys.argv[2:]
    asyncio.run(space["main"]())


if __name__ == "__main__":
    main()
