"""Cases B01, B03, B05, M02, M03: blocks come back, gauges do not freeze, sums agree; promise 3 through HTTP."""
import math
import socket
import time

from harness import test, together


def completion(s, prompt, count, **more):
    return s.post("/v1/completions", dict({"model": s.served_name(), "prompt": prompt, "max_tokens": count, "temperature": 0}, **more))


def tokens(t, n):
    return [t.random.randrange(33, 127) for _ in range(n)]


@test("B01 a request that can never fit")
def b01(t):
    s = t.server("ref", "--kv-blocks", 32, "--block-size", 16, "--max-model-len", 4096)
    r = completion(s, tokens(t, 600), 10)
    t.equal(r.status, 400, "600 tokens into a pool of 512: %s" % r.body[:200])
    t.check("512" in r.error.get("message", ""), "the pool's capacity is not in %s" % r.error)
    shorts = [tokens(t, 20) for _ in range(5)]
    want = [completion(s, p, 8).json()["choices"][0]["text"] for p in shorts]
    growing = lambda: completion(s, tokens(t, 500), 200)
    alone = growing()
    t.check(alone.status in (200, 400), "the growing one: %d" % alone.status)
    if alone.status == 200:
        t.equal(alone.json()["choices"][0]["finish_reason"], "length", "the growing one's end")
    t.note("500 + 200 alone: %d %s" % (alone.status, alone.error.get("message", "")[:120]))
    got = together([growing] + [lambda p=p: completion(s, p, 8) for p in shorts])
    t.equal([r.json()["choices"][0]["text"] for r in got[1:]], want, "short ones beside the growing one")
    t.equal(got[0].status, alone.status, "the growing one beside others")


@test("B01 more demand than the pool holds: all are served in turn, with their own tokens")
def b01_crowd(t):
    s = t.server("ref", "--kv-blocks", 32, "--block-size", 16, "--max-model-len", 4096)
    prompts = [tokens(t, t.random.randrange(20, 200)) for _ in range(12)]
    lengths = [t.random.randrange(20, 250) for _ in prompts]
    want = [completion(s, p, n).json()["choices"][0]["text"] for p, n in zip(prompts, lengths)]
    got = together([lambda p=p, n=n: completion(s, p, n) for p, n in zip(prompts, lengths)])
    for i, r in enumerate(got):
        if t.equal(r.status, 200, "request %d: %s" % (i, r.body[:160])):
            t.equal(r.json()["choices"][0]["text"], want[i], "request %d, %d + %d" % (i, len(prompts[i]), lengths[i]))
    t.note("preemptions %s" % s.value("vllm:num_preemptions_total"))


@test("B03 300 requests that end abnormally give their memory back")
def b03(t):
    with t.fresh("ref", "--kv-blocks", 256, "--max-num-seqs", 4, "--max-num-batched-tokens", 64) as s:
        name, path = s.served_name(), "/v1/completions"
        ask = lambda n=40, m=300, **more: dict({"model": name, "prompt": tokens(t, n), "max_tokens": m, "temperature": 0}, **more)
        want = completion(s, list(range(40, 80)), 20).json()["choices"][0]["text"]
        start = s.quiet()

        def first_token():
            s.stream(path, ask(), lambda event, c: False)

        def after_headers():
            c = s.open_stream(path, ask())
            c.recv(16)
            c.close()

        def at_once():
            s.open_stream(path, ask()).close()

        def queued():
            held = [s.open_stream(path, ask()) for _ in range(6)]
            for c in held:
                c.close()

        def mid_prefill():
            c = s.open_stream(path, ask(2000))
            time.sleep(0.01)
            c.close()

        def three_choices():
            seen = []
            s.stream(path, ask(n=40, m=200, temperature=1), lambda event, c: len(seen) < 3 and seen.append(1) is None)

        def three_streamed():
            s.stream(path, dict(ask(), n=3, temperature=1), lambda event, c: False)

        def too_long():
            t.equal(s.post(path, ask(9000)).status, 400, "over-long prompt")

        def half_body():
            c = socket.create_connection(("127.0.0.1", s.port))
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{\"model\": ")
            c.close()
        kinds = [first_token, after_headers, at_once, queued, mid_prefill, three_choices, three_streamed, too_long, half_body]
        rss = None
        for i in range(300):
            t.random.choice(kinds)()
            if i == 60:
                s.quiet()
                rss = s.rss()[1]
        time.sleep(2)
        t.check_books(s.books(), "ref after 300 rounds, two seconds later")
        t.equal(s.books()["total"], start["total"], "blocks in all")
        grown = s.rss()[1] / rss - 1
        t.check(grown < 0.05 or t.sanitized(), "anonymous memory grew by %.1f %% over 240 rounds" % (100 * grown))
        t.equal(completion(s, list(range(40, 80)), 20).json()["choices"][0]["text"], want, "an ordinary request afterwards")
        t.note("memory grew by %.1f %%" % (100 * grown))


