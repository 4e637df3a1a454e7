"""The cache and the scheduler under load through HTTP: cases P08, B05, S03, S04, M02, M03; preemption, overload, the books at every quiet moment."""
import collections
import json
import math
import random
import re
import threading
import time

from harness import HANG, background, test, together
from test_cache import TEXT, ask, cached, check_sums, eventually, flood, ids, reset, tokens


def tree(t, low=33, high=127):
    """12 prompts: a root of 32 tokens, branches of 5 to 90, often a strict prefix of an earlier one."""
    root = [t.random.randrange(low, high) for _ in range(32)]
    prompts = [root]
    while len(prompts) < 12:
        at = t.random.choice(prompts)
        if len(at) > 45 and t.random.random() < 0.4:
            fresh = at[:t.random.randrange(33, len(at))]
        else:
            fresh = at + [t.random.randrange(low, high) for _ in range(t.random.randrange(5, 91))]
        if len(fresh) <= 220 and fresh not in prompts:
            prompts.append(fresh)
    return prompts


def at_once(jobs, users):
    """Runs the jobs in order, so many at a time; their values."""
    todo, out, lock = collections.deque(enumerate(jobs)), [None] * len(jobs), threading.Lock()

    def work():
        while True:
            with lock:
                if not todo:
                    return
                i, job = todo.popleft()
            out[i] = job()
    together([work] * users)
    return out


@test("P08 warm equals cold: a random walk of 300 requests, 8 at a time, over a tree of prompts, in a small pool")
def p08(t):
    for model, kinds in (("ref", ("f16", "f32", "bf16", "i8", "i4", "fp8_e4m3")), ("chain_32", ("f16", "i8", "i4"))):
        prompts = tree(t)
        for kind in kinds:
            with t.fresh(model, "--kv-type", kind, "--no-prefix-caching") as fresh:
                want = [ids(ask(fresh, p, 24)) for p in prompts]
            if model == "chain_32":
                t.equal([w for w in want], [p[-32:][:24] for p in prompts], "chain_32: the prompt's own tokens")
            with t.fresh(model, "--kv-type", kind, "--kv-blocks", 40) as s:
                walk = [t.random.randrange(len(prompts)) for _ in range(300)]
                got = at_once([lambda i=i: ask(s, prompts[i], 24) for i in walk], 8)
                bad = [i for i, r in zip(walk, got) if r.status != 200 or ids(r) != want[i]]
                t.equal(bad, [], "%s %s: prompts that differ from the fresh server" % (model, kind))
                t.check(all(0 <= x < 305 for r in got for x in ids(r)), "an id outside the vocabulary")
                m = check_sums(t, s, "%s %s" % (model, kind))
                hits, evicted = s.value("vllm:prefix_cache_hits_total", m), s.value("kvasir_evictions_total", m, reason="capacity")
                t.check(hits > 0 and evicted > 0, "%s %s: %s hit, %s evicted: nothing was tried" % (model, kind, hits, evicted))
                t.equal(sum(cached(r) for r in got), hits, "cached tokens of all usages")
                t.check_books(s.quiet(), "%s %s" % (model, kind))
                t.note("%s %s: %d tokens hit, %d blocks evicted, %d preemptions" % (
                    model, kind, hits, evicted, s.value("vllm:num_preemptions_total", m)))


