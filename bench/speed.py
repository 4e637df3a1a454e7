#!/usr/bin/env python3
"""Speed beside llama.cpp and vLLM: the rows of docs/performance.md, each in rounds that alternate between the engines.

usage: bench/speed.sh [--rounds 5] [--quick] [--only ROW,...] [--out DIR] [--peers DIR]

Rows: decode depth bandwidth prefill prefill-depth batch serve interference 1b start cost; parts of them by name: w3 w4 w5 w6 gap
prefill-i8 prefill-Q4_1 1b-Q8_0 (a wrong name lists all). Each round is one JSON line in OUT; a run that was cut goes on
where it ended, and --table only prints what is there. The first round tries every configuration of the peer (weight types, flash
attention, cache types, builds); later rounds repeat those that came within 20 % of the best. The best median counts. Peers are the
folder that peers.sh of ../shared/tools fills: DIR/llama/build/bin, DIR/venv, DIR/hf; what is missing is skipped, and said.
Figures of a busy machine say nothing: run it alone. Never part of the tests.
"""
import argparse
import os
import re
import subprocess
import sys

import speed_lib
import speed_rows
import speed_serve
from speed_lib import Skip, output

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
ROWS = ["decode", "depth", "bandwidth", "prefill", "prefill-depth", "batch", "serve", "interference", "1b", "start", "cost"]


class Context:
    """Where everything is, and what rows share."""

    def __init__(self, a):
        self.out, self.quick, self.root, self.cache, self.threads = a.out, a.quick, ROOT, a.cache, a.threads
        self.kvasir = os.path.join(a.build, "kvasir")
        self.decode_bench = os.path.join(a.build, "bench/decode_bench")
        self.demo, self.python, self.peerbench = a.model, a.python, a.peerbench
        self.serve_flags = a.serve_flags.split()
        self.builds, self.vllm, self.hf = {}, None, None
        if a.peers:
            self.builds["llama"] = os.path.join(a.peers, "llama/build/bin")
            self.builds["llama+amx"] = os.path.join(a.peers, "llama-amx/bin")  # bench/llama_amx.sh
            self.vllm, self.hf = os.path.join(a.peers, "venv/bin/vllm"), os.path.join(a.peers, "hf")
            self.vllm = self.vllm if os.path.exists(self.vllm) else None
        for other in a.llama:
            name, _, path = other.rpartition("=")
            self.builds["llama+" + name if name else "llama"] = path
        self.builds = {n: p for n, p in self.builds.items() if os.path.isfile(os.path.join(p, "llama-bench"))}
        self.llama_names = list(self.builds)
        self.servers = speed_serve.Servers(self)

    def llama(self, build, program):
        return os.path.join(self.builds[build], program)

    def llama_env(self, build):
        return dict(os.environ, LD_LIBRARY_PATH=self.builds[build])

    def note(self, text):
        print("  " + text, flush=True)

    def files(self, kinds):
        """Type -> path of the demo model as each type that can be made."""
        return self.collect(kinds, speed_rows.quantised)

    def big(self, kinds):
        """The same of the random model of a billion parameters."""
        return self.collect(kinds, speed_rows.random_model)

    def collect(self, kinds, make):
        found, why = {}, None
        for kind in kinds:
            try:
                found[kind] = make(self, kind)
            except Skip as e:
                why = e
                self.note("skipped: %s" % e)
        if not found:
            raise why
        return found

    def our_kv_types(self):
        """Cache types beyond f16 that our build serves."""
        kinds = []
        for kind in ("i8", "i4"):
            try:
                output([self.decode_bench, self.demo, "--prompt", "0", "--users", "1", "--output", "2", "--rounds", "1", "--read-mib", "0",
                        "--kv-type-k", kind, "--kv-type-v", kind])
                kinds.append(kind)
            except RuntimeError:
                pass
        return kinds

    def alternate(self, number, values, jobs):
        """Runs (name, function) in turn, every other round backwards. A result that is no number was filled in by the function."""
        for name, job in jobs if number % 2 == 0 else reversed(jobs):
            try:
                result = job()
                if result is not None:
                    values[name] = result
            except (RuntimeError, subprocess.SubprocessError) as e:
                if name.startswith("ours"):
                    raise
                self.note("%s: %s" % (name, e))

    def referee(self, url, only, seed):
        return speed_serve.referee(self, url, only, seed)


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    ap.add_argument("--rounds", type=int, default=0, help="of each row (5; 1 with --quick)")
    ap.add_argument("--quick", action="store_true", help="one round, and the peer's slowest configurations left out")
    ap.add_argument("--only", default=",".join(r for r in ROWS), help="rows, or single units (prefill-Q4_1, w6, 1b-Q8_0, ...), by comma")
    ap.add_argument("--out", help="folder for rounds and table (default: build/results/speed, or speed-quick)")
    ap.add_argument("--build", default=os.path.join(ROOT, "build/release"), help="folder with kvasir and bench/decode_bench")
    ap.add_argument("--peers", default=os.environ.get("KVASIR_PEERS"), help="folder that peers.sh filled (or KVASIR_PEERS)")
    ap.add_argument("--llama", action="append", default=[], metavar="NAME=DIR", help="another build of llama.cpp, its programs' folder")
    ap.add_argument("--model", help="the demo model (default: where kvasir-quickstart puts it, or of --peers)")
    ap.add_argument("--python", help="a Python with numpy and aiohttp (default: of --peers, else this one)")
    ap.add_argument("--peerbench", default=os.path.join(ROOT, "../shared/tools/peerbench.py"))
    ap.add_argument("--serve-flags", default="--kv-mem 1GiB", help="of kvasir serve, in the rows serve and interference")
    ap.add_argument("--cache", default=os.path.join(cache, "kvasir-bench"), help="folder for model files that are made, about 4 GB")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--fresh", action="store_true", help="forget the rounds that are there, of the rows that run")
    ap.add_argument("--table", action="store_true", help="print the table of what is there and run nothing")
    a = ap.parse_args()
    a.rounds = a.rounds or (1 if a.quick else 5)
    a.out = a.out or os.path.join(ROOT, "build/results", "speed-quick" if a.quick else "speed")
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    places = [os.path.join(data, "kvasir/models", name)] + ([os.path.join(a.peers, name)] if a.peers else [])
    a.model = a.model or os.environ.get("KVASIR_DEMO_MODEL") or next((p for p in places if os.path.isfile(p)), None)
    if not a.model:
        ap.error("no demo model: ./kvasir-quickstart fetches it, or give --model")
    peer_python = os.path.join(a.peers, "venv/bin/python") if a.peers else ""
    a.python = a.python or (peer_python if os.path.exists(peer_python) else sys.executable)
    return ap, a


