"""The rows of bench/speed.py without HTTP: our decode_bench beside llama-bench and llama-batched-bench."""
import json
import os
import subprocess

from speed_lib import Skip, Unit, View, output

USERS = [1, 2, 4, 8, 16, 32]


def ours(c, model, prompt=0, depth=0, users="0", out=64, read_mib=0, more=()):
    """decode_bench's JSON lines of one round."""
    text = output([c.decode_bench, model, "--threads", str(c.threads), "--prompt", str(prompt), "--depth", str(depth), "--users", users,
                   "--output", str(out), "--rounds", "1", "--json", "--read-mib", str(read_mib), *more])
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def speed(entries, test):
    return [e for e in entries if e["test"] == test][0]["tokens_s"][0]


def llama_bench(c, build, model, prompt=0, gen=0, depth=0, kv="f16", fa=1):
    """Tokens a second of (prefill, decode), None for what was not asked for."""
    text = output([c.llama(build, "llama-bench"), "-m", model, "-t", str(c.threads), "-p", str(prompt), "-n", str(gen), "-d", str(depth),
                   "-ctk", kv, "-ctv", kv, "-fa", str(fa), "-r", "1", "-o", "json"], env=c.llama_env(build))
    entries = json.loads(text)
    pick = lambda field: next((e["avg_ts"] for e in entries if e[field] > 0), None)
    return pick("n_prompt"), pick("n_gen")


def keep(earlier, jobs, always=()):
    """Jobs worth another round: all in the first; then ours, and those that ever came within 20 % of the best of their group.

    A job is (name, group, function); the peer's configurations of one group are alternatives to each other.
    """
    best, mine = {}, {}
    for r in earlier:
        for name, group, _ in jobs:
            if name in r["values"]:
                mine[name] = max(mine.get(name, 0), r["values"][name])
                best[group] = max(best.get(group, 0), r["values"][name])
    return [(name, f) for name, group, f in jobs if not earlier or group == "ours" or name in always or
            mine.get(name, 0) >= 0.8 * best.get(group, 0) > 0]


def llama_jobs(c, files, groups, run, fas=(1, 0), kvs=(None,)):
    """(name, group, function) of every build x file x flash attention x cache type that can work."""
    jobs = []
    for build in c.llama_names:
        for kind, path in files.items():
            for kv in kvs:
                for fa in fas if kv in (None, "f16") else (1,):  # a quantised V needs flash attention
                    name = "%s %s%s%s" % (build, kind, " %s KV" % kv if kv else "", "" if fa else " no-fa")
                    jobs.append((name, groups(kind, kv), lambda b=build, p=path, f=fa, k=kv or "f16": run(b, p, f, k)))
    return jobs


def decode_empty(number, values, earlier, c):
    files = c.files(["Q4_1", "Q4_0", "Q8_0"])
    jobs = [("ours", "ours", lambda: speed(ours(c, c.demo, users="1", out=128), "decode"))]
    jobs += llama_jobs(c, files, lambda kind, kv: "same" if kind == "Q4_1" else "other",
                       lambda b, p, f, k: llama_bench(c, b, p, gen=128, fa=f)[1])
    c.alternate(number, values, keep(earlier, jobs))


def decode_deep(number, values, earlier, c):
    files = c.files(["Q4_1", "Q8_0"])
    one = lambda kv: speed(ours(c, c.demo, depth=4096, users="1", out=64, more=("--kv-type-k", kv, "--kv-type-v", kv)), "decode")
    jobs = [("ours f16 KV", "ours", lambda: one("f16"))]
    jobs += [("ours %s KV" % kv, "ours", lambda kv=kv: one(kv)) for kv in c.our_kv_types()]
    deep = lambda b, p, f, k: llama_bench(c, b, p, gen=32, depth=4096, fa=f, kv=k)[1]
    jobs += llama_jobs(c, files, lambda kind, kv: "f16" if kv == "f16" else "quantised", deep, fas=(1,) if c.quick else (1, 0),
                       kvs=("f16", "q8_0"))
    # A cache of q4_0 takes minutes to fill and is far slower than q8_0: once, with one file.
    if not c.quick:
        jobs += llama_jobs(c, {"Q4_1": c.demo}, lambda kind, kv: "quantised", deep, kvs=("q4_0",))
    c.alternate(number, values, keep(earlier, jobs))


def bandwidth(number, values, earlier, c):
    for depth in (0, 4096):
        entry = ours(c, c.demo, depth=depth, users="1", out=64, read_mib=256)[0]
        used, name = entry["step_bytes"] * 1e-6 / entry["step_ms"][0], "empty" if depth == 0 else "4,096"
        values["ours %s" % name] = used / entry["read_gbs"][0]
        values["ours %s, same bytes" % name] = used / entry["read_same_gbs"][0]
        values["info read GB/s %s" % name] = entry["read_gbs"][0]
        values["info decode GB/s %s" % name] = used


