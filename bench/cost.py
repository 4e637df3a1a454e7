#!/usr/bin/env python3
"""How the cost of a decode step grows: with context, users, and model size. Measures, fits a + b x, draws one picture.

usage: bench/cost.py --build build/release --model DEMO.gguf [--small stories260K.gguf] [--out build/results/speed] [--svg docs/cost.svg]
                     [--rounds 3] [--quick] [--no-big] [--plot-only]

Each panel shows medians of rounds, the least-squares line and its formula, and the limit: the bytes of weights, K and V that the
step must read, over the read bandwidth that the same process measured (plain sum over 256 MiB, all threads). The measurements are kept in
OUT/cost.jsonl; --plot-only draws them again. Standard library only (numpy for the random models, if they are not there yet).
"""
import argparse
import json
import math
import os
import statistics
import sys

from speed_lib import Skip, build_id, host, output
from speed_rows import random_model

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
DEPTHS = [0, 512, 1024, 2048, 4096, 6144, 8064]
USERS = [1, 2, 4, 8, 16, 32, 64]


def fit(points):
    """(a, b, r^2) of least squares a + b x."""
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    sxx = sum((x - mx) ** 2 for x, _ in points)
    b = sum((x - mx) * (y - my) for x, y in points) / sxx
    a = my - b * mx
    total = sum((y - my) ** 2 for _, y in points)
    return a, b, 1 - sum((y - a - b * x) ** 2 for x, y in points) / total if total else 1.0


def measure(a, model, depth, users, out):
    text = output([os.path.join(a.build, "bench/decode_bench"), model, "--threads", str(a.threads), "--prompt", "0", "--depth",
                   ",".join(map(str, depth)), "--users", ",".join(map(str, users)), "--output", str(out), "--rounds", str(a.rounds), "--json"])
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def models(a):
    found = [("stories260K", a.small)] if a.small and os.path.isfile(a.small) else []
    found.append(("demo Q4_1", a.model))
    for kind in () if a.no_big else ("Q4_0", "Q8_0"):
        try:
            found.append(("1B " + kind, random_model(a, kind)))
        except Skip as e:
            print("cost: left out: %s" % e, flush=True)
    return found


def run(a):
    """Measures everything; returns JSON entries with `panel` and `label` added."""
    entries = []

    def note(panel, label, found):
        for e in found:
            e.update(panel=panel, label=label, host=host(), build=build_id(os.path.join(a.build, "bench/decode_bench")))
            entries.append(e)
            print("cost: %s: %s, depth %d, %d users: %.3f ms a step (%.1f of %.1f GB/s)" % (
                panel, label, e["depth"], e["users"], statistics.median(e["step_ms"]),
                e["step_bytes"] * 1e-6 / statistics.median(e["step_ms"]), statistics.median(e["read_gbs"])), flush=True)

    depths, users = (DEPTHS[::2], USERS[::2]) if a.quick else (DEPTHS, USERS)
    for depth in depths:  # one process each, so that the pool stays as large as one depth needs
        note("context", "demo Q4_1", measure(a, a.model, [depth], [1], 64))
    for n in users:
        note("users", "demo Q4_1", measure(a, a.model, [256], [n], 32))
    for label, path in models(a):
        note("size", label, measure(a, path, [0], [1], 32))
    with open(os.path.join(a.out, "cost.jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(e) + "\n" for e in entries)
    return entries


# ---- The picture: greys and two colours that read on white and on black; no font, script or style sheet needed

INK, FAINT, OURS, LIMIT = "#808080", "#80808055", "#2f7fd8", "#d8702f"
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 220, 64, 66, 84


def ticks(high):
    step = 10 ** math.floor(math.log10(high / 4))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if high / (step * m) <= 5)
    return [step * i for i in range(int(high / step) + 1)]


def label(x):
    return "%g" % round(x, 6) if x < 1000 else "{:,.0f}".format(x)


def text(x, y, words, anchor="middle", color=INK, size=12):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return '<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" font-size="%d" font-family="sans-serif">%s</text>' % (x, y, anchor, color, size, words)


def panel(index, title, x_name, points, unit):
    """points: (x, measured ms, limit ms, words). Both axes linear from zero: a straight line is what is fitted."""
    left = LEFT + index * (WIDTH + GAP)
    right, bottom = left + WIDTH, TOP + HEIGHT
    top_x, top_y = max(p[0] for p in points) * 1.05, max(max(p[1], p[2]) for p in points) * 1.12
    px, py = lambda x: left + x / top_x * WIDTH, lambda y: bottom - y / top_y * HEIGHT
    out = [text((left + right) / 2, TOP - 36, title, size=14), text(left - 6, TOP - 8, "ms", "end")]
    for x in ticks(top_x):
        out.append('<path d="M%.1f %.1fV%.1f" stroke="%s"/>' % (px(x), TOP, bottom, FAINT) + text(px(x), bottom + 16, label(x)))
    for y in ticks(top_y):
        out.append('<path d="M%.1f %.1fH%.1f" stroke="%s"/>' % (left, py(y), right, FAINT) + text(left - 6, py(y) + 4, label(y), "end"))
    out.append(text((left + right) / 2, bottom + 34, x_name))
    if len(points) > 1:
        a, b, r2 = fit([(x, y) for x, y, _, _ in points])
        out.append(text((left + right) / 2, TOP - 18, "%.3g ms %s %.3g ms a %s   (r² %.3f)" % (a, "+" if b >= 0 else "−", abs(b) * unit[0], unit[1], r2), color=OURS))
        ends = [(x, a + b * x) for x in (0, max(p[0] for p in points))]
        out.append('<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" stroke-dasharray="5 4" fill="none"/>' % (
            px(ends[0][0]), py(max(0, ends[0][1])), px(ends[1][0]), py(ends[1][1]), OURS))
    limit = sorted((x, y) for x, _, y, _ in points)
    out.append('<path d="M%s" stroke="%s" stroke-width="2" fill="none"/>' % ("L".join("%.1f %.1f" % (px(x), py(y)) for x, y in limit), LIMIT))
    for x, y, _, words in points:
        out.append('<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>' % (px(x), py(y), OURS))
        if words:
            side = "end" if x > 0.3 * top_x else "start"
            out.append(text(px(x) + (-8 if side == "end" else 8), py(y) - 6, words, side, size=11))
    return out


def draw(entries, path):
    middle = lambda e: statistics.median(e["step_ms"])
    limit = lambda e: e["step_bytes"] * 1e-6 / statistics.median(e["read_gbs"])
    of = lambda name: [e for e in entries if e["panel"] == name]
    panels = [
        ("one user, over its context", "tokens in the cache", [(e["depth"], middle(e), limit(e), "") for e in of("context")], (1000, "1,000 tokens")),
        ("users at 256 tokens each", "users", [(e["users"], middle(e), limit(e), "") for e in of("users")], (1, "user")),
        ("one user, over the model's size", "MB of weights read a step", [(e["step_bytes"] * 1e-6, middle(e), limit(e), e["label"]) for e in of("size")],
         (1000, "GB"))]
    width = LEFT + 3 * WIDTH + 2 * GAP + 20
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">' % (width, TOP + HEIGHT + 84, width, TOP + HEIGHT + 84),
           "<title>How the cost of a decode step grows</title>"]
    for i, p in enumerate(panels):
        if p[2]:
            out += panel(i, *p)
    y = TOP + HEIGHT + 66
    out.append('<circle cx="%d" cy="%d" r="4" fill="%s"/>' % (LEFT, y - 4, OURS) + text(LEFT + 10, y, "ms a step, median; dashed: fitted", "start"))
    out.append('<path d="M%d %dh24" stroke="%s" stroke-width="2"/>' % (LEFT + 260, y - 4, LIMIT) +
               text(LEFT + 290, y, "limit: bytes that must be read, over the bandwidth of a plain read in the same process", "start"))
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out + ["</svg>", ""]))


