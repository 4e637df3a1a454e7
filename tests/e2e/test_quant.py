"""Cases Q01 and Q03: formats of the KV cache on every head size, refusals, quality over length."""
import json
import math

from harness import test

PAIRS = (("i8", "i8"), ("i8", "i4"), ("i4", "i4"), ("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2"))


def flags(pair):
    return ("--kv-type-k", pair[0], "--kv-type-v", pair[1])


@test("Q01 every head size with every pair of formats: 200 tokens, no noise")
def q01(t):
    prompt = [33 + (7 * i * i + 3 * i) % 94 for i in range(40)]
    for i, name in enumerate(("h40", "h48", "h72", "h80", "h96", "h112", "h128", "h256", "k192_v128")):
        for pair in PAIRS[i % 2::2] + PAIRS[2:3]:
            with t.fresh("Q01/ref_" + name, *flags(pair)) as s:
                r = s.post("/v1/completions", {"model": s.served_name(), "prompt": prompt, "max_tokens": 200, "temperature": 0,
                                               "logprobs": 2, "ignore_eos": True})
                if not t.equal(r.status, 200, "%s %s/%s: %s" % (name, *pair, r.body[:200])):
                    continue
                values = r.json()["choices"][0]["logprobs"]["token_logprobs"]
                t.equal(len(values), 200, "%s %s/%s: tokens" % (name, *pair))
                t.check(all(v is not None and math.isfinite(v) and v <= 0 for v in values), "%s %s/%s: %s" % (name, *pair, values[:5]))


@test("Q01 pairs without kernels are refused at start with the list of what works")
def q01_refused(t):
    for pair in (("i8", "f16"), ("f16", "i8"), ("i4", "i8"), ("fp8", "i4")):
        r = t.run("serve", t.model("ref"), "--port", "0", *flags(pair))
        text = r.stderr.decode()
        t.equal(r.returncode, 2, "%s/%s: %s" % (*pair, text[-200:]))
        t.check("i8/i8, i8/i4, i4/i4" in text and "--kv-type-k" in text, "%s/%s: %r" % (*pair, text[-300:]))
    for spec in ("i4,layers=0-99:i8", "i4,layers=zero:i8", "i8,layers=0:i4,1"):
        r = t.run("serve", t.model("ref"), "--port", "0", "--kv-type", spec)
        t.check(r.returncode != 0 and b"layers" in r.stderr, "%s: %d %r" % (spec, r.returncode, r.stderr[-200:]))
    for spec, words in (("i8,layers=99:i4", b"--kv-type i8,layers=99:i4: K: layers 99"), ("f16,layers=0:f32,0:bf16", b"layer 0 is to be both f32 and bf16"),
                        ("auto,layers=0:i8", b"exceptions"), ("x9", b"and auto")):
        for command in ("serve", "inspect"):
            r = t.run(command, t.model("ref"), "--kv-type", spec)
            t.check(r.returncode in (2, 3) and words in r.stderr, "%s %s: %d %r" % (command, spec, r.returncode, r.stderr[-200:]))
    r = t.run("inspect", t.model("ref"), "--kv-type", "i8/i4", "--json")
    kv = json.loads(r.stdout)["kv"]
    t.equal((kv["k_type"], kv["v_type"]), ("i8", "i4"), "K/V")
    r = t.run("inspect", t.model("ref"), "--kv-type", "f16,layers=0:f32")
    shown = r.stdout.decode().split("KV cache")[1].splitlines()[1:]
    t.check(len(shown) > 2 and all(line.startswith("  ") for line in shown if line), "layout: %r" % shown)
    r = t.run("serve", t.model("ref"), "--port", "0", "--swap-space", "9999TiB")
    t.check(r.returncode == 4 and b"are free" in r.stderr, "swap space: %d %r" % (r.returncode, r.stderr[-300:]))


@test("Q03 scales are kept: a word from far back is found, warm as cold; layers may differ")
def q03(t):
    word = [t.random.randrange(33, 127) for _ in range(500)]
    for extra in (flags(PAIRS[0]), flags(PAIRS[1]), flags(PAIRS[2]), ("--kv-type", "i4,layers=0:i8,-1:i8"), ("--kv-type", "fp8")):
        with t.fresh("copy_500", *extra) as s:
            body = {"model": s.served_name(), "prompt": word, "max_tokens": 100, "temperature": 0, "logprobs": 1}
            cold, warm = s.post("/v1/completions", body), s.post("/v1/completions", body)
            if not t.equal((cold.status, warm.status), (200, 200), "%s: %s" % (extra, cold.body[:200])):
                continue
            one, two = cold.json(), warm.json()
            t.equal(one["choices"][0]["text"], "".join(map(chr, word[:100])), "%s" % (extra,))
            t.equal(json.dumps(one["choices"][0]), json.dumps(two["choices"][0]), "%s: warm" % (extra,))
            found = two["usage"]["prompt_tokens_details"]["cached_tokens"]
            t.equal(found, 480 if extra == flags(PAIRS[2]) else 499, "%s: tokens found (K in i4: multiples of 32)" % (extra,))


@test("Q03 four turns: the same answers warm as cold in small formats")
def q03_turns(t):
    for pair in PAIRS[:3]:
        with t.fresh("stories", *flags(pair)) as warm, t.fresh("stories", *flags(pair), "--no-prefix-caching") as cold:
            prompt = "Once upon a time"
            for turn in range(4):
                got = [s.post("/v1/completions", {"model": s.served_name(), "prompt": prompt, "max_tokens": 40, "temperature": 0,
                                                  "logprobs": 3}).json() for s in (warm, cold)]
                t.equal(json.dumps(got[0]["choices"]), json.dumps(got[1]["choices"]), "%s/%s turn %d" % (*pair, turn))
                prompt += got[0]["choices"][0]["text"] + " Then"