def prefill(kind, model_of, others):
    def measure(number, values, earlier, c):
        same, files = model_of(c), c.files(others) if kind != "1B Q4_K" else c.big(others)
        jobs = [("ours", "ours", lambda: speed(ours(c, same, prompt=512), "prefill"))]
        jobs += llama_jobs(c, {kind: same}, lambda k, kv: "same", lambda b, p, f, k: llama_bench(c, b, p, prompt=512, fa=f)[0])
        jobs += llama_jobs(c, files, lambda k, kv: "other", lambda b, p, f, k: llama_bench(c, b, p, prompt=512, fa=f)[0])
        c.alternate(number, values, keep(earlier, jobs))
    return measure


def prefill_deep(depth):
    def measure(number, values, earlier, c):
        jobs = [("ours", "ours", lambda: speed(ours(c, c.demo, prompt=512, depth=depth), "prefill"))]
        jobs += llama_jobs(c, c.files(["Q8_0"]), lambda k, kv: "peer",
                           lambda b, p, f, k: llama_bench(c, b, p, prompt=512, depth=depth, fa=f)[0],
                           fas=(1,) if c.quick else (1, 0))
        c.alternate(number, values, keep(earlier, jobs))
    return measure


def prefill_small(number, values, earlier, c):
    """Prefill at depth 4,096 with 8-bit caches."""
    one = lambda kv: speed(ours(c, c.demo, prompt=512, depth=4096, more=("--kv-type-k", kv, "--kv-type-v", kv)), "prefill")
    jobs = [("ours %s KV" % kv, "ours", lambda kv=kv: one(kv)) for kv in ["f16"] + c.our_kv_types()]
    jobs += llama_jobs(c, c.files(["Q8_0"]), lambda kind, kv: "peer",
                       lambda b, p, f, k: llama_bench(c, b, p, prompt=512, depth=4096, fa=f, kv=k)[0], kvs=("q8_0",))
    c.alternate(number, values, keep(earlier, jobs))


def batched_bench(c, build, model, unified):
    text = output([c.llama(build, "llama-batched-bench"), "-m", model, "-t", str(c.threads), "-c", "16384", "-b", "2048", "-ub", "512",
                   "-fa", "on", "-npp", "256", "-ntg", "32", "-npl", ",".join(map(str, USERS)), "--output-format", "jsonl"] +
                  (["-kvu"] if unified else ["-no-kvu"]), env=c.llama_env(build))
    entries = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {e["pl"]: e["speed_tg"] for e in entries}


def batch(number, values, earlier, c):
    def mine():
        for e in ours(c, c.demo, depth=256, users=",".join(map(str, USERS)), out=32):
            values["ours B=%d" % e["users"]] = e["tokens_s"][0]

    def theirs(name, build, path, unified):
        for b, v in batched_bench(c, build, path, unified).items():
            values["%s B=%d" % (name, b)] = v

    jobs = [("ours", mine)]
    kinds = ["Q4_1"] if c.quick else ["Q4_1", "Q8_0", "Q4_0"]
    for build in c.llama_names:
        for kind, path in c.files(kinds).items():
            for unified in (False, True):
                name = "%s %s %s" % (build, kind, "unified" if unified else "split")
                seen = [r["values"] for r in earlier]
                # Worth another round if it was near the best of its group for any B.
                group = lambda n: (" Q4_1 " in n) == (kind == "Q4_1") and not n.startswith("ours")
                near = [max((v["%s B=%d" % (name, b)] for v in seen if "%s B=%d" % (name, b) in v), default=0) >=
                        0.8 * max((x for v in seen for n, x in v.items() if group(n) and n.endswith(" B=%d" % b)), default=0) for b in USERS]
                # Other file types are for information: one round of them.
                if not seen or (kind == "Q4_1" and any(near)):
                    jobs.append((name, lambda n=name, b=build, p=path, u=unified: theirs(n, b, p, u)))
    c.alternate(number, values, jobs)


def big(kind):
    def measure(number, values, earlier, c):
        path = c.big([kind])[kind]

        def mine():
            entries = ours(c, path, prompt=512, users="1", out=32)
            values["ours prefill"], values["ours decode"] = speed(entries, "prefill"), speed(entries, "decode")

        def theirs(build, fa):
            name = "%s %s%s" % (build, kind, "" if fa else " no-fa")
            values[name + " prefill"], values[name + " decode"] = llama_bench(c, build, path, prompt=512, gen=32, fa=fa)
        jobs = [("ours", mine)] + [("%s fa %d" % (b, fa), lambda b=b, fa=fa: theirs(b, fa)) for b in c.llama_names for fa in (1, 0)]
        c.alternate(number, values, jobs)
    return measure