def table(entries):
    lines = ["| what | step = a + b x | r² | share of the limit, ends |", "| --- | --- | --- | --- |"]
    for name, x_of, unit in (("context", lambda e: e["depth"] * 1e-3, "1,000 tokens"), ("users", lambda e: e["users"], "user"),
                             ("size", lambda e: e["step_bytes"] * 1e-9, "GB of weights")):
        of = sorted((e for e in entries if e["panel"] == name), key=x_of)
        if len(of) < 2:
            continue
        a, b, r2 = fit([(x_of(e), statistics.median(e["step_ms"])) for e in of])
        share = [e["step_bytes"] * 1e-6 / statistics.median(e["read_gbs"]) / statistics.median(e["step_ms"]) for e in (of[0], of[-1])]
        lines.append("| %s | %.3g ms + %.3g ms a %s | %.3f | %.0f %%, %.0f %% |" % (name, a, b, unit, r2, 100 * share[0], 100 * share[1]))
    return "\n".join(lines)


def self_test():
    a, b, r2 = fit([(0, 1.0), (1, 3.0), (2, 5.0)])
    assert abs(a - 1) < 1e-9 and abs(b - 2) < 1e-9 and abs(r2 - 1) < 1e-9
    assert fit([(0, 0.0), (1, 1.0), (2, 0.0)])[2] < 0.01
    assert ticks(8.5)[:3] == [0, 2, 4] and ticks(64 * 1.05)[-1] == 60, (ticks(8.5), ticks(67.2))


def main():
    self_test()
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    ap.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    ap.add_argument("--model", help="the demo model")
    ap.add_argument("--small", default=os.path.join(ROOT, "../shared/models/stories260K.gguf"))
    ap.add_argument("--out", default=os.path.join(ROOT, "build/results/speed"))
    ap.add_argument("--svg", help="default: cost.svg in OUT")
    ap.add_argument("--cache", default=os.path.join(cache, "kvasir-bench"))
    ap.add_argument("--python", default=sys.executable)
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--quick", action="store_true", help="half of the points, one round")
    ap.add_argument("--no-big", action="store_true", help="without the random models")
    ap.add_argument("--plot-only", action="store_true")
    a = ap.parse_args()
    a.root, a.rounds = ROOT, 1 if a.quick else a.rounds
    os.makedirs(a.out, exist_ok=True)
    if a.plot_only:
        with open(os.path.join(a.out, "cost.jsonl"), encoding="utf-8") as f:
            entries = [json.loads(line) for line in f]
    elif not a.model:
        ap.error("--model is missing")
    else:
        entries = run(a)
    svg = a.svg or os.path.join(a.out, "cost.svg")
    draw(entries, svg)
    print("\n" + table(entries) + "\n\npicture: " + svg)


if __name__ == "__main__":
    main()