@test("B05 the books add up, blocks of 8, 16, 32 and 256 tokens")
def b05(t):
    for size, blocks in ((8, 64), (16, 32), (32, 16), (256, 4)):
        s = t.server("ref", "--kv-blocks", blocks, "--block-size", size)
        p = tokens(t, 100)
        prompts = [p, p[:40] + tokens(t, 30), p[:63] + tokens(t, 30), p[:64] + tokens(t, 30), p[:65] + tokens(t, 30)]
        want = None
        for _ in range(10):
            got = [r.json()["choices"][0]["text"] for r in together([lambda q=q: completion(s, q, 12) for q in prompts])]
            want = want or got
            t.equal(got, want, "block size %d: texts" % size)
            m = s.metrics()
            b = s.books(m)
            states = {k: v for k, v in b.items() if k not in ("total", "running", "waiting")}
            t.check(sum(states.values()) == b["total"] == blocks and min(states.values()) >= 0, "size %d: %s" % (size, b))
            usage = s.value("vllm:kv_cache_usage_perc", m)
            t.check(usage is not None and 0 <= usage <= 1, "size %d: usage %s" % (size, usage))
            waste = s.value("kvasir_kv_waste_ratio", m)
            t.check(waste is not None and 0 <= waste <= 1, "size %d: waste %s" % (size, waste))


@test("M02 gauges after everything was cancelled at once")
def m02(t):
    s = t.server("ref", "--max-num-seqs", 8, "--kv-mem", "16MiB")
    held = [s.open_stream("/v1/completions", {"model": s.served_name(), "prompt": tokens(t, 50), "max_tokens": 4000, "temperature": 0})
            for _ in range(20)]
    for c in held:
        c.recv(64)  # headers, or the first tokens; the queued ones too have sent their headers or are still waiting
        if c is held[7]:
            break
    busy = s.books()
    t.check(busy["running"] > 0, "nothing ran: %s" % busy)
    for c in held:
        c.close()
    time.sleep(1)
    for wait in (0, 4):
        time.sleep(wait)
        t.check_books(s.books(), "ref %d s after the cancel" % (1 + wait))
    t.note("before: running %d, waiting %d" % (busy["running"], busy["waiting"]))


@test("M03 every request ends in one counter; no interval longer than the test; totals agree")
def m03(t):
    begun = time.time()
    with t.fresh("ref", "--max-num-seqs", 2) as s:
        first = s.metrics()
        accepted, choices, refused, prompt_sum, output_sum = 0, 0, 0, 0, 0
        for n, length, count in ((1, 1, 1), (1, 5, 10), (2, 7, 10), (2, 20, 5), (1, 300, 30)):
            r = completion(s, tokens(t, length), count, n=n)
            t.equal(r.status, 200, "n %d" % n)
            accepted, choices = accepted + 1, choices + n
            prompt_sum += r.json()["usage"]["prompt_tokens"]
            output_sum += r.json()["usage"]["completion_tokens"]
        for body in ({"n": 0}, {"max_tokens": -1}, {"top_p": 7}):
            refused += completion(s, [97], 3, **body).status == 400
        held = [s.open_stream("/v1/completions", {"model": s.served_name(), "prompt": tokens(t, 40), "max_tokens": 5000,
                                                  "temperature": 0}) for _ in range(6)]
        held[0].recv(64)
        end = time.time() + 20
        while (s.books()["running"] or 0) + (s.books()["waiting"] or 0) < 6 and time.time() < end:
            time.sleep(0.02)
        for c in held:
            c.close()
        t.check_books(s.quiet(), "ref")
        end = time.time() + 5
        want = accepted + 6
        while (s.value("vllm:request_success_total") or 0) < want and time.time() < end:
            time.sleep(0.05)
        m, lasted = s.metrics(), time.time() - begun
        ended = s.value("vllm:request_success_total", m)
        t.check(ended in (accepted + 6, choices + 6), "terminal counters %s, accepted %d requests (%d choices) and 6 aborted" % (
            ended, accepted, choices))
        aborted = s.value("vllm:request_success_total", m, finished_reason="abort")
        t.equal(aborted, 6, "finished_reason abort")
        t.equal(refused, 3, "refused with 400")
        got = s.value("vllm:prompt_tokens_total", m)
        t.check(prompt_sum <= got <= prompt_sum + 6 * 40, "prompt tokens %s, sum of usages %d, aborted up to 240" % (got, prompt_sum))
        made = s.value("vllm:generation_tokens_total", m)
        t.check(made >= output_sum, "generation tokens %s below the sum of usages %d" % (made, output_sum))
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time"):
            full = "vllm:%s_seconds" % name
            total, count = s.value(full + "_sum", m), s.value(full + "_count", m)
            if t.check(count, full + " has no samples"):
                t.check(0 <= total <= count * lasted, "%s: sum %s over %s samples in a test of %.1f s" % (full, total, count, lasted))
                top = max((float(dict(labels)["le"]), v) for (n, labels), v in m.items() if n == full + "_bucket")
                t.equal(top, (math.inf, count), full + " last bucket")
        t.check(all(math.isfinite(v) for v in m.values()), "a metric is not finite")
        for key, value in first.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")) and key[0] != "kvasir_kv_blocks_total":
                t.check(m.get(key, -1) >= value, "%s fell from %s to %s" % (key, value, m.get(key)))