def choose(ap, only):
    units = speed_rows.units() + speed_serve.units()
    wanted = [w for w in only.split(",") if w]
    for w in wanted:
        if w != "cost" and not any(w in (u.row, u.name) for u in units):
            ap.error("no row %s; rows: %s; units: %s" % (w, " ".join(ROWS), " ".join(u.name for u in units)))
    return [u for u in units if u.row in wanted or u.name in wanted], "cost" in wanted


def main():
    ap, a = arguments()
    units, cost = choose(ap, a.only)
    c = Context(a)
    for program in (c.kvasir, c.decode_bench):
        if not os.path.isfile(program):
            ap.error("no %s: cmake --build build/release (quickstart builds the program only), or give --build" % program)
    store = speed_lib.Store(a.out, speed_lib.build_id(c.kvasir, c.decode_bench))
    isa = re.search(r"\bisa +(\S+)", output([c.kvasir, "version"]))
    about = "%s; build %s uses %s; peers: %s%s" % (speed_lib.host(), store.build, isa.group(1) if isa else "?",
                                             " ".join(c.llama_names) or "no llama.cpp", ", vLLM" if c.vllm else ", no vLLM")
    print(about, flush=True)
    if not c.llama_names:
        print("no llama.cpp: give --peers; its rows are ours alone", flush=True)
    if a.fresh and not a.table:
        for unit in units:
            if os.path.exists(store.path(unit)):
                os.remove(store.path(unit))
    skipped = {}
    try:
        if not a.table:
            skipped = speed_lib.run_units(store, units, a.rounds, c)
    except KeyboardInterrupt:
        print("\ncut; the same command goes on from here")
    finally:
        c.servers.end()
    text = speed_lib.table(store, units, skipped)
    with open(os.path.join(a.out, "table.md"), "w", encoding="utf-8") as f:
        f.write("Host: %s\n\n%s\n" % (about, text))
    print("\n" + text)
    if cost and not a.table:
        sys.stdout.flush()
        subprocess.run([sys.executable, os.path.join(HERE, "cost.py"), "--build", a.build, "--model", a.model, "--cache", a.cache, "--python",
                        a.python, "--out", a.out] + (["--quick"] if a.quick else []), check=False)
    return 1 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
