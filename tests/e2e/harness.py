"""Servers under test, HTTP helpers and checks for the end-to-end tests. Standard library only."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.path.join(os.path.dirname(ROOT), "shared")
REQUESTS = os.path.join(SHARED, "cases", "requests")
HANG = 120  # seconds after which something is taken for dead; never a statement about speed
TESTS = []


class Skip(Exception):
    """Raised by a test that cannot run here; the reason is printed."""


def test(name):
    """Registers a test. It gets a Context and reports with check/equal, which go on after a failure."""
    def register(f):
        TESTS.append((name, f))
        return f
    return register


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body.decode("utf-8"))

    @property
    def error(self):
        """The error object, {} if the body is no error."""
        try:
            found = self.json().get("error")
        except (ValueError, AttributeError):
            return {}
        return found if isinstance(found, dict) else {}


class Stream:
    """A finished SSE answer, taken apart. Raises ValueError if an event is no valid UTF-8 JSON."""

    def __init__(self, status, headers, body, events, done):
        self.status, self.headers, self.body, self.events, self.done = status, headers, body, events, done
        self.text, self.finish, self.usage, self.usage_events, self.pieces = {}, {}, None, 0, {}
        for event in events:
            if event.get("usage"):
                self.usage, self.usage_events = event["usage"], self.usage_events + 1
            for choice in event.get("choices", []):
                i = choice["index"]
                piece = choice.get("text") if "text" in choice else (choice.get("delta") or {}).get("content")
                self.pieces.setdefault(i, []).append(piece or "")
                self.text[i] = self.text.get(i, "") + (piece or "")
                if choice.get("finish_reason"):
                    self.finish[i] = choice["finish_reason"]


class Server:
    """`kvasir serve` on a free port. Use with `with`, or through Context.server."""

    def __init__(self, binary, model, flags=(), env=None, wait=True):
        self.model_path = model
        self.log_path = tempfile.mktemp(prefix="kvasir-e2e-", suffix=".log")
        self.command = [binary, "serve", model, "--port", "0", *map(str, flags)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env=dict(os.environ, **(env or {})))
        self.port, self.name, self.key = None, None, None
        if wait:
            self.wait_ready()

    def log(self):
        with open(self.log_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def wait_ready(self):
        end = time.time() + HANG
        while time.time() < end:
            if self.process.poll() is not None:
                raise AssertionError("server ended with %d: %s" % (self.process.returncode, self.log()[-600:]))
            found = re.search(r"http://127\.0\.0\.1:(\d{2,5})", self.log())
            if found:
                self.port = int(found.group(1))
                try:
                    if self.get("/health").status == 200:
                        break
                except OSError:
                    pass
            time.sleep(0.02)
        else:
            raise AssertionError("server not ready after %d s: %s" % (HANG, self.log()[-600:]))

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.port

    def served_name(self):
        if self.name is None:
            self.name = self.get("/v1/models").json()["data"][0]["id"]
        return self.name

    def alive(self):
        return self.process.poll() is None

    def rss(self):
        """Resident bytes: (all, anonymous)."""
        with open("/proc/%d/status" % self.process.pid, encoding="ascii") as f:
            kib = dict(re.findall(r"(\w+):\s+(\d+) kB", f.read()))
        return int(kib["VmRSS"]) * 1024, int(kib["RssAnon"]) * 1024

    # ---- HTTP
    def connect(self, timeout=HANG):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def headers(self, extra=None):
        return {"Content-Type": "application/json", **({"Authorization": "Bearer " + self.key} if self.key else {}),
                **(extra or {})}

    def get(self, path, headers=None):
        c = self.connect()
        try:
            c.request("GET", path, headers=self.headers(headers))
            r = c.getresponse()
            return Response(r.status, dict(r.getheaders()), r.read())
        finally:
            c.close()

    def post(self, path, body, headers=None, timeout=HANG):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        c = self.connect(timeout)
        try:
            c.request("POST", path, raw, self.headers(headers))
            r = c.getresponse()
            return Response(r.status, dict(r.getheaders()), r.read())
        finally:
            c.close()

    def stream(self, path, body, on_event=None):
        """Sends with stream set and reads to the end. on_event(event, connection) may close early by returning False."""
        body = dict(body, stream=True)
        c = self.connect()
        try:
            c.request("POST", path, json.dumps(body).encode(), self.headers())
            r = c.getresponse()
            if r.status != 200:
                return Stream(r.status, dict(r.getheaders()), r.read(), [], False)
            raw, events, done = b"", [], False
            for line in iter(r.readline, b""):
                raw += line
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    done = True
                    continue
                events.append(json.loads(data.decode("utf-8")))
                if on_event and on_event(events[-1], c) is False:
                    break
            return Stream(200, dict(r.getheaders()), raw, events, done)
        finally:
            c.close()

    def open_stream(self, path, body, receive_buffer=None):
        """A raw socket whose request is sent and whose answer nobody has read yet."""
        raw = json.dumps(dict(body, stream=True)).encode()
        s = socket.socket()
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(HANG)
        s.connect(("127.0.0.1", self.port))
        s.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" %
                  (path.encode(), len(raw)) + raw)
        return s

    # ---- metrics
    def metrics(self):
        """{(name, frozenset(labels without model_name)): value} by the Prometheus client's own parser."""
        from prometheus_client.parser import text_string_to_metric_families
        out = {}
        for family in text_string_to_metric_families(self.get("/metrics").body.decode("utf-8")):
            for s in family.samples:
                labels = frozenset((k, v) for k, v in s.labels.items() if k != "model_name")
                out[(s.name, labels)] = s.value
        return out

    def value(self, name, metrics=None, **labels):
        """Sum over the series of `name` that carry `labels`; None if there is none."""
        found = [v for (n, have), v in (metrics or self.metrics()).items() if n == name and set(labels.items()) <= have]
        return sum(found) if found else None

    def books(self, metrics=None):
        m = metrics or self.metrics()
        states = {dict(labels)["state"]: v for (n, labels), v in m.items() if n == "kvasir_kv_blocks"}
        return dict(states, total=self.value("kvasir_kv_blocks_total", m),
                    running=self.value("vllm:num_requests_running", m), waiting=self.value("vllm:num_requests_waiting", m))

    def quiet(self, seconds=10):
        """Waits until nothing runs, waits or holds blocks; returns the books then (or the last ones seen)."""
        end = time.time() + seconds
        while True:
            b = self.books()
            held = sum(b.get(s) or 0 for s in ("filling", "pinned", "inflight"))
            if (b["running"] == 0 and b["waiting"] == 0 and held == 0) or time.time() > end:
                return b
            time.sleep(0.05)

    # ---- end
    def stop(self, sig=signal.SIGTERM, timeout=HANG):
        if self.alive():
            self.process.send_signal(sig)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.stop()


