"""The rows of bench/speed.py that go through HTTP: w3a to w6 by the referee, start to first token, interference."""
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

from interference import percentile
from speed_lib import Skip, Unit, View, output

HERE = os.path.dirname(os.path.abspath(__file__))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server in a process group of its own; stopped (SIGSTOP) whenever it is not its turn, so that no idle peer takes time."""

    def __init__(self, name, command, port, log, env=None, patience=600):
        self.name, self.port, self.log = name, port, log
        with open(log, "wb") as f:
            self.process = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, env=env, start_new_session=True)
        end = time.monotonic() + patience
        while time.monotonic() < end and self.process.poll() is None:
            if not self.port:
                with open(log, "rb") as f:
                    found = re.search(rb"http://127\.0\.0\.1:(\d+)", f.read())
                self.port = int(found.group(1)) if found else 0
            if self.port and self.healthy():
                self.url = "http://127.0.0.1:%d" % self.port
                return
            time.sleep(0.2)
        code = self.process.poll()
        self.end()
        raise Skip("%s did not start (%s); its output: %s" % (name, "exit %s" % code if code is not None else "too slow", log))

    def healthy(self):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            c.request("GET", "/health")
            return c.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.signal(signal.SIGKILL)  # what it left of its group


class Servers:
    """Started when first needed, one running at a time."""

    def __init__(self, context):
        self.context, self.started, self.failed = context, {}, {}

    def command(self, name):
        c, port = self.context, free_port()
        if name == "ours":
            return [c.kvasir, "serve", c.demo, "--port", "0", "--threads", str(c.threads)] + c.serve_flags, 0, None
        if name.startswith("llama"):
            return [c.llama(name, "llama-server"), "-m", c.demo, "-t", str(c.threads), "-c", "65536", "-np", "16", "-fa", "on",
                    "--kv-unified", "--port", str(port)], port, c.llama_env(name)
        if not (c.vllm and os.path.isdir(c.hf)):
            raise Skip("no vLLM (see --peers)")
        env = dict(os.environ, HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="4", VLLM_NO_USAGE_STATS="1")
        return [c.vllm, "serve", c.hf, "--dtype", "bfloat16", "--max-model-len", "8192", "--max-num-seqs", "16", "--port", str(port),
                "--served-model-name", "m", "--enable-prompt-tokens-details"], port, env

    def turn(self, name):
        """The server, awake, all others asleep."""
        if name in self.failed:
            raise Skip(self.failed[name])
        for other, server in self.started.items():
            if other != name:
                server.signal(signal.SIGSTOP)
        if name in self.started and self.started[name].process.poll() is not None:
            self.context.note("%s had ended with %s: started again" % (name, self.started[name].process.returncode))
            self.started.pop(name).end()
        if name not in self.started:
            command, port, env = self.command(name)
            log = os.path.join(self.context.out, "server-%s.log" % name.replace("+", "-"))
            try:
                self.started[name] = Server(name, command, port, log, env)
            except Skip as e:
                self.failed[name] = str(e)
                raise
            self.context.referee(self.started[name].url, "w1", 1)  # one warm round, not kept
        self.started[name].signal(signal.SIGCONT)
        return self.started[name]

    def sleep(self):
        for server in self.started.values():
            server.signal(signal.SIGSTOP)

    def end(self):
        for server in self.started.values():
            server.end()
        self.started = {}


def llama_builds(c, earlier, entry):
    """All builds in the first round, then the one that was fastest (the figures in question are seconds)."""
    seen = {b: [r["values"][b + " " + entry] for r in earlier if b + " " + entry in r["values"]] for b in c.llama_names}
    seen = {b: v for b, v in seen.items() if v}
    return [min(seen, key=lambda b: min(seen[b]))] if seen else c.llama_names


def workload(name, who, figures):
    """measure() for one of the referee's workloads; figures: (name of the referee's entry, its field)."""
    def measure(number, values, earlier, c):
        order = ["ours"] + [p for p in who if p != "llama"] + (llama_builds(c, earlier, figures[0][0]) if "llama" in who else [])
        seed, problems = 1000 + number, []
        for server in order if number % 2 == 0 else reversed(order):
            try:
                entries = c.referee(c.servers.turn(server).url, name, seed)
            except (Skip, RuntimeError) as e:
                if server == "ours":
                    raise
                problems.append("%s: %s" % (server, e))
                c.note("%s: %s" % (name, problems[-1]))
                continue
            for entry, field in figures:
                found = [e for e in entries if e["name"].startswith(entry + " ")]
                values["%s %s" % (server, entry)] = found[0][field]
        c.servers.sleep()
        return {"problems": problems} if problems else {}
    return measure


# ---- Start to first token

def first_token(command, port, body, log, env=None, patience=120):
    """Seconds from starting the process to the first streamed chunk with output."""
    start = time.perf_counter()
    with open(log, "wb") as f:
        process = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        while time.perf_counter() < start + patience:
            if process.poll() is not None:
                raise RuntimeError("%s ended with %d: %s" % (os.path.basename(command[0]), process.returncode, log))
            try:
                c = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
                c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                r = c.getresponse()
                if r.status == 200:
                    for line in iter(r.readline, b""):
                        if line.startswith(b"data: {") and b'"choices":[]' not in line.replace(b" ", b""):
                            return time.perf_counter() - start
                    raise RuntimeError("the stream ended without a token")
                if r.status != 503:  # 503: still loading
                    raise RuntimeError("status %d: %s" % (r.status, r.read()[:200]))
            except (ConnectionError, http.client.HTTPException):
                pass
            time.sleep(0.002)
        raise RuntimeError("no token in %d s" % patience)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def measure_start(number, values, earlier, c):
    with open(c.demo, "rb") as f:  # into the page cache
        while f.read(1 << 22):
            pass
    log = os.path.join(c.out, "start.log")

    def ours():
        port = free_port()
        return first_token([c.kvasir, "serve", c.demo, "--port", str(port), "--threads", str(c.threads)], port, body(c.demo), log)

    def theirs(build, flags):
        port = free_port()
        return first_token([c.llama(build, "llama-server"), "-m", c.demo, "-t", str(c.threads), "--port", str(port)] + flags, port,
                           body(c.demo), log, c.llama_env(build))

    def body(model):
        return json.dumps({"model": os.path.splitext(os.path.basename(model))[0], "prompt": [500], "max_tokens": 1, "temperature": 0,
                           "stream": True})

    if not earlier:
        ours()  # what is learnt about a model at its first start is not part of a start
    lean = ["-c", "2048", "-np", "1", "--no-warmup"]
    jobs = [("ours", ours)]
    for build in c.llama_names:
        for label, flags in (("defaults", []), ("no warm-up", ["--no-warmup"]), ("1 slot of 2048, no warm-up", lean),
                             ("1 slot of 2048, no warm-up, no repacking", lean + ["--no-repack"])):
            jobs.append(("%s, %s" % (build, label), lambda b=build, f=flags: theirs(b, f)))
    c.alternate(number, values, jobs)


# ---- Interference: one user decodes while long prompts arrive

def stream(port, prompt, count, enough=None):
    """Arrival times of the chunks of one greedy completion, the time it was sent first. Hangs up once `enough` is set."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("GET", "/v1/models")
    name = json.loads(c.getresponse().read())["data"][0]["id"]
    body = {"model": name, "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "stream": True}
    times = [time.perf_counter()]
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        raise RuntimeError("status %d: %s" % (r.status, r.read()[:200]))
    for line in iter(r.readline, b""):
        if line.startswith(b"data: {") and b'"choices":[]' not in line.replace(b" ", b""):
            times.append(time.perf_counter())
        if enough and enough.is_set():
            break
    c.close()
    return times


def beside_prompts(port, tokens, least, prompts=2):
    """(sorted gaps of a decoding user while prompts of 4,096 tokens come one after the other, seconds those prompts took). Fewer gaps than
    `least` say nothing."""
    box, enough = {"times": []}, threading.Event()
    decoder = threading.Thread(target=lambda: box.update(times=stream(port, tokens(64), 4000, enough)))
    decoder.start()
    time.sleep(0.5)
    from_time, took = time.perf_counter(), []
    for _ in range(prompts):
        t = stream(port, tokens(4096), 1)
        took.append(t[1] - t[0])
    to_time = time.perf_counter()
    time.sleep(0.5)  # the gap that is open has an end
    enough.set()
    decoder.join()
    gaps = sorted(b - a for a, b in zip(box["times"][1:], box["times"][2:]) if b > from_time and a < to_time)
    if len(gaps) < least or box["times"][-1] < to_time:
        raise RuntimeError("the decoding user had only %d gaps beside the prompts" % len(gaps))
    return gaps, took


def random_tokens(seed):
    rng = random.Random(seed)
    return lambda n: [rng.randrange(300, 49000) for _ in range(n)]


def our_server(c, flags, log):
    command = [c.kvasir, "serve", c.demo, "--port", "0", "--threads", str(c.threads)] + c.serve_flags + flags
    return Server("ours with " + " ".join(flags), command, 0, os.path.join(c.out, log))


def measure_interference(number, values, earlier, c):
    tokens = random_tokens(2000 + number)
    server = our_server(c, ["--itl-target", "150"], "interference.log")
    try:
        stream(server.port, tokens(64), 8)
        alone = []
        for _ in range(2):
            t = stream(server.port, tokens(4096), 1)
            alone.append(t[1] - t[0])
        gaps, beside = beside_prompts(server.port, tokens, least=20)
        p99 = percentile(gaps, 0.99)
        values["ours 200 ms over p99 gap"] = 0.2 / p99
        values["ours prompt speed kept"] = sum(alone) / sum(beside)
        values["info longest gap s"] = gaps[-1]
        values["info p99 gap s"] = p99
    finally:
        server.end()


def measure_gap(number, values, earlier, c):
    """w6 with a user who decodes until the prompts are answered, whatever the engine's speed; ours protects that user as one asks it to."""
    problems = []
    order = ["ours"] + (["vllm"] if c.vllm else []) + llama_builds(c, earlier, "longest gap")
    for name in order if number % 2 == 0 else reversed(order):
        tokens = random_tokens(3000 + number)
        server = None
        try:
            if name == "ours":
                c.servers.sleep()
                server = our_server(c, ["--itl-target", "50"], "gap.log")
                stream(server.port, tokens(64), 8)
            gaps, took = beside_prompts((server or c.servers.turn(name)).port, tokens, least=2)
            values[name + " longest gap"], values["info %s prompts s" % name] = gaps[-1], sum(took)
        except (Skip, RuntimeError, OSError) as e:
            if name == "ours":
                raise
            problems.append("%s: %s" % (name, e))
            c.note("gap: " + problems[-1])
        finally:
            if server:
                server.end()
    c.servers.sleep()
    return {"problems": problems} if problems else {}


def units():
    return [
        Unit("serve", "w3", 35, workload("w3", ["vllm"], [("w3a", "wall"), ("w3b", "wall")]), [
            View("8 users, 2,000 shared tokens, cold (w3a), wall", 4, "ours w3a", "vllm w3a", "low", "s"),
            View("the same, warm (w3b), wall", 4, "ours w3b", "vllm w3b", "low", "s")]),
        Unit("serve", "w4", 70, workload("w4", ["vllm"], [("w4", "out_tps")]), [
            View("16 at once, nothing shared (w4), output", 3, "ours w4", "vllm w4")]),
        Unit("serve", "w5", 110, workload("w5", ["vllm", "llama"], [("w5", "wall")]), [
            View("4 agents, growing history (w5), wall", 3, "ours w5", "vllm w5|llama* w5", "low", "s")]),
        Unit("serve", "w6", 110, workload("w6", ["vllm", "llama"], [("w6", "itl_max")]), [
            View("worst gap between tokens while long prompts arrive (w6)", 30, "ours w6", "vllm w6|llama* w6", "low", "s")]),
        Unit("serve", "gap", 60, measure_gap, [
            View("the same, its user decoding until both prompts are answered, ours with `--itl-target 50`", 30, "ours longest gap",
                 "vllm longest gap|llama* longest gap", "low", "s")]),
        Unit("interference", "interference", 20, measure_interference, [
            View("`--itl-target 150`: 200 ms over the p99 gap beside 4,096-token prompts", 1, "ours 200 ms over p99 gap", None, what=""),
            View("`--itl-target 150`: speed those prompts keep", 0.8, "ours prompt speed kept", None, what="")]),
        Unit("start", "start", 8, measure_start, [
            View("start to first token, warm page cache", 1, "ours", "llama*", "low", "s")]),
    ]


def referee(context, url, only, seed):
    """Entries of one run of the referee."""
    if not (context.peerbench and os.path.isfile(context.peerbench)):
        raise Skip("no peerbench.py (--peerbench)")
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        output([context.python, os.path.join(HERE, "referee.py"), context.peerbench, url, "--only", only, "--seed", str(seed),
                "--json", f.name])
        return json.load(f)
