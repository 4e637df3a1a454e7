"""The process: exit codes, signals, memory, chat in a terminal, bench."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

from harness import HANG, SHARED, Server, Skip, test, together


@test("exit codes 0, 1, 2, 3, 4 and one clear line")
def exit_codes(t):
    model = t.model("ref")
    missing = os.path.join(t.tmp, "missing.gguf")
    serve = lambda *f: ("serve", model, "--port", "0", *f)
    for arguments, code, word in (
            (("version",), 0, None), (("--help",), 0, None), (("serve", "--help"), 0, None),
            (("serve",), 2, ""), (("nonsense",), 2, ""), (serve("--no-such-flag"), 2, "no-such-flag"),
            (serve("--kv-mem", "banana"), 2, "kv-mem"), (serve("--kv-mem", "0"), 2, "kv-mem"), (serve("--block-size", "7"), 2, "block-size"),
            (serve("--block-size", "512"), 2, "block-size"), (serve("--threads", "-1"), 2, "threads"),
            (serve("--kv-type", "nonsense"), 2, "kv-type"), (serve("--precision", "nonsense"), 2, "precision"),
            (serve("--max-num-seqs", "0"), 2, "max-num-seqs"), (serve("--max-model-len", "0"), 2, "max-model-len"),
            (serve("--reserve-blocks", "2"), 2, "reserve-blocks"), (("serve", model, "--port", "99999"), 2, "port"),
            (serve("--host", "0.0.0.0"), 2, "api-key"),
            (("serve", missing, "--port", "0"), 3, "missing.gguf"), (("inspect", missing), 3, "missing.gguf"),
            (("serve", t.tmp, "--port", "0"), 3, ""), (serve("--kv-mem", "100TiB"), 4, "")):
        r = t.run(*arguments)
        text = r.stderr.decode("utf-8", "replace").strip()
        shown = " ".join(os.path.basename(a) for a in arguments)
        t.equal(r.returncode, code, "%s: exit code (%s)" % (shown, text[-200:]))
        if code:
            t.check(text and word in text, "%s: %r does not say %s" % (shown, text[:200], word))
            t.check(code == 2 or "\n" not in text, "%s: more than one line: %r" % (shown, text[:300]))
        elif arguments[0] == "version":
            t.check(re.search(rb"avx|portable", r.stdout), "version does not name the instruction set: %r" % r.stdout[:200])
        else:
            t.check(len(r.stdout) > 200, "%s is short: %r" % (shown, r.stdout[:200]))
    r = t.run(*serve("--kv-mem", "100TiB"))
    t.check(re.search(rb"\d", r.stderr) and re.search(rb"[GM]iB", r.stderr), "exit 4 does not say what would fit: %r" % r.stderr[-200:])
    s = t.server("ref")
    busy = t.run("serve", model, "--port", s.port, "--kv-mem", "8MiB")
    t.equal(busy.returncode, 1, "port in use: exit code (%r)" % busy.stderr[-200:])
    t.check(str(s.port).encode() in busy.stderr, "port in use: %r" % busy.stderr[-200:])


@test("SIGTERM drains: the running stream ends well, new requests are refused, exit 0")
def drain(t):
    for sig, limit, cut in ((signal.SIGTERM, 60, False), (signal.SIGINT, 60, False), (signal.SIGTERM, 0, True)):
        with t.fresh("stories", "--drain-timeout", limit) as s:
            body = {"model": s.served_name(), "prompt": [3, 4, 5], "max_tokens": 1200, "temperature": 0, "ignore_eos": True}
            seen = []

            def on_event(event, connection):
                seen.append(1)
                if len(seen) == 2:
                    s.process.send_signal(sig)
            got = s.stream("/v1/completions", body, on_event)
            if not cut:
                t.check(got.done and got.finish.get(0) == "length", "%s: the stream was cut: done %s, %s" % (sig.name, got.done, got.finish))
            try:
                t.equal(s.process.wait(HANG), 0, "%s, drain %d: exit code" % (sig.name, limit))
            except subprocess.TimeoutExpired:
                t.check(False, "%s, drain %d: still alive" % (sig.name, limit))
    with t.fresh("stories", "--drain-timeout", 60) as s:
        held = s.open_stream("/v1/completions", {"model": s.served_name(), "prompt": [3, 4, 5], "max_tokens": 1900,
                                                 "temperature": 0, "ignore_eos": True, "n": 8})
        held.recv(64)
        s.process.send_signal(signal.SIGTERM)
        end, statuses = time.time() + 5, []
        while time.time() < end and s.alive() and 503 not in statuses:
            try:
                statuses.append(s.get("/health").status)
            except OSError:
                statuses.append("refused")
                break
        t.check(statuses and statuses[-1] in (503, "refused"), "health while draining: %s" % statuses[-3:])
        s.process.send_signal(signal.SIGTERM)
        begun = time.time()
        try:
            s.process.wait(20)
        except subprocess.TimeoutExpired:
            t.check(False, "a second signal does not end it at once")
        t.note("health while draining: %s; a second signal ends it after %.1f s, exit %s" % (statuses[-1:], time.time() - begun, s.process.returncode))
        held.close()


@test("loading: health is 503 or refused before 200")
def loading(t):
    s = Server(t.binary, t.model("ref"), ["--kv-mem", "8MiB"], wait=False)
    s.wait_ready()
    t.equal(s.get("/health").status, 200, "health")
    t.equal(s.get("/v1/models").json()["data"][0]["id"], "ref", "name is the file's stem")
    t.equal(s.stop(), 0, "exit code")
    with t.fresh("ref", "--served-model-name", "other/name") as named:
        t.equal(named.served_name(), "other/name", "--served-model-name")
        t.equal(named.get("/v1/models/other%2Fname").status, 200, "escaped model path")


@test("--max-queue and --queue-timeout: 429 with Retry-After, 503")
def queue_limits(t):
    # The demo model needs half a minute for the held answer: the seat is taken for the whole test.
    with t.fresh("demo", "--kv-mem", "256MiB", "--max-num-seqs", 1, "--max-queue", 2, "--queue-timeout", 1) as s:
        body = {"model": s.served_name(), "prompt": [97, 98], "max_tokens": 8000, "temperature": 0, "ignore_eos": True}
        held = [s.open_stream("/v1/completions", body)]
        held[0].recv(64)
        waiting = [s.open_stream("/v1/completions", body) for _ in range(2)]
        end = time.time() + 10
        while s.books()["waiting"] < 2 and time.time() < end:
            time.sleep(0.01)
        r = s.post("/v1/completions", dict(body, max_tokens=2))
        t.equal(r.status, 429, "third in the queue: %s" % r.body[:160])
        t.check(any(k.lower() == "retry-after" for k in r.headers), "429 without Retry-After: %s" % r.headers)
        late = waiting[0].recv(65536).decode("utf-8", "replace")
        t.check("503" in late or "error" in late, "after the queue timeout: %r" % late[:200])
        for c in held + waiting:
            c.close()


@test("memory: pool within 2 %, everything else under 100 MB with 64 users")
def memory(t):
    if t.sanitized():
        raise Skip("memory is not to be judged under AddressSanitizer")
    asked = 256 << 20
    s = t.fresh("demo", "--kv-mem", "256MiB", "--max-model-len", 2048)
    try:
        name = s.served_name()
        idle = s.rss()
        b = s.books()
        pool = b["total"] * s.value("kvasir_kv_bytes_per_token") * 16
        t.check(0.98 * asked <= pool <= 1.02 * asked, "pool of %.1f MiB, asked 256" % (pool / 2**20))
        peak = [0]

        def one(i):
            body = {"model": name, "prompt": [t.random.randrange(300, 49000) for _ in range(64 + i)], "max_tokens": 12,
                    "temperature": 1, "ignore_eos": True}
            return s.stream("/v1/completions", body, lambda e, c: peak.append(s.rss()[0]) if i % 16 == 0 else None).done
        t.equal(together([lambda i=i: one(i) for i in range(64)]), [True] * 64, "64 users")
        weights, top = os.path.getsize(t.model("demo")), max(peak)
        # Blocks are reused oldest first, so each of these prompt tokens has touched bytes of its own: a lower bound.
        touched = min(pool, sum(64 + i for i in range(64)) * s.value("kvasir_kv_bytes_per_token"))
        rest = (top - weights - touched) / 1e6
        t.check(rest < 100, "resident %.1f MB - weights %.1f MB - used pool %.1f MB = %.1f MB" % (
            top / 1e6, weights / 1e6, touched / 1e6, rest))
        t.note("idle %.0f MB (anonymous %.0f), peak %.0f MB; above weights and used pool %.0f MB" % (
            idle[0] / 1e6, idle[1] / 1e6, top / 1e6, rest))
    finally:
        t.equal(s.stop(), 0, "exit code")


@test("signals: SIGUSR1 means nothing, and SIGTERM is still heard after it")
def stray_signal(t):
    s = t.fresh("stories")
    try:
        s.process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        t.check(s.alive(), "SIGUSR1 ended the server")
        t.equal(s.get("/health").status, 200, "health after SIGUSR1")
    finally:
        t.equal(s.stop(), 0, "exit code")


@test("serve --help: its curl line works as it is printed")
def help_example(t):
    text = t.run("serve", "--help").stdout.decode()
    line = next(x.strip() for x in text.splitlines() if x.strip().startswith("curl "))
    with t.fresh("demo") as s:
        line = line.replace("http://127.0.0.1:8080", s.url).replace('"messages"', '"max_tokens":4,"messages"')
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=HANG)
        t.check('"assistant"' in done.stdout, "%s\nanswered %s %s" % (line, done.stdout[:300], done.stderr[-200:]))


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.seen = ""

    def read(self, quiet, at_most=None):
        """Reads until nothing came for `quiet` seconds, or `at_most` seconds have gone."""
        new, end = "", time.time() + (at_most or HANG)
        while time.time() < end and select.select([self.fd], [], [], quiet)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            new += data.decode("utf-8", "replace")
        self.seen += new
        return new

    def until(self, pattern, seconds=HANG):
        text, end = "", time.time() + seconds
        while time.time() < end:
            text += self.read(0.2, 0.2)
            if re.search(pattern, text):
                return text
            if not self.alive():
                return text + self.read(0.2)
        return text

    def write(self, text):
        os.write(self.fd, text.encode())

    def alive(self):
        if getattr(self, "code", None) is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return getattr(self, "code", None) is None

    def end(self, seconds=20):
        limit = time.time() + seconds
        while self.alive() and time.time() < limit:
            self.read(0.1)
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return None
        return self.code


@test("kvasir chat in a terminal: answer, /stats, Ctrl-C, /reset, end")
def chat_terminal(t):
    model = t.model("demo")
    c = Terminal([t.binary, "chat", model])
    c.until(r"> ?(\x1b\[[0-9;]*m)*\s*$")
    t.check(c.alive(), "chat ended at start: %r" % c.seen[-300:])
    c.write("What is the capital of France? One word.\n")
    answer = c.until(r"Paris")
    t.check("Paris" in answer, "answer: %r" % answer[-300:])
    c.read(2)
    c.write("/stats\n")
    stats = c.until(r"KV pool")
    t.check(re.search(r"\d", stats) and "KV pool" in stats, "/stats: %r" % stats[-300:])
    c.read(1)
    c.write("Write a very long story about the sea, in at least two thousand words.\n")
    first = c.until(r"(?s)words\.\r?\n.*(\w+ ){8}", 30)
    t.check("tokens," not in first, "the long answer ended by itself: %r" % first[-200:])
    os.write(c.fd, b"\x03")
    stopped = c.until(r"> ?$", 30)
    t.check("(stopped)" in stopped or "tokens," in stopped, "no word that the answer was stopped: %r" % stopped[-200:])
    after = c.read(1.5, 3)
    t.check(c.alive(), "Ctrl-C ended the program: %r" % c.seen[-200:])
    t.check(len(after) < 40, "the answer goes on after Ctrl-C: %r" % after[:200])
    t.check(len(first) > 100, "no long answer had begun: %r" % first)
    c.write("/reset\n")
    c.read(1)
    c.write("Say the word banana.\n")
    t.check("anana" in c.until(r"(?s)[Bb]anana.*[Bb]anana", 60), "no answer after Ctrl-C and /reset: %r" % c.seen[-300:])
    c.read(2)
    os.write(c.fd, b"\x04")  # end of input
    t.equal(c.end(), 0, "exit code after Ctrl-D")


@test("kvasir chat with piped input")
def chat_pipe(t):
    r = subprocess.run([t.binary, "chat", t.model("demo")], input=b"What is the capital of France? One word.\n", stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=HANG, check=False)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-200:])
    t.check(b"Paris" in r.stdout, "answer: %r" % r.stdout[-300:])


@test("kvasir bench against our own server: table and JSON")
def bench(t):
    s = t.server("stories", "--kv-mem", "128MiB")
    r = t.run("bench", "--help")
    t.equal(r.returncode, 0, "bench --help")
    only = ("--only", "w1") if b"--only" in r.stdout else ("--workloads", "w1") if b"--workloads" in r.stdout else ()
    vocab = ("--vocab", "500") if b"--vocab" in r.stdout else ()
    plain = t.run("bench", "--url", s.url, *only, *vocab, timeout=600)
    t.equal(plain.returncode, 0, "exit code: %r" % plain.stderr[-300:])
    t.check(b"w1" in plain.stdout and re.search(rb"ttft", plain.stdout, re.I), "table: %r" % plain.stdout[-400:])
    as_json = t.run("bench", "--url", s.url, *only, *vocab, "--json", "-", timeout=600)
    t.equal(as_json.returncode, 0, "--json exit code: %r" % as_json.stderr[-300:])
    try:
        text = json.dumps(json.loads(as_json.stdout))
        t.check("ttft" in text and "NaN" not in text, "JSON: %s" % text[:300])
    except ValueError:
        t.check(False, "--json prints no JSON: %r" % as_json.stdout[:200])
    none = t.run("bench", "--url", "http://127.0.0.1:1")
    t.check(none.returncode == 1 and none.stderr.strip().count(b"\n") == 0, "no server: exit %d %r" % (none.returncode, none.stderr[:200]))



@test("the referee peerbench.py runs against us")
def referee(t):
    import sys
    script = os.path.join(SHARED, "tools", "peerbench.py")
    if not os.path.exists(script):
        raise Skip("../shared/tools is not here")
    import aiohttp  # noqa: F401  (missing: the test is skipped)
    s = t.server("stories", "--kv-mem", "128MiB")
    r = subprocess.run([sys.executable, script, s.url, "--only", "w1", "--vocab", "500", "--seed", "5"], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=600, check=False)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-400:])
    t.check(b"decode_tps" in r.stdout, "output %r" % r.stdout[-200:])
