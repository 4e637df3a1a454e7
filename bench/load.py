#!/usr/bin/env python3
"""How long a model file takes to load, and how much memory at the most: seconds a GB, and what is held beside the file's own pages.

usage: bench/load.py BINARY MODEL.gguf [--rounds 5] [--flags "--kv-mem 256MiB"]

Starts `BINARY serve MODEL` and waits for /health, the file in the page cache. Every 2 ms it reads the process's memory: anonymous
(packed weights, pool, scratch) and file pages (the mapped model). One copy means that the two together stay near the file's size;
two copies that they reach twice of it. The first start, which may learn the model's constants, does not count.
"""
import argparse
import http.client
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time


def memory(pid):
    """(anonymous, file) bytes in memory now."""
    with open("/proc/%d/status" % pid) as f:
        text = f.read()
    kb = lambda name: int(re.search(name + r":\s+(\d+)", text).group(1))
    return kb("RssAnon") * 1024, kb("RssFile") * 1024


def ready(log):
    with open(log, "rb") as f:
        found = re.search(rb"http://127\.0\.0\.1:(\d+)", f.read())
    if not found:
        return False
    try:
        c = http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=5)
        c.request("GET", "/health")
        return c.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def start(a):
    """(seconds, most bytes anonymous, most bytes of both together)."""
    with open(a.model, "rb") as f:  # into the page cache
        while f.read(1 << 22):
            pass
    with tempfile.NamedTemporaryFile() as log:
        begin = time.perf_counter()
        process = subprocess.Popen([a.binary, "serve", a.model, "--port", "0"] + a.flags.split(), stdout=log, stderr=subprocess.STDOUT)
        anonymous = both = 0
        try:
            while not ready(log.name):
                if process.poll() is not None:
                    raise SystemExit("the server ended: " + open(log.name).read()[-500:])
                now = memory(process.pid)
                anonymous, both = max(anonymous, now[0]), max(both, sum(now))
                time.sleep(0.002)
            return time.perf_counter() - begin, anonymous, both
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("binary")
    ap.add_argument("model")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--flags", default="--kv-type i8 --kv-mem 256MiB")
    a = ap.parse_args()
    size = os.path.getsize(a.model)
    start(a)
    rounds = [start(a) for _ in range(a.rounds)]
    seconds, anonymous, both = (statistics.median(r[i] for r in rounds) for i in range(3))
    print("%s: %.2f GB, %d starts" % (os.path.basename(a.model), size / 1e9, a.rounds))
    print("load: %.2f s, %.2f s a GB (limit 2; rounds %s)" % (seconds, seconds / size * 1e9, " ".join("%.2f" % r[0] for r in rounds)))
    print("most memory: %.2f of the file's size anonymous, %.2f with the file's pages" % (anonymous / size, both / size))


if __name__ == "__main__":
    main()
