#!/usr/bin/env python3
"""What long prompts do to a user who is being answered, and what protecting that user costs them.

    KVASIR=BINARY MODEL=demo bench/interference.sh [--target 150] [--prompt 4096] [--prompts 4] [--rounds 3] [--threads 2]

Two servers of the same binary, --itl-target 0 and --itl-target MS, both up all the time; only one is asked at a time and rounds
alternate, so that both meet the same weather on a shared host. In a round one user streams an answer, and prompts of other
tokens each time arrive one after the other, each as soon as the one before has its first token. Printed: the user's time between
tokens while prompts were there (p50, p99, worst), prompt tokens a second over the same time, and the ratios. Every figure is a
client's, over HTTP; the medians of the rounds. The exit code is 0 whatever they are.
"""
import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time


class Server:
    def __init__(self, args, target):
        self.log = tempfile.TemporaryFile()
        command = [args.kvasir, "serve", args.model, "--port", "0", "--threads", str(args.threads), "--itl-target", str(target),
                   "--kv-mem", args.kv_mem, "--seed", "1", "--log-level", "warn"] + args.flag
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.port = None
        end = time.time() + 120
        while self.port is None and time.time() < end and self.process.poll() is None:
            time.sleep(0.1)
            self.log.seek(0)
            found = re.search(rb"serving .* at http://127\.0\.0\.1:(\d+)", self.log.read())
            self.port = int(found.group(1)) if found else None
        if self.port is None:
            self.stop()
            self.log.seek(0)
            raise SystemExit("the server did not start: " + self.log.read().decode(errors="replace")[-300:])
        connection = self.open()
        connection.request("GET", "/v1/models")
        self.name = json.loads(connection.getresponse().read())["data"][0]["id"]

    def open(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def post(self, connection, body):
        connection.request("POST", "/v1/completions", json.dumps(dict(body, model=self.name)),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit("HTTP %d: %s" % (answer.status, answer.read()[:300]))
        return answer

    def stop(self):
        self.process.terminate()
        self.process.wait()


class User(threading.Thread):
    """Streams an answer until told to stop; times of its chunks."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.times, self.leave = server, [], False
        self.first = threading.Event()

    def run(self):
        connection = self.server.open()
        answer = self.server.post(connection, {"prompt": "Once upon a time", "max_tokens": 3000, "temperature": 0,
                                               "ignore_eos": True, "stream": True, "cache_prompt": False})
        for line in answer:
            if line.startswith(b"data: {") and not self.leave:
                self.times.append(time.perf_counter())
                if len(self.times) == 20:
                    self.first.set()
            if self.leave:
                break
        connection.close()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def measure(server, args, rng):
    """One round: gaps in ms, prompt tokens a second; without prompts first, for comparison."""
    user = User(server)
    user.start()
    user.first.wait(60)
    time.sleep(1)
    alone = [b - a for a, b in zip(user.times[5:], user.times[6:])]
    begin = time.perf_counter()
    connection = server.open()
    each = []
    for _ in range(args.prompts):
        prompt = [rng.randrange(args.vocab) for _ in range(args.prompt)]
        sent = time.perf_counter()
        server.post(connection, {"prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_prompt": False}).read()
        each.append(args.prompt / (time.perf_counter() - sent))
    end = time.perf_counter()
    user.leave = True
    user.join(60)
    times = [t for t in user.times if begin <= t <= end]
    gaps = [1e3 * (b - a) for a, b in zip(times, times[1:])]
    return {"p50": percentile(gaps, 0.5), "p99": percentile(gaps, 0.99), "worst": max(gaps), "tokens": len(gaps),
            "alone": 1e3 * percentile(alone, 0.5), "speed": args.prompts * args.prompt / (end - begin), "each": each}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvasir", default=os.environ.get("KVASIR", "build/release/kvasir"))
    parser.add_argument("--model", default=os.environ.get("MODEL", "demo"))
    parser.add_argument("--target", type=float, default=150)
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of each long prompt")
    parser.add_argument("--prompts", type=int, default=4, help="of them in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=49000, help="token ids of prompts are below it")
    parser.add_argument("--kv-mem", default="512MiB")
    parser.add_argument("--flag", action="append", default=[], help="a further flag of both servers, as --flag=--kv-type=i8")
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = random.Random(1)
    servers = {0: Server(args, 0), args.target: Server(args, args.target)}
    rounds = {target: [] for target in servers}
    try:
        for number in range(args.rounds):
            order = list(servers) if number % 2 == 0 else list(servers)[::-1]
            for target in order:
                rounds[target].append(measure(servers[target], args, rng))
    finally:
        for server in servers.values():
            server.stop()
    middle = {t: {k: statistics.median(r[k] for r in rs) for k in ("p50", "p99", "worst", "tokens", "alone", "speed")}
              for t, rs in rounds.items()}
    print("prompts of %d tokens, %d a round, %d rounds, %d threads" % (args.prompt, args.prompts, args.rounds, args.threads))
    print("| --itl-target | between tokens p50 ms | p99 | worst | tokens in that time | alone p50 | prompt tokens/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for target, m in middle.items():
        print("| %g | %.0f | %.0f | %.0f | %d | %.1f | %.0f |"
              % (target, m["p50"], m["p99"], m["worst"], m["tokens"], m["alone"], m["speed"]))
    off, on = middle[0], middle[args.target]
    pairs = [b["speed"] / a["speed"] for a, b in zip(rounds[0], rounds[args.target])]
    print("p99 between tokens: %.0f ms, %.2f times the target, %.1f times shorter than without; prompt speed %.3f of that without "
          "(median of %d pairs; %.3f to %.3f)"
          % (on["p99"], on["p99"] / args.target, off["p99"] / on["p99"], statistics.median(pairs), len(pairs), min(pairs), max(pairs)))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({str(t): rs for t, rs in rounds.items()}, out, indent=1)


if __name__ == "__main__":
    main()