class Context:
    """What a test gets."""

    def __init__(self, options):
        self.options, self.binary = options, os.path.abspath(options.binary)
        self.problems, self.notes, self._servers = [], [], {}
        self.tmp = tempfile.mkdtemp(prefix="kvasir-e2e-")
        self._fixtures = options.fixtures

    # ---- reporting
    def check(self, good, text):
        if not good:
            self.problems.append(text)
        return bool(good)

    def equal(self, got, want, text):
        return self.check(got == want, "%s: %s, expected %s" % (text, short(got), short(want)))

    def note(self, text):
        self.notes.append(text)

    # ---- data
    def fixtures(self):
        """Folder of the fixture models, made on first use."""
        if self._fixtures is None:
            self._fixtures = self._make("fixtures")
        return self._fixtures

    def hostile(self):
        if getattr(self, "_hostile", None) is None:
            self._hostile = self._make("hostile", "--hostile")
        return self._hostile

    def _make(self, folder, *flags):
        script = os.path.join(SHARED, "cases", "make_fixtures.py")
        if not os.path.exists(script):
            raise Skip("../shared/cases is not here")
        out = os.path.join(self.tmp, folder)
        subprocess.run([sys.executable, script, out, *flags], check=True, stdout=subprocess.DEVNULL)
        return out

    def fixture_module(self):
        self.fixtures()
        sys.path.insert(0, os.path.join(SHARED, "cases"))
        import make_fixtures
        return make_fixtures

    def model(self, name):
        """A fixture by name, `stories`, or `demo`."""
        if name == "stories":
            path = os.path.join(SHARED, "models", "stories260K.gguf")
            if not os.path.exists(path):
                raise Skip("../shared/models is not here")
            return path
        if name == "demo":
            path = os.environ.get("KVASIR_DEMO_MODEL") or os.path.join(
                os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"),
                "kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf")
            if not os.path.exists(path):
                raise Skip("the demo model is not here (./kvasir-quickstart --once fetches it)")
            return path
        if name.startswith("/"):
            return name
        return os.path.join(self.fixtures(), name + ".gguf")

    def request(self, file):
        path = os.path.join(REQUESTS, file)
        if not os.path.exists(path):
            raise Skip("../shared/cases/requests is not here")
        with open(path, "rb") as f:
            return f.read()

    def body(self, file, server, **changes):
        return dict(json.loads(self.request(file)), model=server.served_name(), **changes)

    # ---- servers
    def server(self, name, *flags):
        """A server kept for later tests with the same model and flags; at most three stay up."""
        key = (name, flags)
        if key in self._servers and self._servers[key].alive():
            self._servers[key] = self._servers.pop(key)
            return self._servers[key]
        self._servers.pop(key, None)
        while len(self._servers) >= 3:
            self._servers.pop(next(iter(self._servers))).stop()
        self._servers[key] = self.fresh(name, *flags)
        return self._servers[key]

    def fresh(self, name, *flags, **more):
        have = [f.split("=")[0] for f in map(str, flags)]
        defaults = [] if "--kv-mem" in have or "--kv-blocks" in have else ["--kv-mem", "64MiB"]
        return Server(self.binary, self.model(name), [*defaults, *flags], **more)

    def after_test(self):
        """What holds after every test: servers alive, healthy, nothing held, the books add up."""
        for (name, flags), s in list(self._servers.items()):
            if not self.check(s.alive(), "server %s %s died: %s" % (name, " ".join(map(str, flags)), s.log()[-500:])):
                self._servers.pop((name, flags))
                continue
            try:
                self.equal(s.get("/health").status, 200, "health of %s" % name)
                self.check_books(s.quiet(), name)
            except (OSError, http.client.HTTPException) as e:
                self.check(False, "server %s does not answer: %r" % (name, e))
                s.process.kill()
                self._servers.pop((name, flags))

    def check_books(self, b, name):
        states = {k: v for k, v in b.items() if k not in ("total", "running", "waiting")}
        self.check(sum(states.values()) == b["total"] and min(states.values(), default=-1) >= 0, "books of %s: %s" % (name, b))
        self.check(b["running"] == 0 and b["waiting"] == 0 and
                   states.get("free", 0) + states.get("evictable", 0) + states.get("reserved", 0) == b["total"],
                   "not back at the baseline, %s: %s" % (name, b))

    def close(self):
        for s in self._servers.values():
            s.stop()
        shutil.rmtree(self.tmp, ignore_errors=True)

    # ---- processes
    def sanitized(self):
        """Is the binary built with AddressSanitizer? Then memory cannot be limited or judged."""
        with open(self.binary, "rb") as f:
            return b"__asan_init" in f.read()

    def run(self, *arguments, timeout=HANG, **more):
        return subprocess.run([self.binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, timeout=timeout, **more)


def short(value):
    text = repr(value)
    return text if len(text) <= 160 else text[:110] + " ... " + text[-40:]


@contextmanager
def background(function):
    """Runs function in a thread; the value is in the list once the block is left."""
    result = []

    def work():
        try:
            result.append(function())
        except Exception as e:  # handed to the caller
            result.append(e)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield result
    finally:
        thread.join(HANG)
    if result and isinstance(result[0], Exception):
        raise result[0]


def together(functions):
    """Runs all at once; returns their values, or raises the first error."""
    out = [None] * len(functions)

    def work(i):
        try:
            out[i] = functions[i]()
        except Exception as e:
            out[i] = e
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    for value in out:
        if isinstance(value, Exception):
            raise value
    return out
