"""kvasir bench: a sweep against our own server, workloads, pictures, and what it refuses."""
import csv
import json
import os
import xml.etree.ElementTree as ElementTree

from harness import test

SWEEP = ("--sweep", "--vocab", "500", "--seed", "7", "--input-len", "8:40", "--drain", "60", "--settle", "0")


def load_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def svg_texts(t, path):
    """The picture's texts; the parser raises if it is not well-formed."""
    root = ElementTree.parse(path).getroot()
    t.equal(root.tag, "{http://www.w3.org/2000/svg}svg", "root element of %s" % os.path.basename(path))
    t.check(b"http" not in open(path, "rb").read().replace(b"http://www.w3.org/2000/svg", b""), "the picture fetches something")
    return [element.text for element in root.iter() if element.text and element.text.strip()]


@test("kvasir bench --sweep: levels, JSON and picture; two reports in one picture")
def sweep(t):
    s = t.server("stories", "--kv-mem", "128MiB")
    reports = []
    for name, more in (("a", ()), ("b", ("--capacity", "20", "--text"))):
        path, picture = os.path.join(t.tmp, name + ".json"), os.path.join(t.tmp, name + ".svg")
        r = t.run("bench", "--url", s.url, *SWEEP, "--output-len", "100:140", "--loads", "0.25,1", "--capacity-time",
                  "2", "--capacity-users", "4", "--duration", "1.5", "--label", "run " + name, "--json", path, "--svg", picture, *more, timeout=600)
        t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
        t.check(b"capacity" in r.stdout and b"ttft p99" in r.stdout, "table: %r" % r.stdout[-400:])
        t.check("run " + name in svg_texts(t, picture), "the label is in the picture")
        reports.append(load_json(path))
    measured, given = reports
    t.check(measured["capacity_measured"] and measured["capacity_rps"] > 0, "capacity %r" % measured["capacity_rps"])
    t.check(not given["capacity_measured"] and given["capacity_rps"] == 20, "given capacity %r" % given["capacity_rps"])
    for report in reports:
        t.equal([level["load"] for level in report["levels"]], [0.25, 1], "levels")
        for level in report["levels"]:
            t.equal(level["completed"] + level["unfinished"] + level["refused_429"] + level["refused_503"] +
                    sum(level["errors"].values()) + level["not_sent"], level["offered"], "each request is counted once")
        low = report["levels"][0]
        t.equal(low["errors"], {}, "errors at a quarter of the capacity")
        t.check(low["completed"] > 0 and low["ttft_s"]["p50"] > 0, "something was answered at load 0.25: %r" % low)
        t.check(low["server"].get("generated", 0) >= 100 * low["completed"], "the server's counter: %r" % low["server"])
    both = os.path.join(t.tmp, "both.svg")
    paths = [os.path.join(t.tmp, name + ".json") for name in "ab"]
    r = t.run("bench", "--plot", *paths, "--label", "before", "--label", "after", "--title", "Two", "--svg", both)
    t.equal(r.returncode, 0, "--plot: %r" % r.stderr[-300:])
    texts = svg_texts(t, both)
    t.check({"before", "after", "Two"} <= set(texts), "legend: %r" % texts[:20])


@test("kvasir bench --sweep: what a full server refuses is counted as refused")
def refused(t):
    s = t.server("stories", "--kv-mem", "128MiB", "--max-num-seqs", "1", "--max-queue", "0")
    path = os.path.join(t.tmp, "full.json")
    r = t.run("bench", "--url", s.url, *SWEEP, "--output-len", "200", "--loads", "1", "--capacity", "300", "--duration", "2",
              "--json", path, timeout=600)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
    level = load_json(path)["levels"][0]
    t.check(level["refused_429"] > 0, "no refusal at one seat and no queue: %r" % level)
    t.equal(level["refused_no_retry_after"], 0, "refusals without Retry-After")
    t.check(level["completed"] + level["unfinished"] > 0, "somebody was served: %r" % level)