@test("B05 the books add up while blocks are cached, shared, evicted and copied: 200 rounds, blocks of 8, 16 and 32")
def b05_cached(t):
    for size, blocks in ((8, 64), (16, 32), (32, 16)):
        with t.fresh("ref", "--kv-blocks", blocks, "--block-size", size) as s:
            p = tokens(t, 100)
            prompts = [p, p[:40] + tokens(t, 30), p[:63] + tokens(t, 30), p[:64] + tokens(t, 30), p[:65] + tokens(t, 30)]
            want = [ids(ask(s, q, 6)) for q in prompts]
            for i in range(200):
                k = t.random.randrange(5)
                t.equal(ids(ask(s, prompts[k], 6)), want[k], "block size %d, round %d" % (size, i))
                if i % 10 == 0:
                    t.equal(ask(s, tokens(t, 150), 1).status, 200, "one-off")
                if i % 20 == 0:
                    m = s.metrics()
                    b = s.books(m)
                    states = {k: v for k, v in b.items() if k not in ("total", "running", "waiting")}
                    t.check(sum(states.values()) == b["total"] == blocks and min(states.values()) >= 0, "size %d: %s" % (size, b))
                    t.check(0 <= s.value("kvasir_cached_blocks", m) <= blocks, "cached blocks")
                    for name in ("vllm:kv_cache_usage_perc", "kvasir_kv_waste_ratio"):
                        t.check(0 <= s.value(name, m) <= 1, "size %d: %s %s" % (size, name, s.value(name, m)))
            check_sums(t, s, "size %d" % size)
            t.check_books(s.quiet(), "size %d" % size)


@test("preemption: swap, recompute and auto give the same tokens as plenty of room")
def preempted(t):
    prompts = [tokens(t, t.random.randrange(20, 120)) for _ in range(10)]
    with t.fresh("ref", "--no-prefix-caching") as plenty:
        want = [ids(ask(plenty, p, 200)) for p in prompts]
    for mode in ("swap", "recompute", "auto"):
        with t.fresh("ref", "--kv-blocks", 40, "--preempt", mode, "--swap-space", "16MiB") as s:
            got = together([lambda p=p: ask(s, p, 200) for p in prompts])
            t.equal([r.status for r in got], [200] * 10, mode)
            t.equal([ids(r) for r in got], want, mode + ": tokens")
            m = check_sums(t, s, mode)
            by = {k: s.value("kvasir_preemptions_total", m, mode=k) for k in ("swap", "recompute")}
            t.equal(sum(by.values()), s.value("vllm:num_preemptions_total", m), mode + ": preemptions by mode")
            t.check(sum(by.values()) > 0, mode + ": nothing was preempted")
            if mode != "auto":
                t.check(by["recompute" if mode == "swap" else "swap"] == 0 or mode == "swap", "%s: %s" % (mode, by))
            if mode == "swap":
                t.check(by["swap"] > 0, "nothing was swapped: %s" % by)
            t.check_books(s.quiet(), mode)
            t.note("%s: %s" % (mode, by))


@test("S03 priority: the urgent one passes the queue, nobody starves, victims equal their oracle")
def s03(t):
    prompts = [[3 + t.random.randrange(200) for _ in range(30)] for _ in range(8)]
    with t.fresh("stories", "--no-prefix-caching") as plain:
        want = [ids(ask(plain, p, 400)) for p in prompts]
    for memory in ((), ("--kv-blocks", 60)):  # seats, then memory, are what there is too little of
        seats = 4 if not memory else 8
        with t.fresh("stories", "--scheduling-policy", "priority", "--max-num-seqs", seats, *memory) as s:
            ended, lock, before = [], threading.Lock(), [0]

            def run(name, prompt, count, priority):
                if name == "urgent":
                    before[0] = len(ended)
                r = ask(s, prompt, count, priority=priority)
                with lock:
                    ended.append(name)
                return r
            low = [lambda i=i: run("low%d" % i, prompts[i], 400, 10) for i in range(8)]

            def later():
                end = time.time() + HANG
                while (s.books()["running"] or 0) < 2 or (s.books()["waiting"] or 0) < 2:
                    if time.time() > end or len(ended) == 8:
                        break
                return run("urgent", prompts[0][:20], 4, -5)
            got = together(low + [later])
            t.equal([r.status for r in got], [200] * 9, "all are served")
            t.equal([ids(r) for r in got[:8]], want, "tokens of the low ones %s" % (memory,))
            # On a busy machine it may be sent when most have ended; what counts is who ends after it was sent.
            passed = ended.index("urgent") - before[0]
            t.check(passed <= seats, "sent after %d had ended, more than the running ones ended before the urgent one: %s" % (before[0], ended))
            t.check(before[0] >= 8 - seats or ended.index("urgent") < 8, "the urgent one came last: %s" % ended)
            t.note("%s: ended %s; preemptions %d" % (memory or "seats", " ".join(ended), s.value("vllm:num_preemptions_total")))


