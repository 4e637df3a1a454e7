"""The prefix cache through HTTP: cases P01, P02, P03; turns, joined prompts, choices; hints, pins, warming, reset; every miss reason."""
import json
import math
import os
import re
import shutil
import subprocess
import time

from harness import ROOT, Skip, short, test, together

TEXT = "/v1/completions"
REASONS = ("cold", "evicted", "salt", "format", "partial_block", "reset", "expired", "tier_error", "tier_slower")


def tokens(t, n):
    return [t.random.randrange(33, 127) for _ in range(n)]


def ask(s, prompt, count=8, **more):
    return s.post(TEXT, dict({"model": s.served_name(), "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                              "return_token_ids": True}, **more))


def ids(r):
    return r.json()["choices"][0]["token_ids"]


def cached(r):
    return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def reason(r):
    return r.json()["usage"]["kvasir"]["miss_reason"]


def misses(s, m=None):
    m = m or s.metrics()
    return {name: s.value("kvasir_cache_tokens_total", m, result="miss", reason=name) for name in REASONS}


def eventually(read, want, seconds=10):
    """read() once it is want, or what it is after the time: the engine's snapshot follows an answer."""
    end = time.time() + seconds
    while read() != want and time.time() < end:
        time.sleep(0.02)
    return read()


def flood(t, s, blocks):
    """One-off prompts that fill so many blocks of 16."""
    for _ in range(0, blocks, 7):
        t.equal(ask(s, tokens(t, 104), 1).status, 200, "one-off prompt")


def reset(t, s, **body):
    r = s.post("/v1/kvcache/reset", body)
    t.equal(r.status, 200, "reset: %s" % r.body[:200])
    return r.json()


def check_sums(t, s, what):
    """What was looked up is hits plus misses; nothing is negative."""
    m = s.metrics()
    looked_up, hits = s.value("vllm:prefix_cache_queries_total", m), s.value("vllm:prefix_cache_hits_total", m)
    t.equal(s.value("kvasir_cache_tokens_total", m, result="hit", tier="hot"), hits, what + ": hits by both names")
    missed = misses(s, m)
    t.check(None not in missed.values() and min(missed.values()) >= 0, "%s: %s" % (what, missed))
    t.equal(hits + sum(missed.values()), looked_up, what + ": hits and misses %s" % missed)
    sources = {dict(labels)["source"]: v for (n, labels), v in m.items() if n == "vllm:prompt_tokens_by_source_total"}
    t.equal(sum(sources.values()), s.value("vllm:prompt_tokens_total", m), what + ": prompt tokens by source %s" % sources)
    return m


@test("P01 prompts of whole blocks and around them, twice, then extended: all but the last token is found")
def p01(t):
    oracle = t.server("ref", "--no-prefix-caching")
    s = t.fresh("ref", "--kv-blocks", 512)
    with s:
        for length in (15, 16, 17, 31, 32, 33, 48, 64):
            p = tokens(t, length)
            grown = [p, p, p + tokens(t, 1), p + tokens(t, 16)]
            grown.append(grown[-1])
            for i, prompt in enumerate(grown):
                r, what = ask(s, prompt, 16), "%d tokens, request %d" % (length, i)
                t.equal(ids(r), ids(ask(oracle, prompt, 16)), what)
                have = {0: None, 1: length - 1, 2: length, 3: length, 4: len(prompt) - 1}[i]
                if have is not None:
                    t.check(have <= cached(r) <= len(prompt) - 1, "%s: %d cached, at least %d expected" % (what, cached(r), have))
        check_sums(t, s, "P01")
        # The first tokens by an implementation that is not ours, which keeps K and V in full.
        exact = t.server("ref", "--kv-type", "f16")
        for case in json.loads(t.request("REF_expected.json")):
            prompt = [33 + (7 * i * i + 3 * i) % 94 for i in range(case["n"])]
            for _ in range(2):
                r = exact.post(TEXT, {"model": exact.served_name(), "prompt": prompt, "max_tokens": 32, "temperature": 0})
                if case["smallest_gap"] > 0.01:
                    t.equal(r.json()["choices"][0]["text"], case["text"], "REF, %d tokens" % case["n"])
        s.quiet()
        t.check_books(s.books(), "P01")
    chain = t.server("chain_32")
    for length in (40, 48, 64, 65):
        p = tokens(t, length)
        for i in range(2):
            t.equal(ids(ask(chain, p, 32)), p[-32:], "chain_32, %d tokens, request %d" % (length, i))


@test("P02 pairs that fool rolling hashes: never more found than the common prefix, in both orders")
def p02(t):
    oracle = t.server("ref", "--no-prefix-caching")
    s = t.server("ref", "--kv-blocks", 256)
    pairs = json.loads(t.request("P02_pairs.json"))
    for pair in pairs:
        a, b = pair["first"], pair["second"]
        for first, second in ((a, b), (b, a)):
            reset(t, s)
            t.equal(cached(ask(s, first)), 0, pair["name"] + ": first")
            r = ask(s, second)
            t.equal(cached(r), min(pair["common_prefix"], len(second) - 1), pair["name"] + ": second, cached")
            t.equal(ids(r), ids(ask(oracle, second)), pair["name"] + ": second, tokens")
    t.note("%d pairs" % len(pairs))


@test("P03 salts: hits only between equal ones; a number and an empty one are 400")
def p03(t):
    s = t.server("ref", "--kv-blocks", 256)
    bodies = [dict(json.loads(line), model=s.served_name()) for line in t.request("P03.jsonl").decode().splitlines() if line.strip()]
    for body in bodies:
        if body.get("cache_salt") == "MODEL":
            body["cache_salt"] = s.served_name()
    good = [b for b in bodies if b.get("cache_salt", "-") != "" and not isinstance(b.get("cache_salt", "-"), int)]
    for body in bodies:
        if body not in good:
            r = s.post(TEXT, body)
            t.check(r.status == 400 and r.error["param"] == "cache_salt", "salt %r: %d" % (body["cache_salt"], r.status))
    t.equal(len(good), 5, "salts that are allowed")
    want = None
    for first in good:
        for second in good:
            reset(t, s)
            what = "%r then %r" % (first.get("cache_salt"), second.get("cache_salt"))
            t.equal(cached(s.post(TEXT, first)), 0, what + ": first")
            r = s.post(TEXT, second)
            same = first.get("cache_salt") == second.get("cache_salt")
            t.equal(cached(r), len(second["prompt"]) - 1 if same else 0, what + ": cached")
            # Its own namespace may have had it before the last reset; that is for the client to know.
            t.check(reason(r) in (("partial_block",) if same else ("cold", "reset")), "%s: miss reason %s" % (what, reason(r)))
            want = want or r.json()["choices"][0]["text"]
            t.equal(r.json()["choices"][0]["text"], want, what + ": text")
    check_sums(t, s, "P03")


@test("cache: a second turn finds all of the first, the answer too; a fork finds its part, to the token")
def turns(t):
    s = t.server("ref", "--kv-blocks", 512)
    for length, answer in ((20, 9), (32, 16), (77, 30), (100, 1)):
        first = tokens(t, length)
        said = ids(ask(s, first, answer))
        r = ask(s, first + said + tokens(t, 20))
        # The last token of an answer is not run: its entry is not there.
        t.equal(cached(r), length + answer - 1, "second turn after %d + %d" % (length, answer))
        for cut in (1, 7, 15, 16, 17, length - 1):
            if cut < length:
                other = [33 + (x - 32) % 94 for x in first[cut:]]
                t.equal(cached(ask(s, first[:cut] + other, 1)), cut, "fork of %d after %d" % (length, cut))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one two three"}]
    body = {"model": s.served_name(), "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    r = s.post("/v1/chat/completions", body)
    messages += [dict(r.json()["choices"][0]["message"], refusal=None), {"role": "user", "content": "and four"}]
    again = s.post("/v1/chat/completions", dict(body, messages=messages))
    t.check(cached(again) >= r.json()["usage"]["prompt_tokens"] - 1, "chat: %s of the first turn's %d" % (
        cached(again), r.json()["usage"]["prompt_tokens"]))


@test("cache: a fully cached prompt computes one token")
def one_token(t):
    s = t.server("ref", "--kv-blocks", 512)
    p = tokens(t, 160)
    ask(s, p, 4)
    for prompt in (p, p[:97], p[:96], p[:1]):
        before = s.value("kvasir_prefill_rows_total")
        r = ask(s, prompt, 4)
        t.equal(cached(r), len(prompt) - 1, "cached of %d" % len(prompt))
        t.equal(s.value("kvasir_prefill_rows_total") - before, 1, "rows for %d cached tokens" % len(prompt))
    saved = s.value("kvasir_prefill_tokens_saved_total")
    t.check(saved and saved >= 159 + 96 + 95, "prefill tokens saved: %s" % saved)
    t.check(s.value("kvasir_prefill_seconds_saved_total") > 0, "no seconds saved")


@test("cache: the same prompt arriving many times at once is computed once")
def joined(t):
    for budget in (64, 512):
        s = t.server("ref", "--kv-blocks", 1024, "--max-num-batched-tokens", budget)
        oracle = t.server("ref", "--no-prefix-caching")
        for length, users in ((300, 2), (300, 8), (1000, 6)):
            p = tokens(t, length)
            before = s.value("kvasir_prefill_rows_total")
            got = together([lambda: ask(s, p, 12)] * users)
            rows = s.value("kvasir_prefill_rows_total") - before
            t.check(length <= rows <= length + users - 1, "%d times %d tokens, budget %d: %d rows" % (users, length, budget, rows))
            want = ids(ask(oracle, p, 12))
            for r in got:
                t.equal(ids(r), want, "joined")


@test("cache: the first of several equal prompts leaves; the next takes over")
def takeover(t):
    s = t.server("ref", "--kv-blocks", 1024, "--max-num-batched-tokens", 64)
    for i in range(5):
        p = tokens(t, 2000)
        first = s.open_stream(TEXT, {"model": s.served_name(), "prompt": p, "max_tokens": 20, "temperature": 0})
        rest = together([first.close] + [lambda: ask(s, p, 8)] * 3)[1:]
        t.equal([r.status for r in rest], [200] * 3, "round %d" % i)
        t.equal(ids(rest[0]), ids(rest[1]), "round %d" % i)


@test("cache: n = 3 computes the prompt once and shares its blocks")
def choices(t):
    s = t.server("ref", "--kv-blocks", 512)
    p = tokens(t, 150)
    before = s.value("kvasir_prefill_rows_total")
    r = ask(s, p, 20, n=3, temperature=1, seed=5)
    t.equal(s.value("kvasir_prefill_rows_total") - before, 150, "rows for n = 3")
    first = [c["token_ids"] for c in r.json()["choices"]]
    t.equal(len({tuple(c) for c in first}), 3, "choices are different")
    r = ask(s, p, 20, n=3, temperature=1, seed=5)
    t.equal([c["token_ids"] for c in r.json()["choices"]], first, "warm equals cold")
    t.equal(cached(r), 149, "cached")
    for said in first:
        t.equal(cached(ask(s, p + said, 1)), 150 + 19, "each choice is cached")


@test("cache: cache_prompt false computes all, --no-prefix-caching keeps nothing; same tokens")
def not_read(t):
    s, off = t.server("ref", "--kv-blocks", 512), t.server("ref", "--no-prefix-caching")
    p = tokens(t, 90)
    want = ids(ask(s, p))
    r = ask(s, p, cache_prompt=False)
    t.equal((cached(r), ids(r)), (0, want), "cache_prompt false")
    t.equal(cached(ask(s, p)), 89, "afterwards")
    for _ in range(2):
        r = ask(off, p)
        t.equal((cached(r), ids(r)), (0, want), "--no-prefix-caching")
    asked = dict(prompt_logprobs=3, logprobs=3)
    cold = ask(off, p, **asked).json()["choices"][0]
    for i in range(2):
        got = ask(s, p, **asked).json()["choices"][0]
        t.equal((got["prompt_logprobs"], got["logprobs"]), (cold["prompt_logprobs"], cold["logprobs"]), "log-probabilities, warm, request %d" % i)
    m = off.metrics()
    t.equal(off.value("vllm:prefix_cache_hits_total", m), 0, "hits with the cache off")
    t.equal(off.books(m)["evictable"], 0, "blocks kept with the cache off")


@test("cache: every miss reason, in usage and in the counters")
def miss_reasons(t):
    with t.fresh("ref", "--kv-blocks", 64) as s:
        def driven(name, shown, r, text):
            now = misses(s)
            grew = {k: now[k] - seen[0][k] for k in REASONS if now[k] != seen[0][k]}
            t.check(grew.get(name, 0) > 0, "%s: counters grew by %s" % (text, grew))
            t.equal(reason(r), shown, text + ": usage")
            seen[0] = now
        seen = [misses(s)]
        p = tokens(t, 100)
        driven("cold", "cold", ask(s, p), "a new prompt")
        r = ask(s, p)
        driven("partial_block", "partial_block", r, "the same again")
        t.equal(cached(r), 99, "cached")
        driven("salt", "cold", ask(s, p, cache_salt="x"), "the same with a salt")
        reset(t, s)
        driven("reset", "reset", ask(s, p), "after a reset")
        p = tokens(t, 100)
        ask(s, p, kv_hint={"ttl_s": 0.2})
        time.sleep(0.6)
        seen[0] = misses(s)
        driven("expired", "expired", ask(s, p), "after its ttl_s")
        p = tokens(t, 200)
        ask(s, p)
        flood(t, s, 80)  # far more than a pool of ghosts would be "cold" again
        seen[0] = misses(s)
        wanted = s.value("kvasir_evicted_then_wanted_total")
        driven("evicted", "evicted", ask(s, p), "after a flood")
        t.check(s.value("kvasir_evicted_then_wanted_total") > wanted, "evicted_then_wanted stands still")
        m = check_sums(t, s, "reasons")
        for why in ("capacity", "expired", "reset"):
            t.check(s.value("kvasir_evictions_total", m, policy="cost", reason=why) > 0, "no eviction by %s" % why)
        state = s.get("/v1/kvcache").json()
        t.check("salt" not in state["tokens"]["miss"], "the reason salt is shown to clients")
        t.equal(sum(state["tokens"]["miss"].values()) + state["tokens"]["hit"]["hot"], state["tokens"]["looked_up"], "state's sums")


@test("cache: last_use goes first, retain high stays; every eviction policy serves and adds up")
def hints(t):
    with t.fresh("ref", "--kv-blocks", 64) as s:
        kept, gone = tokens(t, 160), tokens(t, 160)
        ask(s, kept, kv_hint={"retain": "high"})
        ask(s, gone, kv_hint={"last_use": True})
        flood(t, s, 44)
        t.equal(cached(ask(s, kept, 1)), 159, "retain high after a flood")
        t.check(cached(ask(s, gone, 1)) < 159, "last_use survived the flood")
    for policy in ("lru", "fifo", "slru", "s3fifo", "cost"):
        with t.fresh("ref", "--kv-blocks", 64, "--evict", policy) as s:
            p = tokens(t, 90)
            want = ids(ask(s, p))
            for _ in range(3):
                flood(t, s, 80)
                t.equal(ids(ask(s, p)), want, policy)
            m = check_sums(t, s, policy)
            t.check(s.value("kvasir_evictions_total", m, policy=policy, reason="capacity") > 0, policy + " evicted nothing")
            t.equal(s.get("/v1/kvcache").json()["evict"], policy, "policy in the state")
            t.check_books(s.quiet(), policy)


@test("cache: warm computes a prompt and keeps it; with ttl_s it is pinned")
def warm(t):
    with t.fresh("ref", "--kv-blocks", 64, "--max-model-len", 400) as s:
        p = tokens(t, 160)
        r = s.post("/v1/kvcache/warm", {"model": s.served_name(), "prompt": p})
        if not t.equal(r.status, 200, "warm: %s" % r.body[:200]):
            return
        body = r.json()
        t.equal((body["tokens"], body["cached_tokens"], body["computed_tokens"], body["pin"]), (160, 0, 160, None), "warm")
        t.check(body["seconds"] > 0, "seconds %s" % body["seconds"])
        t.equal(s.value("vllm:generation_tokens_total"), 0, "tokens generated by warming")
        t.equal(cached(ask(s, p)), 159, "after warming")
        body = s.post("/v1/kvcache/warm", {"prompt": p}).json()
        t.check(body["cached_tokens"] >= 159 and body["computed_tokens"] <= 1, "warm again: %s" % body)
        q = tokens(t, 100)
        body = s.post("/v1/kvcache/warm", {"prompt": q, "ttl_s": 60}).json()
        t.equal(body["pin"]["tokens"], 100, "pinned by warm: %s" % body)
        flood(t, s, 128)
        t.equal(cached(ask(s, q, 1)), 99, "pinned, after a flood")
        chat = {"messages": [{"role": "system", "content": "You count."}], "add_generation_prompt": False}
        body = s.post("/v1/kvcache/warm", chat).json()
        more = dict(chat, messages=chat["messages"] + [{"role": "user", "content": "go"}], add_generation_prompt=True, max_tokens=1)
        t.check(cached(s.post("/v1/chat/completions", more)) >= body["tokens"], "a conversation after warming its system prompt")


@test("cache: pin, flood, unpin; by prompt, session and number; the budget; the time it lasts")
def pins(t):
    with t.fresh("ref", "--kv-blocks", 64, "--pin-budget", "0.25", "--max-model-len", 512) as s:
        pin = lambda **body: s.post("/v1/kvcache/pin", dict({"ttl_s": 60}, **body))
        p = tokens(t, 100)
        r = pin(prompt=p)
        t.equal((r.status, r.error.get("code")), (404, "not_cached"), "a pin on what is not cached")
        ask(s, p, 1)
        r = pin(prompt=p)
        t.equal((r.json()["tokens"], r.json()["blocks"]), (100, 7), "pin: %s" % r.body[:200])
        t.check(0 < r.json()["expires_in_s"] <= 60, "expires in %s" % r.json()["expires_in_s"])
        first = r.json()["id"]
        t.equal(eventually(lambda: s.value("kvasir_pinned_blocks"), 7), 7, "pinned blocks")
        flood(t, s, 128)
        t.equal(cached(ask(s, p, 1)), 99, "pinned, after a flood")
        state = s.get("/v1/kvcache").json()
        t.equal((state["pinning"], [x["id"] for x in state["pins"]]), ({"budget_blocks": 16, "pinned_blocks": 7}, [first]), "state")
        q = tokens(t, 200)
        ask(s, q, 1)
        r = pin(prompt=q)
        t.equal((r.status, r.error.get("code")), (400, "pin_budget_exceeded"), "a pin beyond the budget: %s" % r.body[:200])
        t.check("7" in r.error["message"] and "16" in r.error["message"], "no numbers in %s" % r.error)
        t.equal(eventually(lambda: s.value("kvasir_pinned_blocks"), 7), 7, "pinned blocks after the refusal")
        kept = reset(t, s)
        t.equal(kept["pinned_blocks"], 7, "reset keeps pins: %s" % kept)
        t.equal(cached(ask(s, p, 1)), 99, "pinned, after a reset")
        t.equal(s.post("/v1/kvcache/unpin", {"pin": first}).json()["unpinned"], 1, "unpin by number")
        t.equal(s.post("/v1/kvcache/unpin", {"pin": first}).json()["unpinned"], 0, "unpin twice")
        ask(s, p, 1, kv_hint={"session": "alice"})
        named = pin(session="alice").json()["tokens"]
        t.check(96 <= named <= 100, "pin by session: %d" % named)
        t.equal(pin(session="bob").status, 404, "an unknown session")
        t.equal(pin(session="alice", cache_salt="x").status, 404, "another salt's session")
        flood(t, s, 128)
        t.check(cached(ask(s, p, 1)) >= min(named, 99), "pinned by session, after a flood")
        t.equal(s.post("/v1/kvcache/unpin", {"session": "alice"}).json()["unpinned"], 1, "unpin by session")
        pin(prompt=p)
        t.equal(s.post("/v1/kvcache/unpin", {"prompt": p}).json()["unpinned"], 1, "unpin by prompt")
        t.equal(pin(prompt=p, ttl_s=0.3).json()["blocks"], 7, "pinned for a moment")
        time.sleep(0.8)
        t.equal(s.get("/v1/kvcache").json()["pins"], [], "pins after their time")
        t.equal(eventually(lambda: s.value("kvasir_pinned_blocks"), 0), 0, "pinned blocks after their time")
        pin(prompt=p)
        t.equal(reset(t, s, pins=True)["pinned_blocks"], 0, "reset with pins")
        state = s.get("/v1/kvcache").json()
        t.equal((state["pinning"]["pinned_blocks"], state["pins"]), (0, []), "state after a reset with pins")
        t.check_books(s.quiet(), "after pins")
        t.equal(eventually(lambda: s.books()["free"], 64), 64, "free blocks after a reset of all")


@test("cache: pins leave room for the longest sequence; the state's budget is the one that is kept")
def pin_room(t):
    for length, budget in ((1024, 0), (900, 7), (100, 64)):
        with t.fresh("ref", "--kv-blocks", 64, "--pin-budget", "1", "--max-model-len", length) as s:
            budget = min(budget, 64 - math.ceil(length / 16))
            t.equal(s.get("/v1/kvcache").json()["pinning"]["budget_blocks"], budget, "budget beside sequences of %d" % length)
            for blocks in (budget + 1, budget):
                prompts = [tokens(t, 32) for _ in range((blocks + 1) // 2)]
                prompts[-1:] = [prompts[-1][:16 * (blocks - 2 * (len(prompts) - 1))]] if prompts else []
                got = [s.post("/v1/kvcache/warm", {"prompt": p, "ttl_s": 60}) for p in prompts]
                codes = [r.error.get("code") for r in got if r.status != 200]
                t.equal(codes, ["pin_budget_exceeded"] if blocks > budget else [], "%d blocks pinned" % blocks)
                t.check(s.value("kvasir_pinned_blocks") <= budget, "more than the budget")
                whole = ask(s, tokens(t, length - 4), 4)
                t.equal(whole.status, 200, "the longest sequence beside the pins: %s" % whole.body[:120])
                reset(t, s, pins=True)


@test("cache: reset says what it freed and what was in use")
def resets(t):
    with t.fresh("stories", "--kv-blocks", 1200) as s:
        body = {"model": s.served_name(), "prompt": [3 + i % 200 for i in range(320)], "max_tokens": 1500, "temperature": 0, "ignore_eos": True, "n": 8}
        held = s.open_stream(TEXT, body)
        held.recv(64)
        other = s.post(TEXT, dict(body, prompt=[5 + i % 90 for i in range(64)], max_tokens=1, n=1))
        t.equal(other.status, 200, "another prompt")
        before = s.books()
        got = reset(t, s)
        t.check(got["freed_blocks"] >= 4, "freed %s, evictable before %s" % (got, before))
        t.check(got["in_use_blocks"] >= 20, "in use %s" % got)
        held.close()
        s.quiet()
        reset(t, s)
        t.equal(eventually(lambda: s.books()["free"], 1200), 1200, "all free")


@test("cache: API keys as tenants share nothing; the first key alone resets and lists")
def tenants(t):
    with t.fresh("ref", "--kv-blocks", 256, "--api-key", "one", "--api-key", "two", "--api-key-tenants") as s:
        s.key = "one"
        p = tokens(t, 100)
        want = ids(ask(s, p))
        t.equal(cached(ask(s, p)), 99, "the first key again")
        s.key = "two"
        r = ask(s, p)
        t.equal((cached(r), reason(r), ids(r)), (0, "cold", want), "the second key")
        t.equal(cached(ask(s, p)), 99, "the second key again")
        t.equal(s.post("/v1/kvcache/reset", {}).status, 403, "reset by the second key")
        state = s.get("/v1/kvcache").json()
        t.check("hottest" not in state and "owners" not in state and "pins" not in state, "the second key sees %s" % short(state))
        s.key = "one"
        state = s.get("/v1/kvcache").json()
        owners = {o["name"]: o["blocks"] for o in state["owners"]}
        t.check(owners.get("key-1", 0) > 0 and owners.get("key-2", 0) > 0, "owners %s" % owners)
        t.check(all(h["ends_with"] is None for h in state["hottest"]), "text of tenants is shown: %s" % short(state["hottest"]))
        t.check(reset(t, s)["freed_blocks"] > 0, "reset by the first key")


@test("cache: usage and hottest prefixes tell what happened; text only of prompts without a salt")
def told(t):
    with t.fresh("ref", "--kv-blocks", 256) as s:
        shared, secret = [ord(c) for c in "the quick brown fox jumps over the lazy dog and " * 2], [ord("s")] * 96
        for _ in range(5):
            ask(s, shared + tokens(t, 8), 1)
            ask(s, secret + tokens(t, 8), 1, cache_salt="pepper")
        hot = s.get("/v1/kvcache").json()["hottest"]
        t.check(any(h["ends_with"] and "lazy dog" in h["ends_with"] and h["hits"] >= 4 and h["tokens"] == 96 for h in hot),
                "the shared prefix is not among %s" % hot)
        t.check("ssss" not in json.dumps(hot), "text of a salted prompt is shown: %s" % hot)
        t.check("pepper" not in json.dumps(s.get("/v1/kvcache").json()), "the salt itself is shown")


@test("cache: the curl lines of docs/api.md work as they stand")
def documented(t):
    if shutil.which("curl") is None:
        raise Skip("there is no curl")
    with open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8") as f:
        blocks = re.findall(r"```sh\n(.*?)```", f.read(), re.S)
    t.check(len(blocks) >= 4, "%d examples" % len(blocks))
    with t.fresh("ref", "--kv-blocks", 256, "--max-model-len", 2048) as s:
        for line in re.split(r"\n(?=curl )", "\n".join(b.strip() for b in blocks)):
            line = line.replace("127.0.0.1:8080", "127.0.0.1:%d" % s.port).replace("curl ", "curl -sS -w '\\n%{http_code}' ", 1)
            r = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            t.check(r.returncode == 0 and r.stdout.endswith(b"\n200"), "%s: %r" % (line[:90], r.stdout[-200:]))
            body = json.loads(r.stdout.rsplit(b"\n", 1)[0])
            t.check("object" in body, "%s: %s" % (line[:60], short(body)))
