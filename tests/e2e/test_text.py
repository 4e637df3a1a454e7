"""Cases G04, G05, G06: token ids, control tokens typed by users, templates."""
import json
import time

from harness import HANG, test


@test("G04 token ids equal the reference tokenizer's")
def g04(t):
    table = json.loads(t.request("G04_ids.json"))
    s = t.server("copy_32")
    name = s.served_name()
    for row in table["strings"]:
        r = s.post("/tokenize", {"model": name, "prompt": row["text"], "add_special_tokens": False})
        if not t.equal(r.status, 200, "%r: %s" % (row["text"], r.body[:160])):
            continue
        got = r.json()
        t.equal(got["tokens"], row["ids"], "ids of %r" % row["text"])
        t.equal(got["count"], len(row["ids"]), "count of %r" % row["text"])
        back = s.post("/detokenize", {"model": name, "tokens": row["ids"]})
        t.equal((back.status, back.json().get("prompt")), (200, row["text"]), "decode of %r" % row["text"])
    for row in table["long"]:
        begun = time.time()
        r = s.post("/tokenize", {"model": name, "prompt": row["repeat"] * row["times"], "add_special_tokens": False})
        as_ids = row["ids_as"]
        if isinstance(as_ids, dict):
            want = as_ids["unit"] * as_ids["times"] + as_ids["rest"]
        else:
            want = [i for i, run in as_ids for _ in range(run)]
        if t.equal(r.status, 200, "%r x %d" % (row["repeat"], row["times"])):
            t.equal(r.json()["tokens"], want, "ids of %r x %d" % (row["repeat"], row["times"]))
        t.check(time.time() - begun < HANG / 4, "%r x %d takes too long" % (row["repeat"], row["times"]))


@test("G04 invalid bytes through token ids; surrogates and bad ids refused")
def g04_bytes(t):
    s = t.server("copy_32")
    name = s.served_name()
    r = s.post("/detokenize", {"model": name, "tokens": [0x80, 104, 105, 0xF0, 0x9F]})
    t.equal((r.status, r.json().get("prompt")), (200, "\ufffdhi\ufffd"), "decode of invalid bytes")
    for tokens in ([305], [-1], ["a"], "x", None, [1.5], [1 << 40]):
        r = s.post("/detokenize", {"model": name, "tokens": tokens})
        t.check(r.status == 400 and "tokens" in str(r.error), "detokenize %r: %d %s" % (tokens, r.status, r.body[:120]))
    r = s.post("/tokenize", b'{"model":"%s","prompt":"a\\ud800"}' % name.encode())
    t.check(400 <= r.status < 500, "lone surrogate: %d" % r.status)
    chat = s.post("/tokenize", {"model": name, "messages": [{"role": "user", "content": "hi"}]})
    t.equal(chat.status, 200, "tokenize with messages: %s" % chat.body[:160])
    if chat.status == 200:
        # <|im_start|> user \n hi <|im_end|> \n <|im_start|> assistant \n with single bytes, but for merges
        ids = chat.json()["tokens"]
        t.check(ids[0] == 302 and ids.count(302) == 2 and ids.count(303) == 1, "ids of the rendered chat: %s" % ids)
        t.check(isinstance(chat.json().get("max_model_len"), int), "max_model_len is missing")


@test("G05 control tokens typed by the user stay text")
def g05(t):
    s = t.server("copy_32")
    for n, count in ((1, 82), (2, 92), (3, 34)):
        r = s.post("/v1/chat/completions", t.body("G05_%d.json" % n, s))
        if n == 3 and r.status == 400:
            continue
        if t.equal(r.status, 200, "G05_%d: %s" % (n, r.body[:160])):
            t.equal(r.json()["usage"]["prompt_tokens"], count, "G05_%d prompt_tokens" % n)
    t.equal(s.post("/v1/chat/completions", t.body("G05_4.json", s)).status, 400, "G05_4 status")


