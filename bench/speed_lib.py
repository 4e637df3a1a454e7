"""What bench/speed.py is built from: rounds on disk, progress, one table. Standard library only; run nothing by itself.

A *unit* is what one round measures in one go: ours and the peer's, alternating. A round is one JSON line in OUT/UNIT.jsonl:
    {"build": HASH, "round": N, "seconds": wall, "values": {NAME: number, ...}, ...}
A name beginning with "ours" is ours; others name the peer and its configuration. A run that was cut goes on after the last whole
round; rounds of another build of ours are not counted. A *view* is a line of the table: which names of a unit are compared.
"""
import fnmatch
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time


class Skip(Exception):
    """Something a unit needs is not there; the text says what."""


class View:
    """A line of the table. ours, peer: patterns of names; of several that match, the best median counts.

    better: which of two medians is better, "high" or "low". target: the smallest ratio that meets it, where the ratio is ours/peer
    for "high" and peer/ours for "low" (so that more is better). peer None: `ours` itself, in `unit_name`, is judged (limit: "high"
    means at least the target). target None: for information.
    """

    def __init__(self, name, target, ours, peer, better="high", what="t/s", note=""):
        self.name, self.target, self.ours, self.peer = name, target, ours, peer
        self.better, self.what, self.note = better, what, note

    def pick(self, rounds, pattern):
        """(name, values) of the best name that has a value in every round, or in the most of them."""
        names = sorted({n for r in rounds for n in r["values"] if any(fnmatch.fnmatchcase(n, p) for p in pattern.split("|"))})
        if not names:
            return None, []
        most = max(sum(n in r["values"] for r in rounds) for n in names)
        sign = 1 if self.better == "high" else -1
        full = [n for n in names if sum(n in r["values"] for r in rounds) == most]
        best = max(full, key=lambda n: sign * statistics.median(r["values"][n] for r in rounds if n in r["values"]))
        return best, [r["values"].get(best) for r in rounds]

    def row(self, rounds):
        """Cells of the table."""
        ours_name, ours = self.pick(rounds, self.ours)
        if not ours_name:
            return [self.name, self.goal(), "–", "–", "–", "not measured"]
        mid = lambda v: statistics.median(x for x in v if x is not None)
        if self.peer is None:
            values = [v for v in ours if v is not None]
            ratio, low, high = mid(ours), min(values), max(values)
            theirs = "–"
        else:
            peer_name, peer = self.pick(rounds, self.peer)
            if not peer_name:
                return [self.name, self.goal(), number(mid(ours)), "–", "–", "peer not measured"]
            pairs = [(a, b) for a, b in zip(ours, peer) if a is not None and b is not None]
            if not pairs:
                return [self.name, self.goal(), number(mid(ours)), "–", "–", "no common round"]
            turn = (lambda a, b: a / b) if self.better == "high" else (lambda a, b: b / a)
            ratios = [turn(a, b) for a, b in pairs]
            ratio, low, high = turn(mid([a for a, _ in pairs]), mid([b for _, b in pairs])), min(ratios), max(ratios)
            theirs = "%s (%s)" % (number(mid(peer)), peer_name)
        verdict = "" if self.target is None else "met" if ratio >= self.target else "**missed**"
        count = sum(v is not None for v in ours)
        return [self.name, self.goal(), "%s %s" % (number(mid(ours)), self.what), theirs,
                "%s (%s to %s, %d)" % (number(ratio), number(low), number(high), count), verdict]

    def goal(self):
        return "" if self.target is None else "≥ %g" % self.target


def number(x):
    return "%.0f" % x if abs(x) >= 1000 else "%.3g" % x if abs(x) < 10 else "%.1f" % x


class Unit:
    """measure(round, values, context): fills values. guess: seconds a round takes, before one was measured."""

    def __init__(self, row, name, guess, measure, views, rounds=None):
        self.row, self.name, self.guess, self.measure, self.views, self.rounds = row, name, guess, measure, views, rounds


class Store:
    """Rounds of one run's folder."""

    def __init__(self, out, build):
        self.out, self.build = out, build
        os.makedirs(out, exist_ok=True)

    def path(self, unit):
        return os.path.join(self.out, unit.name + ".jsonl")

    def rounds(self, unit):
        found = []
        try:
            with open(self.path(unit), encoding="utf-8") as f:
                for line in f:
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        continue  # the line that was being written when a run was cut
                    if entry.get("build") == self.build:
                        found.append(entry)
        except FileNotFoundError:
            pass
        return found

    def add(self, unit, entry):
        try:
            with open(self.path(unit), "rb") as f:
                f.seek(-1, os.SEEK_END)
                cut = f.read(1) != b"\n"  # a run ended inside a line
        except OSError:
            cut = False
        with open(self.path(unit), "a", encoding="utf-8") as f:
            f.write("\n" * cut + json.dumps(dict(build=self.build, at=time.strftime("%Y-%m-%d %H:%M:%S"), **entry), sort_keys=True) + "\n")
            f.flush()
            os.fsync(f.fileno())


