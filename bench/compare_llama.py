#!/usr/bin/env python3
"""Decode speed beside llama.cpp, in one run: rounds alternate, so that both meet the same weather on a shared host.

    LLAMA_BENCH=.../llama-bench LLAMA_SERVER=.../llama-server bench/compare_llama.sh [--rounds 5] [--depth 0,1024]

  tool    llama-bench -p 0 -n N (no HTTP, no sampling) against a stream from `kvasir serve` (both included): the hard one
  server  llama-server against `kvasir serve`, the same greedy request by the same client
  w1      ../shared/tools/peerbench.py, workload w1, against both servers (--peerbench; needs aiohttp)
Each line gives the medians, the ratio ours/theirs of the medians and the smallest and largest ratio of one round. Not in CI:
a figure from a busy machine says nothing; look at the ratios only.
"""
import argparse
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"),
                    "kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf")


class Served:
    """A server process, ended with the object."""

    def __init__(self, command, port):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.port, self.up, end = port, False, time.time() + 120
        while time.time() < end and self.process.poll() is None:
            if not self.port:
                self.log.seek(0)
                found = re.search(rb"http://127\.0\.0\.1:(\d+)", self.log.read())
                self.port = int(found.group(1)) if found else None
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    self.up = True
                    return
            except (OSError, TypeError):
                pass
            time.sleep(0.1)
        self.process.kill()
        self.process.wait()

    def decode(self, prompt, count):
        """Tokens a second between the first and the last chunk of one greedy stream."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request("GET", "/v1/models")
        name = json.loads(c.getresponse().read())["data"][0]["id"]
        body = {"model": name, "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "stream": True,
                "cache_prompt": False}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r, times = c.getresponse(), []
        if r.status != 200:
            sys.exit("status %d: %s" % (r.status, r.read()[:300]))
        for line in iter(r.readline, b""):
            if line.startswith(b"data: {") and b'"choices":[]' not in line:
                times.append(time.perf_counter())
        c.close()
        return (count - 1) / (times[-1] - times[0])

    def stop(self):
        self.process.terminate()
        self.process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def report(name, ours, theirs):
    ratios = [a / b for a, b in zip(ours, theirs)]
    print("%-28s kvasir %8.2f t/s   llama.cpp %8.2f t/s   ratio %.2f (rounds %.2f to %.2f)" % (
        name, statistics.median(ours), statistics.median(theirs), statistics.median(ours) / statistics.median(theirs),
        min(ratios), max(ratios)), flush=True)
    return {"name": name, "kvasir": ours, "llama": theirs, "ratio": statistics.median(ours) / statistics.median(theirs)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kvasir", default=os.environ.get("KVASIR") or os.path.join(HERE, "../build/release/kvasir"))
    ap.add_argument("--llama-bench", default=os.environ.get("LLAMA_BENCH"))
    ap.add_argument("--llama-server", default=os.environ.get("LLAMA_SERVER"))
    ap.add_argument("--model", default=os.environ.get("KVASIR_DEMO_MODEL") or DEMO)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--tokens", type=int, default=96)
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--depth", default="0", help="tokens in the cache before decoding, several by comma")
    ap.add_argument("--precision", default="default")
    ap.add_argument("--vocab", type=int, default=49000)
    ap.add_argument("--peerbench", help="path of peerbench.py: also run its workload w1 against both servers")
    ap.add_argument("--json")
    a = ap.parse_args()
    if not (a.llama_bench or a.llama_server):
        ap.error("neither LLAMA_BENCH nor LLAMA_SERVER is set")
    rng, out, threads = random.Random(1), [], str(a.threads)
    depths = [int(d) for d in a.depth.split(",")]
    context = max(depths) + a.tokens + 1024
    ours = Served([a.kvasir, "serve", a.model, "--port", "0", "--threads", threads, "--kv-mem", "512MiB", "--kv-type", "f16",
                   "--precision", a.precision], None)
    if not ours.up:
        sys.exit("kvasir serve ended with %s" % ours.process.returncode)
    theirs = None
    try:
        if a.llama_server:
            port = free_port()
            theirs = Served([a.llama_server, "-m", a.model, "-t", threads, "-c", str(context), "-np", "1", "-fa", "on",
                             "--port", str(port)], port)
            if not theirs.up:
                print("server, w1: NOT MEASURED, llama-server ended with %s" % theirs.process.returncode, flush=True)
                theirs = None
        for depth in depths:
            prompt = lambda: [rng.randrange(300, a.vocab) for _ in range(max(depth, 8))]
            ours.decode(prompt(), 16)  # warm up
            if a.llama_bench:
                pairs = []
                for _ in range(a.rounds):
                    r = subprocess.run([a.llama_bench, "-m", a.model, "-t", threads, "-p", "0", "-n", str(a.tokens), "-d", str(depth),
                                        "-fa", "1", "-r", "1", "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
                    if r.returncode:
                        print("tool, depth %d: NOT MEASURED, llama-bench ended with %d" % (depth, r.returncode), flush=True)
                        break
                    pairs.append((ours.decode(prompt(), a.tokens), json.loads(r.stdout)[0]["avg_ts"]))
                if len(pairs) == a.rounds:
                    out.append(report("tool, depth %d" % depth, *zip(*pairs)))
            if theirs:
                theirs.decode(prompt(), 16)
                pairs = []
                for _ in range(a.rounds):
                    p = prompt()
                    pairs.append((ours.decode(p, a.tokens), theirs.decode(p, a.tokens)))
                out.append(report("server, depth %d" % depth, *zip(*pairs)))
        if a.peerbench and theirs:
            pairs = []
            for i in range(a.rounds):
                both = []
                for s in (ours, theirs):
                    r = subprocess.run([sys.executable, a.peerbench, "http://127.0.0.1:%d" % s.port, "--only", "w1", "--seed", str(i)],
                                       stdout=subprocess.PIPE, check=True)
                    both.append(json.loads(r.stdout.splitlines()[-1]))
                pairs.append(both)
            for field in ("decode_tps_p50", "ttft_p50"):
                report("w1 " + field + (" (s)" if "ttft" in field else ""), *zip(*[[x[field] for x in p] for p in pairs]))
            out.append({"name": "w1", "rounds": pairs})
    finally:
        ours.stop()
        if theirs:
            theirs.stop()
    if a.json:
        with open(a.json, "w", encoding="ascii") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