@test("S03 --scheduling-policy fcfs ignores priority; prefix and a stream of newcomers starve nobody")
def s03_orders(t):
    for policy in ("fcfs", "prefix", "priority"):
        with t.fresh("stories", "--scheduling-policy", policy, "--max-num-seqs", 2, "--kv-blocks", 256) as s:
            shared = [7 + i % 100 for i in range(64)]
            ask(s, shared, 1)
            poor = lambda: ask(s, [3 + t.random.randrange(200) for _ in range(40)], 4, priority=5)
            rich = lambda: ask(s, shared + [3 + t.random.randrange(200)], 30, priority=0)
            stop, served = threading.Event(), []

            def newcomers():
                while not stop.is_set():
                    served.append(rich().status)
            with background(lambda: together([newcomers] * 4)):
                time.sleep(0.2)
                try:
                    t.equal(poor().status, 200, policy + ": one without a prefix among many with")
                finally:
                    stop.set()
            t.equal(set(served), {200}, policy)
            t.note("%s: %d newcomers meanwhile" % (policy, len(served)))


@test("S04 a hot prefix survives a mixed flood; one-offs evict no more than they need")
def s04(t):
    with t.fresh("ref", "--kv-blocks", 94) as s:  # room for 1,504 tokens
        hot, found, asked = tokens(t, 512), 0, 0
        first = ask(s, tokens(t, 8), 1)
        t.equal(first.status, 200, "the first request ever")
        ask(s, hot + tokens(t, 8), 1)
        for _ in range(100):
            found += cached(ask(s, hot + tokens(t, 8), 1)) >= 512
            asked += 1
            t.equal(ask(s, tokens(t, 600), 1).status, 200, "one-off")
        t.check(found >= 0.9 * asked, "the hot prefix was there %d times of %d" % (found, asked))
        m = s.metrics()
        evicted = s.value("kvasir_evictions_total", m, reason="capacity")
        # 100 one-offs of 601 tokens and 100 tails, in a pool that holds 94 blocks.
        t.check(evicted <= 100 * (math.ceil(601 / 16) + 2), "%s blocks evicted" % evicted)
        for _ in range(50):
            ask(s, tokens(t, 600), 1)
        t.note("after 50 one-offs in a row %d of 512 are there" % min(512, cached(ask(s, hot + tokens(t, 8), 1))))


@test("M02 gauges after 20 streams, pinned and cached blocks, were cancelled at once")
def m02_cached(t):
    with t.fresh("ref", "--max-num-seqs", 8, "--kv-blocks", 200, "--max-model-len", 2400) as s:
        p = tokens(t, 64)
        ask(s, p, 1)
        s.post("/v1/kvcache/pin", {"prompt": p, "ttl_s": 600})
        held = [s.open_stream(TEXT, {"model": s.served_name(), "prompt": p + tokens(t, 20), "max_tokens": 2000, "temperature": 0})
                for _ in range(20)]
        held[0].recv(64)
        for c in held:
            c.close()
        end = time.time() + 10
        while (s.books()["running"] or s.books()["waiting"]) and time.time() < end:
            time.sleep(0.05)
        b = s.books()
        t.check(b["running"] == b["waiting"] == b["filling"] == b["inflight"] == b["reserved"] == 0, "after the cancel: %s" % b)
        t.equal(b["pinned"], 4, "blocks that stay pinned: %s" % b)
        t.equal(eventually(lambda: s.value("kvasir_pinned_blocks"), 4), 4, "kvasir_pinned_blocks")
        s.post("/v1/kvcache/unpin", {"prompt": p})
        t.check_books(s.quiet(), "ref")