@test("kvasir bench: sessions, a common prefix and lengths of a trace")
def traffic(t):
    s = t.server("stories", "--kv-mem", "128MiB")
    trace = os.path.join(t.tmp, "trace.csv")
    with open(trace, "w", newline="", encoding="ascii") as f:
        csv.writer(f).writerows([("TIMESTAMP", "ContextTokens", "GeneratedTokens"), ("x", 40, 6), ("y", 80, 6)])
    common = ("bench", "--url", s.url, "--vocab", "500", "--seed", "3", "--no-warm-up", "--json", "-")

    def loop(*flags):
        r = t.run(*common, *flags, timeout=600)
        if not t.equal(r.returncode, 0, "%s: %r" % (" ".join(flags), r.stderr[-300:])):
            return {}
        return json.loads(r.stdout)["workloads"][0]

    # 20, then 20 + answer 4 + 20, then 44 + 4 + 20: the second turn has the first's answer in it.
    w = loop("--concurrency", "1", "--requests", "6", "--turns", "3", "--input-len", "20", "--output-len", "4")
    t.equal((w.get("ok"), w.get("prompt_tokens")), (6, 2 * (20 + 44 + 68)), "sessions")
    w = loop("--concurrency", "2", "--requests", "40", "--shared-prefix", "64", "--hot-share", "0.5", "--input-len", "8",
             "--output-len", "2")
    t.equal((w.get("ok"), w.get("prompt_tokens")), (40, 40 * 72), "hot share")
    hot = w.get("hot", {}).get("ok", 0)
    t.check(5 < hot < 35, "half of 40 are hot: %d" % hot)
    w = loop("--rate", "40", "--duration", "0.5", "--trace", trace, "--trace-scale", "0.5")
    t.check(w.get("ok", 0) > 0 and w["output_tokens"] == 3 * w["ok"], "trace: %r" % w)
    t.check(20 * w["ok"] <= w["prompt_tokens"] <= 40 * w["ok"] and w["prompt_tokens"] % 20 == 0, "trace prompts: %r" % w)


@test("kvasir bench: flags that make no sense are usage errors")
def usage(t):
    report = os.path.join(t.tmp, "none.json")
    with open(report, "w", encoding="ascii") as f:
        f.write('{"workloads": []}')
    for flags, words in ((("--rate", "0"), b"--rate"), (("--rate", "nan"), b"--rate"), (("--concurrency", "0"), b"--concurrency"),
                         (("--sweep", "--rate", "1"), b"--sweep"), (("--sweep", "--loads", "0"), b"--loads"),
                         (("--sweep", "--capacity", "0"), b"--capacity"), (("--sweep", "--slo-itl", "0"), b"--slo-itl"),
                         (("--input-len", "9:3"), b"--input-len"), (("--hot-share", "0.5"), b"--shared-prefix"),
                         (("--trace", "/nonexistent"), b"--trace"), (("--trace-scale", "2"), b"--trace"), (("--turns", "0"), b"--turns"),
                         (("--svg", "x.svg"), b"--svg"), (("--plot", report), b"--svg"),
                         (("--plot", report, "--svg", report + ".svg"), b"no report"),
                         (("--plot", "/nonexistent", "--svg", report + ".svg"), b"cannot be read"),
                         (("--plot", report, "--svg", "x.svg", "--label", "a", "--label", "b"), b"--label")):
        r = t.run("bench", "--url", "http://127.0.0.1:1", *flags)
        t.check(r.returncode == 2 and words in r.stderr and r.stderr.count(b"\n") == 1,
                "%s: exit %d %r" % (" ".join(flags), r.returncode, r.stderr[:200]))
    nobody = t.run("bench", "--url", "http://127.0.0.1:1", "--model", "m", "--sweep", "--capacity-time", "0.3", "--duration", "0.3")
    t.check(nobody.returncode == 1 and b"connect" in nobody.stderr, "no server: exit %d %r" % (nobody.returncode, nobody.stderr[:200]))