@test("metrics: the names that dashboards use are there")
def metric_names(t):
    s = t.server("ref", "--kv-type", "f16")
    completion(s, [97, 98], 4)
    have = {n for n, _ in s.metrics()}
    for n in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
              "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
              "vllm:request_success_total", "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
              "vllm:e2e_request_latency_seconds_count", "vllm:request_queue_time_seconds_count",
              "vllm:request_prompt_tokens_count", "vllm:request_generation_tokens_count", "vllm:iteration_tokens_total_count",
              "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "kvasir_kv_blocks", "kvasir_kv_blocks_total",
              "kvasir_kv_bytes_per_token", "kvasir_kv_waste_ratio", "kvasir_step_seconds_count"):
        t.check(n in have, n + " is missing")
    t.equal(s.value("kvasir_kv_bytes_per_token"), 512, "kvasir_kv_bytes_per_token")
    labelled = s.get("/metrics").body.decode()
    t.check('model_name="%s"' % s.served_name() in labelled, "no model_name label")


@test("same tokens alone, with neighbours, any chunk size, 1 or 2 threads, streamed or not")
def promise3(t):
    for model in ("ref", "stories"):
        low, high = (33, 127) if model == "ref" else (3, 500)
        jobs = []
        for i in range(12):
            prompt = [t.random.randrange(low, high) for _ in range(t.random.randrange(1, 180))]
            more = {} if i % 2 else {"temperature": 1, "seed": i, "top_p": 0.95}
            jobs.append((prompt, t.random.randrange(5, 60), more))
        want = None
        for flags in (("--threads", 1, "--max-num-batched-tokens", 512), ("--threads", 2, "--max-num-batched-tokens", 7),
                      ("--threads", 2, "--max-num-batched-tokens", 64, "--block-size", 8), ("--threads", 3, "--block-size", 32)):
            with t.fresh(model, *flags) as s:
                alone = [completion(s, p, n, ignore_eos=True, return_token_ids=True, **m).json()["choices"][0]["token_ids"] for p, n, m in jobs]
                crowd = together([lambda p=p, n=n, m=m: completion(s, p, n, ignore_eos=True, return_token_ids=True, **m).json()["choices"][0]["token_ids"]
                                  for p, n, m in jobs])
                want = want or alone
                t.equal(alone, want, "%s %s alone" % (model, flags))
                t.equal(crowd, want, "%s %s in a crowd" % (model, flags))


@test("a slow reader stalls nobody and is cut off or waits, then its blocks return")
def slow_reader(t):
    s = t.server("stories", "--kv-mem", "32MiB")
    body = {"model": s.served_name(), "prompt": [3, 4, 5], "max_tokens": 1800, "temperature": 1, "logprobs": 5,
            "n": 8, "ignore_eos": True}
    slow = [s.open_stream("/v1/completions", body, receive_buffer=4096) for _ in range(3)]
    for c in slow:
        c.recv(16)
    idle, end, served, most = s.rss()[0], time.time() + 60, 0, 0
    while time.time() < end and (served < 3 or s.books()["running"] > 0):  # until the slow ones ended or were cut off
        r = completion(s, [6, 7, 8], 20, ignore_eos=True)
        served += t.equal(r.status, 200, "another client beside slow readers")
        most = max(most, s.rss()[0] - idle)
        if t.problems:
            break
    t.check(s.books()["running"] == 0, "slow readers still hold blocks after a minute: %s" % s.books())
    t.check(most < 64 << 20 or t.sanitized(), "memory grew by %d MiB for three slow readers" % (most >> 20))
    t.equal(s.get("/health").status, 200, "health")
    got = [0]
    for c in slow:
        c.settimeout(1)
        try:
            while data := c.recv(1 << 20):
                got[0] += len(data)
        except OSError:
            pass
        c.close()
    t.note("%d requests served meanwhile, memory grew by %.1f MiB, %.1f MB were waiting to be read" % (served, most / 2**20, got[0] / 1e6))