@test("M03 cache counters equal what the usages said, never fall, and every series is there from the start")
def m03_cache(t):
    with t.fresh("ref", "--kv-blocks", 128) as s:
        first = s.metrics()
        for name in ("kvasir_evictions_total", "kvasir_evicted_then_wanted_total", "kvasir_preemptions_total",
                     "kvasir_prefill_tokens_saved_total", "kvasir_prefill_seconds_saved_total", "kvasir_merged_blocks_total",
                     "kvasir_copied_blocks_total", "kvasir_swapped_blocks_total", "kvasir_pinned_blocks", "kvasir_cached_blocks"):
            t.equal(s.value(name, first), 0, name)
        found = looked_up = 0
        p = tokens(t, 150)
        for _ in range(40):
            cut = t.random.randrange(1, 150)
            r = ask(s, p[:cut] + tokens(t, t.random.randrange(1, 40)), 4, n=t.random.choice((1, 1, 2)))
            usage = r.json()["usage"]
            found += usage["prompt_tokens_details"]["cached_tokens"]
            looked_up += usage["prompt_tokens"]
        held = [s.open_stream(TEXT, {"model": s.served_name(), "prompt": tokens(t, 60), "max_tokens": 1000}) for _ in range(5)]
        held[0].recv(64)
        for c in held:
            c.close()
        s.quiet()
        m = check_sums(t, s, "M03")
        hits = s.value("vllm:prefix_cache_hits_total", m)
        # The aborted ones may begin with a token that is cached.
        t.check(found <= hits <= found + 5 * 60, "hits %s, sum of cached_tokens %s" % (hits, found))
        queries = s.value("vllm:prefix_cache_queries_total", m)
        t.check(looked_up <= queries <= looked_up + 5 * 60, "looked up %s, usages say %s, aborted up to 300" % (queries, looked_up))
        t.check(s.value("kvasir_prefill_tokens_saved_total", m) >= hits, "tokens saved")
        t.check(all(math.isfinite(v) for v in m.values()), "a metric is not finite")
        for key, value in first.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")) and key[0] != "kvasir_kv_blocks_total":
                t.check(m.get(key, -1) >= value, "%s fell from %s to %s" % (key, value, m.get(key)))


@test("overload: everybody is served or refused with 429 and a Retry-After that is a number; then all is back")
def overload(t):
    with t.fresh("stories", "--kv-blocks", 64, "--max-num-seqs", 4, "--max-queue", 4) as s:
        prompt = lambda: [3 + t.random.randrange(200) for _ in range(t.random.randrange(10, 300))]
        jobs = [prompt() for _ in range(60)]
        got = at_once([lambda p=p: ask(s, p, 60) for p in jobs], 30)
        statuses = collections.Counter(r.status for r in got)
        t.check(set(statuses) <= {200, 429} and statuses[200] > 0 and statuses[429] > 0, "statuses %s" % statuses)
        waits = []
        for r in got:
            if r.status == 429:
                told = {k.lower(): v for k, v in r.headers.items()}.get("retry-after", "")
                if t.check(re.fullmatch(r"[1-9]\d{0,3}", told), "Retry-After %r" % told):
                    waits.append(int(told))
        t.check_books(s.quiet(), "after the overload")
        t.equal(ask(s, jobs[0], 4).status, 200, "afterwards")
        t.note("%s; Retry-After %d to %d s" % (dict(statuses), min(waits, default=0), max(waits, default=0)))