def units():
    demo = lambda c: c.demo
    mixed = lambda c: c.files(["Q4_K"])["Q4_K"]
    all_types = ["Q4_1", "Q4_0", "Q8_0", "Q4_K", "F16", "BF16"]
    other = lambda kind: [t for t in all_types if t != kind]
    result = [
        Unit("decode", "decode", 40, decode_empty, [
            View("decode, one user, empty cache", 2, "ours", "llama*"),
            View("… its same file", None, "ours", "llama* Q4_1*")]),
        Unit("depth", "decode-4096", 250, decode_deep, [
            View("decode at depth 4,096, f16 KV against f16 KV", 5, "ours f16 KV", "llama* f16 KV*"),
            View("decode at depth 4,096, f16 KV against its best cache type", 2.5, "ours f16 KV", "llama*"),
            View("decode at depth 4,096, i8 KV against q8_0 KV", 4, "ours i8 KV", "llama* q8_0 KV*"),
            View("decode at depth 4,096, i8 KV against f16 KV", 8, "ours i8 KV", "llama* f16 KV*"),
            View("… ours with any cache type", None, "ours*", "llama*")]),
        Unit("bandwidth", "bandwidth", 8, bandwidth, [
            View("decode, bytes per second over a plain read of 256 MiB, empty cache", 0.6, "ours empty", None, what=""),
            View("… at depth 4,096", 0.6, "ours 4,096", None, what=""),
            View("… over a plain read of as many bytes as the step's, empty cache", None, "ours empty, same bytes", None, what=""),
            View("… at depth 4,096", None, "ours 4,096, same bytes", None, what="")]),
        Unit("prefill", "prefill-Q4_1", 60, prefill("Q4_1", demo, other("Q4_1")), [
            View("prefill 512, Q4_1, same file", 3, "ours", "llama* Q4_1*"),
            View("prefill 512, Q4_1, its best file type", 1.5, "ours", "llama*")]),
        Unit("prefill", "prefill-Q4_K", 60, prefill("Q4_K", mixed, other("Q4_K")), [
            View("prefill 512, Q4_K (Q4_K_M mix of the demo model), same file", 3, "ours", "llama* Q4_K*"),
            View("prefill 512, Q4_K (the same), its best file type", 1.5, "ours", "llama*")]),
        Unit("prefill", "prefill-1B-Q4_K", 90, prefill("1B Q4_K", lambda c: c.big(["Q4_K"])["Q4_K"], ["Q4_0", "Q8_0"]), [
            View("prefill 512, all Q4_K, 1 billion parameters, same file", 3, "ours", "llama* 1B Q4_K*"),
            View("prefill 512, all Q4_K, 1 billion parameters, its best file type", 1.5, "ours", "llama*")])]
    for depth, text, guess in ((4096, "4,096", 60), (7168, "7,168", 120)):
        result.append(Unit("prefill-depth", "prefill-at-%d" % depth, guess, prefill_deep(depth), [
            View("prefill 512 at depth %s (its Q8_0 weights, f16 KV)" % text, 2.5, "ours", "llama*")]))
    result.append(Unit("prefill-depth", "prefill-i8", 60, prefill_small, [
        View("prefill 512 at depth 4,096, i8 KV against our f16 KV", 1, "ours i8 KV", "ours f16 KV"),
        View("prefill 512 at depth 4,096, i8 KV against q8_0 KV (its Q8_0 weights)", 6, "ours i8 KV", "llama*"),
        View("… ours i4 KV", None, "ours i4 KV", "llama*")]))
    views = [View("batch decode B=%d (256 + 32)" % b, 2, "ours B=%d" % b, "llama* Q4_1 * B=%d" % b) for b in USERS[1:]]
    views.append(View("batch decode B=2 over B=1, ours", 1.7, "ours B=2", "ours B=1"))
    views += [View("… B=%d, its best file type" % b, None, "ours B=%d" % b, "llama* B=%d" % b) for b in USERS[1:]]
    result.append(Unit("batch", "batch", 160, batch, views))
    for kind in ("Q4_0", "Q8_0"):
        result.append(Unit("1b", "1b-" + kind, 60, big(kind), [
            View("1 billion parameters, %s, %s" % (kind, what), 1.5, "ours " + what, "llama* " + what) for what in ("decode", "prefill")]))
    return result


# ---- Model files, made once and kept

def quantised(c, kind):
    """The demo model as another type, by llama-quantize from the file as it is (Q4_1, its values dequantised)."""
    if kind == "Q4_1":
        return c.demo
    path = os.path.join(c.cache, "demo-%s.gguf" % kind)
    if not os.path.isfile(path):
        tool = c.llama(c.llama_names[0], "llama-quantize") if c.llama_names else ""
        if not os.path.isfile(tool):
            raise Skip("no llama-quantize, which makes %s" % os.path.basename(path))
        os.makedirs(c.cache, exist_ok=True)
        output([tool, "--allow-requantize", c.demo, path + ".part", "Q4_K_M" if kind == "Q4_K" else kind, str(c.threads)],
               env=c.llama_env(c.llama_names[0]))
        os.replace(path + ".part", path)
    return path


def random_model(c, kind):
    path = os.path.join(c.cache, "random-1B-%s.gguf" % kind)
    if not os.path.isfile(path):
        os.makedirs(c.cache, exist_ok=True)
        try:
            output([c.python, os.path.join(c.root, "tools/make_random_model.py"), "--vocab-from", c.demo, "--type", kind.lower(), path])
        except (RuntimeError, subprocess.SubprocessError) as e:
            raise Skip("tools/make_random_model.py: %s" % e) from e
    return path
