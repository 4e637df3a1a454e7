"""Cases A07, A08, A11, A12, S02: impossible numbers, the context's edge, malformed bodies, empty prompts, giant bodies."""
import json
import threading
import time

from harness import HANG, Response, background, test, together


def names(r, word):
    e = r.error
    return word in (e.get("param") or "") or word in (e.get("message") or "")


def is_api_error(t, r, what):
    return t.check({"message", "type", "param", "code"} <= set(r.error) and r.error["message"] and "\n" not in r.error["message"],
                   "%s: not an API error: %d %s" % (what, r.status, r.body[:200]))


# Every integer field of ours at -1: (field, value, may it pass?)
MINUS_ONE = [("top_k", -1, True), ("min_tokens", -1, False), ("logprobs", -1, False), ("prompt_logprobs", -1, False),
             ("truncate_prompt_tokens", -1, True), ("stop_token_ids", [-1], False), ("allowed_token_ids", [-1], False),
             ("allowed_token_ids", [305], False), ("n", 1 << 40, False), ("max_tokens", 1 << 70, False),
             ("min_p", -0.1, False), ("min_p", 1.5, False), ("repetition_penalty", 0, False), ("repetition_penalty", -1, False),
             ("presence_penalty", 2.5, False), ("frequency_penalty", -2.5, False), ("seed", "x", False), ("priority", "x", False),
             ("logit_bias", {"97": 101}, False), ("logit_bias", [1], False), ("stop", ["a"] * 1000, True), ("temperature", "hot", False),
             ("stream", "yes", False), ("bad_words", [3], False), ("echo", 3, False), ("min_tokens", 100, False)]


@test("A07 impossible numbers do not touch a running stream")
def a07(t):
    with t.fresh("ref") as s:
        x = t.body("A07_stream.json", s)
        want = s.stream("/v1/completions", x)
        fields = next(e for e in json.loads(t.request("index.json")) if e["file"] == "A07.jsonl")["expect"]["fields"]
        lines = t.request("A07.jsonl").replace(b'"MODEL"', json.dumps(s.served_name()).encode()).splitlines()
        t.equal(len(lines), len(fields), "lines")
        base = {"model": s.served_name(), "prompt": [97, 98, 99], "max_tokens": 4}
        more = [(json.dumps(dict(base, **{f: v})).encode(), f, ok) for f, v, ok in MINUS_ONE]
        with background(lambda: s.stream("/v1/completions", x)) as got:
            for raw, field, may_pass in [(raw, f, False) for raw, f in zip(lines, fields)] + more:
                r = s.post("/v1/completions", raw)
                shown = raw.decode()[40:140]
                if may_pass and r.status == 200:
                    continue
                if t.equal(r.status, 400, shown):
                    is_api_error(t, r, shown)
                    t.check(names(r, field), "%s: %s is not named in %s" % (shown, field, r.error))
        t.equal(got[0].text, want.text, "the neighbouring stream")
        t.equal(got[0].done, True, "its [DONE]")
        t.equal(s.get("/health").status, 200, "health")
        t.check_books(s.quiet(), "ref")


@test("A08 the edge of the context window")
def a08(t):
    s = t.server("copy_250_ctx256")
    for length in (254, 255, 256, 257, 400):
        body = t.body("A08_%d.json" % length, s)
        body.pop("max_tokens", None)
        for wanted in (None, 0, 1, 10, 256):
            now = dict(body) if wanted is None else dict(body, max_tokens=wanted)
            what = "prompt %d, max_tokens %s" % (length, wanted)
            r = s.post("/v1/completions", now)
            t.check(r.status in (200, 400), "%s: status %d" % (what, r.status))
            if length >= 256 and not (length == 256 and wanted == 0):
                t.equal(r.status, 400, what)
                t.check("256" in r.error.get("message", "") and str(length) in r.error.get("message", ""),
                        "%s: numbers missing: %s" % (what, r.error))
            elif r.status == 200:
                answer = r.json()
                want = "ro"[-(256 - length):] if length < 256 and wanted != 0 else ""
                want = want[:wanted] if wanted is not None else want
                t.equal(answer["choices"][0]["text"], want, what + " text")
                t.equal(answer["choices"][0]["finish_reason"], "length", what + " finish")
                t.equal(answer["usage"]["prompt_tokens"], length, what + " prompt_tokens")
            else:
                t.check(wanted in (0, 10, 256), "%s refused: %s" % (what, r.error))
                if wanted in (10, 256):
                    t.check("256" in r.error["message"] and str(length) in r.error["message"], "%s: %s" % (what, r.error))
    echo = s.post("/v1/completions", dict(t.body("A08_254.json", s), max_tokens=0, echo=True))
    if t.equal(echo.status, 200, "echo with max_tokens 0: %s" % echo.body[:200]):
        t.check("heron" in echo.json()["choices"][0]["text"][:20], "echo lost the front of the prompt")
    frame = s.post("/tokenize", {"model": s.served_name(), "messages": [{"role": "user", "content": "x"}]}).json()["count"] - 1
    over = {wanted: s.post(path, body).status for wanted, path, body in (
        ("completions", "/v1/completions", dict(t.body("A08_254.json", s), max_tokens=10)),
        ("chat", "/v1/chat/completions", {"model": s.served_name(), "max_tokens": 10,
                                          "messages": [{"role": "user", "content": "x" * (254 - frame)}]}))}
    t.equal(over["chat"], over["completions"], "max_tokens beyond the context, chat against completions")