@test("queue_timeout_s: a request may wait for less than the others")
def impatient(t):
    with t.fresh("stories", "--max-num-seqs", 8, "--kv-blocks", 1200) as s:
        body = {"model": s.served_name(), "prompt": [3, 4, 5], "max_tokens": 1800, "temperature": 0, "ignore_eos": True, "n": 8}
        held = [s.open_stream(TEXT, body) for _ in range(6)]
        held[0].recv(64)
        r = s.post(TEXT, {"model": s.served_name(), "prompt": [6, 7], "max_tokens": 2, "queue_timeout_s": 0.05})
        t.equal(r.status, 503, "beyond its queue_timeout_s: %s" % r.body[:160])
        t.check(any(k.lower() == "retry-after" for k in r.headers), "503 without Retry-After")
        for c in held:
            c.close()
        r = s.post(TEXT, {"model": s.served_name(), "prompt": [6, 7], "max_tokens": 2, "queue_timeout_s": 100})
        t.equal(r.status, 200, "within its queue_timeout_s: %s" % r.body[:160])


@test("--itl-target: prompts in small chunks beside streams, same tokens")
def itl(t):
    streams = [[3 + t.random.randrange(200) for _ in range(20)] for _ in range(3)]
    long = [3 + t.random.randrange(200) for _ in range(900)]
    with t.fresh("stories", "--no-prefix-caching") as plain:
        want = [ids(ask(plain, p, 150)) for p in streams] + [ids(ask(plain, long, 4))]
    with t.fresh("stories", "--itl-target", 5) as s:
        got = together([lambda p=p: ask(s, p, 150) for p in streams] + [lambda: ask(s, long, 4)])
        t.equal([ids(r) for r in got], want, "tokens under --itl-target")


@test("cache: one salt's flood evicts its own blocks, not another's prefix (--tenant-quota)")
def quota(t):
    with t.fresh("ref", "--kv-blocks", 100, "--tenant-quota", "0.5") as s:
        mine = tokens(t, 320)
        for _ in range(2):
            ask(s, mine, 1, cache_salt="mine")
        for _ in range(40):
            ask(s, tokens(t, 200), 1, cache_salt="flood")
        t.check(cached(ask(s, mine, 1, cache_salt="mine")) >= 319, "the other salt's prefix was flushed")
        m = s.metrics()
        t.check(s.value("kvasir_evictions_total", m, reason="quota") > 0, "nothing was evicted for its quota")
        names = [o["name"] for o in s.get("/v1/kvcache").json()["owners"]]
        t.check(len(names) == 2 and all(n.startswith("salt-") for n in names), "owners %s" % names)


