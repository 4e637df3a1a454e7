"""Cases G01 and G02: broken and hostile model files end with exit code 3 and one line that says what and where."""
import json
import os
import re
import resource
import time

from harness import HANG, Skip, test


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))


def refused(t, path, words, what, command=("inspect",), limit=True):
    begun = time.time()
    r = t.run(*command, path, preexec_fn=limited if limit else None)
    took = time.time() - begun
    text = r.stderr.decode("utf-8", "replace").strip()
    t.equal(r.returncode, 3, "%s, %s: exit code (%s)" % (what, command[0], text[-200:]))
    t.check(text.count("\n") == 0 and text, "%s, %s: not one line: %r" % (what, command[0], text[:300]))
    t.check(any(w.lower() in text.lower() for w in words), "%s, %s: %s not named: %r" % (what, command[0], words, text[:250]))
    t.check(took < HANG / 4, "%s: took %.1f s" % (what, took))
    return took


@test("G01 G02 hostile files are refused")
def hostile(t):
    folder, limit = t.hostile(), not t.sanitized()
    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    slowest = 0
    for entry in manifest:
        path = os.path.join(folder, entry["file"])
        if entry["expect"] == "loads":
            r = t.run("inspect", path)
            t.equal(r.returncode, 0, "the control: %s" % r.stderr[-200:])
            continue
        # "size": any word for an end that came too soon or a size that does not fit
        words = [entry["error_names"]]
        words += ["size", "bytes", "truncated", "ends", "cut"] if entry["error_names"] == "size" else []
        for command in (("inspect",), ("serve", "--port", "0", "--kv-mem", "8MiB")):
            slowest = max(slowest, refused(t, path, words, "%s (%s)" % (entry["file"], entry["wrong"]), command, limit))
    t.note("%d files, slowest %.2f s%s" % (len(manifest) - 1, slowest, "" if limit else ", without memory limit (ASan)"))


@test("G01 good files cut at random places")
def random_cuts(t):
    for name in ("copy_16", "ref", "stories"):
        with open(t.model(name), "rb") as f:
            raw = f.read()
        path = os.path.join(t.tmp, "cut.gguf")
        for i in range(25):
            at = t.random.randrange(len(raw)) if i % 2 else t.random.randrange(min(len(raw), 12000))
            with open(path, "wb") as f:
                f.write(raw[:at])
            r = t.run("inspect", path)
            text = r.stderr.decode("utf-8", "replace").strip()
            t.check(r.returncode == 3 and text and "\n" not in text, "%s cut at %d of %d: exit %d %r" %
                    (name, at, len(raw), r.returncode, text[:200]))


@test("G01 random bytes changed: refused or served, never a crash")
def random_bytes(t):
    with open(t.model("copy_16"), "rb") as f:
        raw = f.read()
    path, outcomes = os.path.join(t.tmp, "changed.gguf"), {}
    for i in range(60):
        changed = bytearray(raw)
        for _ in range(t.random.randrange(1, 6)):
            changed[t.random.randrange(9000)] = t.random.randrange(256)  # header, keys, tensor table
        with open(path, "wb") as f:
            f.write(changed)
        r = t.run("inspect", path)
        outcomes[r.returncode] = outcomes.get(r.returncode, 0) + 1
        if not t.check(r.returncode in (0, 3), "round %d: exit %d %r" % (i, r.returncode, r.stderr[-200:])):
            os.replace(path, "/tmp/kvasir-e2e-crash-%d.gguf" % i)
            t.note("kept as /tmp/kvasir-e2e-crash-%d.gguf" % i)
    t.note("exit codes %s" % outcomes)


@test("G02 a legal vocabulary of 250,000 tokens loads")
def big_vocabulary(t):
    module = t.fixture_module()
    import subprocess
    import sys
    out = os.path.join(t.tmp, "big")
    subprocess.run([sys.executable, module.__file__, out, "--big"], check=True, stdout=subprocess.DEVNULL)
    begun = time.time()
    r = t.run("inspect", os.path.join(out, "G02", "vocab_250k.gguf"))
    t.equal(r.returncode, 0, "exit code: %s" % r.stderr[-200:])
    inspected = time.time() - begun
    with t.fresh(os.path.join(out, "G02", "vocab_250k.gguf")) as s:
        ready = time.time() - begun - inspected
        got = s.post("/tokenize", {"model": s.served_name(), "prompt": "one two three"})
        t.equal(got.status, 200, "tokenize: %s" % got.body[:200])
    t.note("inspect %.1f s, serve ready after %.1f s" % (inspected, ready))


@test("inspect of good files")
def inspect_good(t):
    text = t.run("inspect", t.model("ref"))
    t.equal(text.returncode, 0, "exit code")
    t.check(b"llama" in text.stdout and b"blk.0.attn_q.weight" in text.stdout, "neither architecture nor tensors shown")
    # 2 layers, 2 KV heads of 32, K and V, f16: 512 bytes
    t.check(re.search(rb"512\b", text.stdout) is not None, "bytes per token (512) not shown")
    report = t.run("inspect", t.model("ref"), "--json")
    t.equal(report.returncode, 0, "--json exit code: %s" % report.stderr[-200:])
    json.loads(report.stdout)


@test("unknown architecture and pre-tokenizer are refused by name")
def unknown_kinds(t):
    with open(t.model("ref"), "rb") as f:
        raw = f.read()
    if b"gpt-2" not in raw:
        raise Skip("the fixture has another pre-tokenizer")
    for old, new, word in ((b"llama", b"zzama", "zzama"), (b"gpt-2", b"gqt-2", "gqt-2")):
        path = os.path.join(t.tmp, "unknown.gguf")
        with open(path, "wb") as f:
            f.write(raw.replace(old, new))
        r = t.run("serve", path, "--port", "0", "--kv-mem", "8MiB")
        t.equal(r.returncode, 3, "%s: exit code (%s)" % (word, r.stderr[-200:]))
        known = "llama" if old == b"llama" else "gpt-2"
        t.check(word.encode() in r.stderr and known.encode() in r.stderr, "%s: %r" % (word, r.stderr[-300:]))