@test("A11 malformed bodies")
def a11_bad(t):
    s = t.server("ref")
    for entry in json.loads(t.request("index.json")):
        if entry["case"] != "A11" or not entry["file"].endswith(".body"):
            continue
        raw = t.request(entry["file"]).replace(b'"MODEL"', json.dumps(s.served_name()).encode())
        headers = {"Content-Type": entry["content_type"]} if "content_type" in entry else None
        what = entry["file"] + " (" + entry["expect"]["note"].split(";")[0] + ")"
        c = s.connect()
        c.request("POST", entry["endpoint"], raw, s.headers(headers))
        r = c.getresponse()
        body = r.read()
        t.check(400 <= r.status < 500, "%s: status %d" % (what, r.status))
        is_api_error(t, Response(r.status, {}, body), what)
        try:  # the same connection, unless the server said it closes
            if (r.getheader("Connection") or "").lower() != "close":
                c.request("GET", "/health")
                t.equal(c.getresponse().status, 200, what + ": next request on the connection")
        except OSError as e:
            t.check(False, "%s: connection unusable: %r" % (what, e))
        c.close()
    nul = s.post("/v1/completions", b'{"model":"%s","prompt":"a\\u0000b","max_tokens":1,"echo":true,"temperature":0}' %
                 s.served_name().encode())
    if nul.status == 200:
        t.equal(nul.json()["choices"][0]["text"][:3], "a\0b", "\\u0000 in a prompt")
    else:
        t.check(400 <= nul.status < 500, "\\u0000: status %d" % nul.status)
    for path, method, want in (("/v1/nothing", "GET", 404), ("/v1/completions", "GET", 405), ("/v1/models/none", "GET", 404)):
        c = s.connect()
        c.request(method, path)
        r = c.getresponse()
        r.read()
        t.check(r.status in (want, 404), "%s %s: %d" % (method, path, r.status))


@test("A11 unusual but legal messages")
def a11_good(t):
    s = t.server("ref")
    for entry in json.loads(t.request("index.json")):
        if entry["case"] == "A11" and entry["file"].endswith(".json"):
            r = s.post(entry["endpoint"], t.body(entry["file"], s))
            t.equal(r.status, 200, "%s (%s): %s" % (entry["file"], entry["expect"]["note"], r.body[:200]))


@test("A12 prompts that come to nothing or have an odd shape")
def a12(t):
    s = t.server("ref")
    x = t.body("A07_stream.json", s)
    want = s.stream("/v1/completions", x).text
    missing = object()
    with background(lambda: s.stream("/v1/completions", x)) as other:
        for prompt, allowed in (("", (200, 400)), ([], (400,)), ([[]], (200, 400)), (["", "a"], (200, 400)), ([1, "a"], (400,)),
                                ([[1], []], (200, 400)), ([[1, 2], [3]], (200,)), ([1, 2, 3], (200,)), (["ab", "c"], (200,)),
                                (None, (200, 400)), (missing, (200, 400)), (5, (400,)), ({}, (400,)), ([1.5], (400,)), ([True], (400,))):
            body = {"model": s.served_name(), "max_tokens": 2, "temperature": 0}
            if prompt is not missing:
                body["prompt"] = prompt
            r = s.post("/v1/completions", body)
            what = "prompt %s" % (json.dumps(prompt) if prompt is not missing else "absent")
            if t.check(r.status in allowed, "%s: %d %s" % (what, r.status, r.body[:160])) and r.status == 400:
                t.check(names(r, "prompt"), "%s: prompt is not named: %s" % (what, r.error))
            if r.status == 200 and isinstance(prompt, list) and prompt and isinstance(prompt[0], (list, str)):
                t.equal(sorted(c["index"] for c in r.json()["choices"]), list(range(len(prompt))), what + " choices")
        zero = s.post("/v1/completions", {"model": s.served_name(), "prompt": [97, 98], "max_tokens": 0, "temperature": 0})
        if t.equal(zero.status, 200, "max_tokens 0: %s" % zero.body[:160]):
            t.equal(zero.json()["choices"][0]["text"], "", "max_tokens 0 text")
        echo = s.post("/v1/completions", {"model": s.served_name(), "prompt": [97, 98, 99], "max_tokens": 0, "echo": True, "logprobs": 1,
                                          "temperature": 0})
        if t.equal(echo.status, 200, "echo with max_tokens 0: %s" % echo.body[:160]):
            t.equal(echo.json()["choices"][0]["text"], "abc", "echo text")
            t.equal(len(echo.json()["choices"][0]["logprobs"]["tokens"]), 3, "echoed log-probabilities")
    t.equal(other[0].text, want, "the other stream")