@test("G06 templates: one BOS, refusals, runaways")
def g06(t):
    for entry in json.loads(t.request("index.json")):
        if entry["case"] != "G06":
            continue
        s = t.server(entry["fixture"])
        r = s.post(entry["endpoint"], t.body(entry["file"], s))
        t.equal(r.status, entry["expect"]["status"], "%s: %s" % (entry["file"], r.body[:200]))
        if "message" in entry["expect"] and r.status == 400 and entry["file"] != "G06_4.json":
            t.check(entry["expect"]["message"] in r.error.get("message", ""), "%s: %s" % (entry["file"], r.error))
        if entry["file"] == "G06_5.json" and r.status == 200:
            t.equal(r.json()["usage"]["prompt_tokens"], 21, "G06_5 prompt_tokens")
        if entry["file"] == "G06_6.json" and r.status == 200:
            t.check(r.json()["usage"]["prompt_tokens"] in (6, 13), "G06_6 prompt_tokens %s" % r.json()["usage"])
    for fixture in ("G06/endless", "G06/huge"):
        s = t.server(fixture)
        begun = time.time()
        before, _ = s.rss()
        r = s.post("/v1/chat/completions", t.body("G06_5.json", s))
        t.equal(r.status, 400, "%s: %s" % (fixture, r.body[:160]))
        grown = s.rss()[0] - before
        t.check(grown < 64 << 20 or t.sanitized(), "%s: memory grew by %d MiB" % (fixture, grown >> 20))
        t.check(time.time() - begun < HANG / 2, "%s takes too long" % fixture)
        t.note("%s refused after %.1f s" % (fixture, time.time() - begun))
    none = t.server("G06/no_template")
    r = none.post("/v1/chat/completions", t.body("G06_5.json", none))
    t.check(r.status in (200, 400), "G06/no_template: %d %s" % (r.status, r.body[:160]))
    t.note("without a template: %d" % r.status)
    try:
        with t.fresh("G06/bad_filter") as s:
            r = s.post("/v1/chat/completions", t.body("G06_5.json", s))
            t.equal(r.status, 400, "G06/bad_filter: %s" % r.body[:160])
    except AssertionError as e:  # refused at start
        t.check("ended with 3" in str(e) and "filter" in str(e), "G06/bad_filter at start: %s" % str(e)[-300:])


@test("chat options: continue_final_message, add_generation_prompt, template arguments")
def chat_options(t):
    s = t.server("copy_32")
    base = {"model": s.served_name(), "max_tokens": 1, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]}
    full = s.post("/v1/chat/completions", base).json()["usage"]["prompt_tokens"]
    without = s.post("/v1/chat/completions", dict(base, add_generation_prompt=False)).json()["usage"]["prompt_tokens"]
    t.equal(full - without, 11, "tokens of the generation prompt (<|im_start|>assistant\\n)")
    both = s.post("/v1/chat/completions", dict(base, add_generation_prompt=True, continue_final_message=True))
    t.equal(both.status, 400, "both at once: %s" % both.body[:160])
    r = s.post("/v1/chat/completions", dict(base, chat_template_kwargs={"add_generation_prompt": False}))
    t.check(r.status in (200, 400), "chat_template_kwargs: %d" % r.status)
    r = s.post("/v1/chat/completions", dict(base, chat_template_kwargs=5))
    t.equal(r.status, 400, "chat_template_kwargs 5")


@test("demo model: greedy chat equals the oracle up to the first close call")
def demo_greedy(t):
    import os
    from harness import ROOT
    s = t.server("demo", "--precision", "exact")
    with open(os.path.join(ROOT, "tests", "golden", "greedy.json"), encoding="ascii") as f:
        rows = json.load(f)["rows"]
    for row in rows[:2] + rows[4:6]:
        body = {"model": s.served_name(), "max_tokens": 48, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        if row["kind"] == "chat":
            r = s.post("/v1/chat/completions", dict(body, messages=[{"role": "user", "content": row["text"]}]))
        else:
            r = s.post("/v1/completions", dict(body, prompt=row["text"]))
        if not t.equal(r.status, 200, "%r: %s" % (row["text"][:30], r.body[:160])):
            continue
        choice = r.json()["choices"][0]
        t.equal(r.json()["usage"]["prompt_tokens"], len(row["prompt"]), "%r prompt_tokens" % row["text"][:30])
        ids = choice.get("token_ids")
        if not t.check(isinstance(ids, list) and len(ids) == 48, "token_ids: %r" % (ids,)):
            continue
        step = next((i for i in range(48) if ids[i] != row["tokens"][i]), 48)
        t.check(step == 48 or row["gaps"][step] < 0.05, "%r: step %d differs, gap %s" % (row["text"][:30], step, row["gaps"][min(step, 47)]))