@test("cache: requests, hints, warming, pins, resets and clients that leave, all at once: same tokens, books add up")
def storm(t):
    prompts = tree(t)
    with t.fresh("ref", "--no-prefix-caching") as fresh:
        want = [ids(ask(fresh, p, 12)) for p in prompts]
    for flags in (("--kv-blocks", 48), ("--kv-blocks", 48, "--evict", "lru", "--preempt", "swap", "--scheduling-policy", "prefix"),
                  ("--kv-blocks", 30, "--block-size", 32, "--evict", "s3fifo", "--scheduling-policy", "priority", "--max-num-batched-tokens", 48)):
        with t.fresh("ref", *flags, "--max-model-len", 300) as s:
            def job(kind, i, seed):
                rng = random.Random(seed)
                p, salt = prompts[i], rng.choice(({}, {}, {"cache_salt": "a"}, {"cache_salt": "b"}))
                if kind == "ask":
                    hint = rng.choice((None, {"retain": "low"}, {"retain": "high"}, {"last_use": True}, {"ttl_s": 0.05}, {"session": "s%d" % (i % 3)}))
                    r = ask(s, p, 12, kv_hint=hint, priority=rng.randrange(-2, 3), cache_prompt=rng.random() < 0.9, n=rng.choice((1, 1, 2)), **salt)
                    return r.status == 200 and ids(r) == want[i]
                if kind == "leave":
                    c = s.open_stream(TEXT, dict({"model": s.served_name(), "prompt": p, "max_tokens": 60, "temperature": 0, "ignore_eos": True}, **salt))
                    if rng.random() < 0.5:
                        c.recv(64)
                    c.close()
                    return True
                if kind == "warm":
                    r = s.post("/v1/kvcache/warm", dict({"prompt": p}, **salt, **({"ttl_s": 0.2} if rng.random() < 0.5 else {})))
                    return r.status == 200 or r.error.get("code") in ("pin_budget_exceeded", "not_cached")
                if kind == "pin":
                    body = rng.choice(({"prompt": p}, {"session": "s%d" % (i % 3)}))
                    r = s.post("/v1/kvcache/pin", dict(body, ttl_s=rng.choice((0.01, 0.3)), **salt))
                    return r.status == 200 or r.error.get("code") in ("pin_budget_exceeded", "not_cached")
                if kind == "unpin":
                    return s.post("/v1/kvcache/unpin", dict(rng.choice(({"prompt": p}, {"session": "s%d" % (i % 3)}, {"pin": rng.randrange(1, 40)})), **salt)).status == 200
                if kind == "reset":
                    return s.post("/v1/kvcache/reset", {"pins": rng.random() < 0.5}).status == 200
                blocks = s.get("/v1/kvcache").json()["blocks"]
                return sum(v for k, v in blocks.items() if k != "total") == blocks["total"]
            kinds = ["ask"] * 12 + ["leave"] * 3 + ["warm"] * 2 + ["pin"] * 2 + ["unpin", "reset", "state"]
            walk = [(t.random.choice(kinds), t.random.randrange(len(prompts)), t.random.random()) for _ in range(400)]
            got = at_once([lambda w=w: job(*w) for w in walk], 8)
            t.equal([w for w, good in zip(walk, got) if not good], [], "%s: wrong" % (flags,))
            check_sums(t, s, "storm %s" % (flags,))
            t.equal(reset(t, s, pins=True)["pinned_blocks"], 0, "pins after the storm")
            b = s.quiet()
            t.check_books(b, "storm")
            reset(t, s, pins=True)
            t.equal(eventually(lambda: s.books()["free"], b["total"]), b["total"], "all blocks are free in the end")
            t.check(s.alive(), "the server died: %s" % s.log()[-400:])


@test("cache flags: a wrong value is a usage error that names flag, value and choices")
def flags(t):
    for flag, value, choice in (("--evict", "oldest", "s3fifo"), ("--preempt", "never", "recompute"), ("--scheduling-policy", "sjf", "priority"),
                                ("--itl-target", "-1", "0"), ("--pin-budget", "2", "1"), ("--tenant-quota", "nan", "1"),
                                ("--swap-space", "banana", "MiB"), ("--swap-space", "0", "recompute"), ("--reserve-blocks", "-0.1", "0.9")):
        r = t.run("serve", t.model("ref"), "--port", "0", flag, value)
        text = r.stderr.decode("utf-8", "replace")
        t.equal(r.returncode, 2, "%s %s: exit code" % (flag, value))
        t.check(flag[2:] in text and value in text and choice in text, "%s %s: %r" % (flag, value, text))
    r = t.run("serve", t.model("ref"), "--port", "0", "--api-key-tenants")
    t.check(r.returncode == 2 and b"api-key" in r.stderr, "--api-key-tenants alone: %d %r" % (r.returncode, r.stderr))


@test("GET /v1/kvcache has the members that docs/api.md lists")
def state(t):
    with t.fresh("ref", "--kv-blocks", 64) as s:
        flood(t, s, 20)
        got = s.get("/v1/kvcache")
        t.equal(got.status, 200, "state")
        body = got.json()
        for name in ("object", "model", "evict", "block_tokens", "bytes_per_token", "blocks", "cached_blocks", "slots", "tokens", "evictions",
                     "evicted_then_wanted", "merged_blocks", "copied_blocks", "swapped_blocks", "pinning", "tenant_quota_blocks", "pins",
                     "owners", "hottest"):
            t.check(name in body, "no %s in %s" % (name, json.dumps(body)[:200]))
        t.equal(sum(v for k, v in body["blocks"].items() if k != "total"), body["blocks"]["total"], "blocks")
        reset(t, s)