@test("A12 a template that renders to nothing")
def a12_template(t):
    module = t.fixture_module()
    path = t.tmp + "/empty_template.gguf"
    module.write_model(path, *module.ref_model(), template="{% if false %}x{% endif %}")
    s = t.server(path)
    r = s.post("/v1/chat/completions", {"model": s.served_name(), "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    t.check(r.status == 200 or (r.status == 400 and r.error.get("message")), "status %d %s" % (r.status, r.body[:200]))
    t.note("answers %d" % r.status)


@test("S02 a 20 MB body is refused while health answers")
def s02(t):
    s = t.server("ref")
    slowest, stop = [0.0], threading.Event()

    def probe():
        while not stop.is_set():
            begun = time.time()
            t.equal(s.get("/health").status, 200, "health during the giant body")
            slowest[0] = max(slowest[0], time.time() - begun)
            time.sleep(0.05)
    with background(probe):
        try:
            for body in (b'{"model":"x","prompt":"' + b"a" * (20 << 20) + b'"}', b"[" * (20 << 20)):
                try:
                    r = s.post("/v1/completions", body)
                    t.check(r.status in (400, 413), "status %d" % r.status)
                except (ConnectionError, BrokenPipeError):
                    pass  # refused before it was read: early and cheap
        finally:
            stop.set()
    t.check(slowest[0] < HANG / 10, "health took %.1f s" % slowest[0])
    t.note("slowest health answer %.0f ms" % (1000 * slowest[0]))


@test("S02 a long prompt and short ones, then its client leaves")
def s02_long(t):
    s = t.server("ref", "--max-num-batched-tokens", 256)
    name = s.served_name()
    tokens = [t.random.randrange(33, 127) for _ in range(8000)]
    short = {"model": name, "prompt": tokens[:8], "max_tokens": 4, "temperature": 0}
    want = s.post("/v1/completions", short).json()["choices"][0]["text"]
    giant = s.open_stream("/v1/completions", {"model": name, "prompt": tokens, "max_tokens": 100, "temperature": 0})
    for _ in range(5):
        t.equal(s.post("/v1/completions", short).json()["choices"][0]["text"], want, "short prompt beside the giant")
    giant.close()
    before = s.value("kvasir_step_seconds_count") or 0
    b = s.quiet()
    t.check(b["running"] == 0, "still running after the client left: %s" % b)
    t.note("steps from close to quiet: %s" % ((s.value("kvasir_step_seconds_count") or 0) - before))


@test("limits: headers too large, many connections, half a request")
def odd_connections(t):
    import socket
    s = t.server("ref")
    raw = socket.create_connection(("127.0.0.1", s.port), timeout=HANG)
    try:
        raw.sendall(b"GET /health HTTP/1.1\r\n" + b"X-A: " + b"a" * (1 << 20) + b"\r\n\r\n")
        answer = raw.recv(4096)
        t.check(answer == b"" or b" 4" in answer[:20], "1 MiB of headers: %r" % answer[:60])
    except ConnectionError:
        pass
    raw.close()
    held = [socket.create_connection(("127.0.0.1", s.port), timeout=HANG) for _ in range(200)]
    for i, c in enumerate(held):
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" if i % 2 else b"GET ")
    t.equal(s.get("/health").status, 200, "health beside 200 half requests")
    for c in held:
        c.close()
    for junk in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                 b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=HANG)
        try:
            c.sendall(junk)
            c.shutdown(socket.SHUT_WR)
            c.recv(4096)
        except OSError:
            pass
        c.close()
    t.equal(s.get("/health").status, 200, "health after junk")


@test("limits: what an answer with log-probabilities may hold; a large first event is no slow reader; texts to tokenise")
def answer_size(t):
    s = t.server("stories")
    name, prompt = s.served_name(), [3 + i % 200 for i in range(400)]
    big = {"model": name, "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "logprobs": 5, "echo": True}
    r = s.post("/v1/completions", dict(big, n=128, prompt_logprobs=20))
    t.check(r.status == 400 and names(r, "logprobs") and "500000" in r.error["message"], "n 128: %d %s" % (r.status, r.body[:200]))
    got = s.stream("/v1/completions", dict(big, n=64))
    t.check(got.done and len(got.finish) == 64, "a stream whose first events are large: done %s, %d ends" % (got.done, len(got.finish)))
    r = s.post("/tokenize", {"model": name, "prompt": "word " * (1 << 20)})
    t.check(r.status == 400 and names(r, "prompt") and "2097152" in r.error["message"], "5 MiB to tokenise: %d %s" % (r.status, r.body[:200]))
    # Large texts are prepared one after the other; a short request does not stand behind them.
    with background(lambda: together([lambda: s.post("/tokenize", {"model": name, "prompt": "word " * 400000}).status] * 4)) as large:
        t.equal(s.post("/v1/completions", {"model": name, "prompt": [3], "max_tokens": 1}).status, 200, "a short request beside them")
    t.equal(large, [[200] * 4], "texts of 2 MB")