class Progress:
    def __init__(self, store, units, rounds):
        self.store, self.units, self.wanted, self.start = store, units, rounds, time.monotonic()

    def left(self, skipped=()):
        seconds = 0
        for u in self.units:
            done = self.store.rounds(u)
            missing = max(0, (u.rounds or self.wanted) - len(done)) if u.name not in skipped else 0
            each = statistics.median(r["seconds"] for r in done) if done else u.guess
            seconds += missing * each
        return seconds

    def say(self, text, skipped=()):
        print("[%s, about %s left] %s" % (clock(time.monotonic() - self.start), clock(self.left(skipped)), text), flush=True)


def clock(seconds):
    seconds = int(seconds)
    return "%d:%02d:%02d" % (seconds // 3600, seconds // 60 % 60, seconds % 60)


def run_units(store, units, rounds, context):
    """All missing rounds: first round of every unit, then the second, ..., so that a cut run has some of everything.

    Returns the units that ended early: name -> why. A round that fails is tried once more.
    """
    progress, skipped = Progress(store, units, rounds), {}
    for turn in range(rounds):
        for unit in units:
            earlier = store.rounds(unit)
            if unit.name in skipped or turn >= (unit.rounds or rounds) or len(earlier) > turn:
                continue
            for attempt in range(2):
                before, values = time.monotonic(), {}
                try:
                    extra = unit.measure(turn, values, earlier, context) or {}
                except Skip as e:
                    skipped[unit.name] = str(e)
                except (subprocess.SubprocessError, OSError, ValueError, KeyError, IndexError, RuntimeError) as e:
                    progress.say("%s: failed: %s: %s" % (unit.name, type(e).__name__, e), skipped)
                    if attempt == 0:
                        continue
                    skipped[unit.name] = "failed: %s" % e
                else:
                    store.add(unit, dict(round=turn, seconds=time.monotonic() - before, values=values, **extra))
                    short = ", ".join("%s %s" % (k, number(v)) for k, v in values.items() if not k.startswith("info"))
                    progress.say("%s, round %d of %d: %s" % (unit.name, turn + 1, unit.rounds or rounds, short[:600]), skipped)
                break
            if unit.name in skipped:
                progress.say("%s: SKIPPED: %s" % (unit.name, skipped[unit.name]), skipped)
    return skipped


def table(store, units, skipped):
    lines = ["| work | target | Kvasir | peer (its best configuration) | ratio of medians (min to max, rounds) | |",
             "| --- | --- | --- | --- | --- | --- |"]
    for unit in units:
        rounds = store.rounds(unit)
        for view in unit.views:
            cells = view.row(rounds) if rounds else [view.name, view.goal(), "–", "–", "–", skipped.get(unit.name, "not measured")]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def host():
    """Model and instruction sets of this machine's processor, and how many of them we may use."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        info = dict(line.split(":", 1) for line in f.read().split("\n\n")[0].split("\n") if ":" in line)
    info = {k.strip(): v.strip() for k, v in info.items()}
    sets = ["avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
            "amx_tile", "amx_int8", "amx_bf16"]
    flags = info.get("flags", "").split()
    return "%s, %d threads allowed, %s" % (info.get("model name", "?"), len(os.sched_getaffinity(0)), " ".join(s for s in sets if s in flags))


def build_id(*files):
    """A short hash of our programs: rounds of different builds do not mix."""
    h = hashlib.sha256()
    for name in files:
        with open(name, "rb") as f:
            while piece := f.read(1 << 20):
                h.update(piece)
    return h.hexdigest()[:12]


def output(command, timeout=1800, env=None):
    """Standard output of a program that must succeed; its last words otherwise."""
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout, env=env, check=False)
    if r.returncode:
        words = r.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
        raise RuntimeError("%s ended with %d: %s" % (os.path.basename(command[0]), r.returncode, words[:300]))
    return r.stdout.decode("utf-8", "replace")


def self_test():
    rounds = [{"values": {"ours": 10.0, "a": 4.0, "b": 6.0}}, {"values": {"ours": 12.0, "b": 5.0}}, {"values": {"ours": 11.0, "b": 4.0}}]
    cells = View("x", 2, "ours", "a|b").row(rounds)
    assert cells[3].startswith("5 (b)") and cells[4].startswith("2.2 (1.67 to 2.75, 3)") and cells[5] == "met", cells
    cells = View("x", 3, "ours", "b", better="low").row(rounds)
    assert cells[4].startswith("0.455 (0.364 to 0.6, 3)") and cells[5] == "**missed**", cells
    assert View("x", 0.6, "ours", None).row([{"values": {"ours": 0.5}}])[5] == "**missed**"
    assert View("x", 2, "ours", "c").row(rounds)[5] == "peer not measured"
    assert clock(3723) == "1:02:03" and number(12345.6) == "12346" and number(0.1234) == "0.123"


self_test()
if __name__ == "__main__":
    sys.exit("this is a part of speed.py")
