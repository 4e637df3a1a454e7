"""kvasir certify: verdicts, what is stored, a stop and a second start, a control that passes."""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree

from harness import test

QUICK = ("--quick", "--max-len", "512", "--threads", "2")


def own_copy(t, model, folder):
    """Beside its copy a run may leave its files."""
    os.makedirs(os.path.join(t.tmp, folder), exist_ok=True)
    path = os.path.join(t.tmp, folder, "m.gguf")
    shutil.copy(t.model(model), path)
    return path


def work_files(path):
    """Of runs beside this model that are not finished."""
    return glob.glob(path.replace(".gguf", ".certify-*.kvasir.json"))


@test("kvasir certify: table, JSON, plots, and a certificate beside the model")
def certify(t):
    path = own_copy(t, "stories", "certify-a")
    picture = os.path.join(t.tmp, "certify.svg")
    r = t.run("certify", path, *QUICK, "--kv-type", "bf16", "--kv-type", "f16/bf16", "--json", "--svg", picture, timeout=600)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
    report = json.loads(r.stdout)
    t.equal([c["format"] for c in report["certificates"]], ["bf16", "f16/bf16"], "formats")
    for c in report["certificates"]:
        m = c["measures"]
        t.check(c["control"]["failed"] and c["control"]["kld_mean"] > 0.04, "the control fails: %r" % c["control"])
        t.equal(m["decode_over_prefill"], 1.0, "token by token gives the bits of whole chunks")
        t.equal([(b["first"], b["last"]) for b in m["buckets"]], [(0, 127), (128, 511)], "ranges of positions")
        t.check(m["greedy"]["prompts"] >= 100, "prompts: %r" % m["greedy"])
        t.check(c["quality"] in ("strict", "balanced"), "bf16 is good: %r" % c["verdict"])
    t.equal(ElementTree.parse(picture).getroot().tag, "{http://www.w3.org/2000/svg}svg", "the picture")
    sidecar = os.path.join(os.path.dirname(path), "m.kvasir.json")
    stored = json.load(open(sidecar, encoding="utf-8"))["sections"]["certificates"]["data"]
    t.equal([c["format"] for c in stored], ["bf16", "f16/bf16"], "stored")
    t.equal(work_files(path), [], "the work file is gone")
    # The same once more, as a table: the same numbers to the byte, and the entry is replaced.
    r = t.run("certify", path, *QUICK, "--kv-type", "bf16", timeout=600)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
    t.check(b"bf16" in r.stdout and b"control" in r.stdout and b"as it must" in r.stdout, "table: %r" % r.stdout[-600:])
    again = json.load(open(sidecar, encoding="utf-8"))["sections"]["certificates"]["data"]
    t.equal(again, stored, "a second run finds the same")


@test("kvasir certify: stopped by SIGINT, taken up by the same command, the same result")
def resumed(t):
    results = []
    for folder, interrupted in (("certify-whole", False), ("certify-cut", True)):
        path = own_copy(t, "stories", folder)
        command = ("certify", path, *QUICK, "--kv-type", "bf16", "--json")
        if interrupted:
            process = subprocess.Popen([t.binary, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            deadline = time.time() + 300
            while time.time() < deadline and process.poll() is None:
                if any(b'"prefill-0 bf16' in open(kept, "rb").read() for kept in work_files(path)):
                    break
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
            if process.returncode == 0:
                t.note("it was done before the signal came")
            else:
                t.equal(process.returncode, 1, "exit code when stopped")
                t.check(b"the same command goes on" in err, "message: %r" % err[-300:])
                t.check(work_files(path) and not out, "parts are kept, nothing is printed")
        r = t.run(*command, timeout=600)
        t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
        results.append(r.stdout)
    t.equal(results[0], results[1], "whole and taken up again")


@test("kvasir certify: a model that does not read its cache gets no certificate")
def void(t):
    path = own_copy(t, "spread", "certify-spread")
    r = t.run("certify", path, "--quick", "--max-len", "256", "--kv-type", "bf16", timeout=600)
    t.equal(r.returncode, 1, "exit code")
    t.check(b"VOID" in r.stdout and b"PASSES a budget" in r.stdout, "table: %r" % r.stdout[-500:])


@test("kvasir certify: exit code 1 if certificates cannot be stored, or standard output is full")
def lost(t):
    path = own_copy(t, "stories", "certify-lost")
    os.makedirs(os.path.join(os.path.dirname(path), "m.kvasir.json", "in the way"))
    no_folder = os.path.join(t.tmp, "no-folder")
    with open(no_folder, "w", encoding="utf-8"):
        pass
    command = ("certify", path, *QUICK, "--kv-type", "bf16", "--json")
    r = t.run(*command, timeout=600, env=dict(os.environ, XDG_CACHE_HOME=no_folder))
    t.check(b"could not be stored" in r.stderr, "message: %r" % r.stderr[-300:])
    t.equal(r.returncode, 1, "exit code when nothing is stored")
    t.check(json.loads(r.stdout)["certificates"], "the report is shown all the same")
    for arguments in (("certify", own_copy(t, "stories", "certify-full"), *command[2:]), ("inspect", path, "--json"), ("inspect", path)):
        with open("/dev/full", "wb") as full:
            r = subprocess.run([t.binary, *arguments], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=600)
        t.equal(r.returncode, 1, "%s: exit code on a full disk" % (arguments,))
        t.check(b"standard output" in r.stderr, "%s: %r" % (arguments, r.stderr[-300:]))


@test("kvasir certify: the user's text; what is refused")
def texts(t):
    path = own_copy(t, "stories", "certify-text")
    book, short = os.path.join(t.tmp, "book.txt"), os.path.join(t.tmp, "short.txt")
    with open(book, "w", encoding="utf-8") as f:
        f.write("Once upon a time there was a little bird that lived in a big tree. " * 60)
    with open(short, "w", encoding="utf-8") as f:
        f.write("too short")
    r = t.run("certify", path, *QUICK, "--kv-type", "bf16", "--text", book, "--precision", "default", "--base", "f32", "--json", timeout=600)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
    settings = json.loads(r.stdout)["certificates"][0]["settings"]
    t.check(re.fullmatch("file [0-9a-f]{16}", settings["text"]), "text: %r" % settings)
    t.equal((settings["precision"], settings["base"], settings["max_len"]), ("default", "f32", 512), "settings")
    for flags, word, code in ((("--text", short), b"at least 256", 2), (("--text", "/nonexistent"), b"cannot be read", 2), (("--text", t.tmp), b"folder", 2),
                              (("--text", "/dev/zero"), b"1.00 GiB", 2), (("--svg", "/nonexistent/a.svg"), b"--svg", 2),
                              (("--kv-type", "i9"), b"unknown KV format", 2), (("--kv-type", "f16"), b"nothing to certify", 2),
                              (("--seed", "-1"), b"18446744073709551615", 2), (("--max-len", "5000"), b"context", 2),
                              (("--base", "i8"), b"base", 2), (("--precision", "best"), b"precision", 2)):
        r = t.run("certify", path, *flags)
        t.equal(r.returncode, code, "exit code of %s" % " ".join(flags))
        t.check(word in r.stderr, "%s: %r" % (flags, r.stderr[-300:]))
    t.equal(t.run("certify", "/nonexistent.gguf").returncode, 3, "exit code of a missing model")


def kv_format(server):
    return server.get("/v1/kvcache").json()["kv_format"]


@test("--kv-type auto: a quick check once, then certificates; a format that failed is served and shown")
def auto(t):
    path = own_copy(t, "stories", "certify-auto")
    sidecar = os.path.join(os.path.dirname(path), "m.kvasir.json")
    for again in (False, True):
        with t.fresh(path, "--kv-type", "auto") as s:
            found = kv_format(s)
            log = s.log()
        t.check(found["k"] == found["v"] and found["k"] in ("i8", "f16") and not found["failed"], "format: %r" % found)
        t.check("--kv-type auto takes " + found["k"] in log, "log: %r" % log[-500:])
        sections = json.load(open(sidecar, encoding="utf-8"))["sections"]
        t.check("kv_quick_check" in sections, "the check is kept: %r" % list(sections))
    r = t.run("certify", path, *QUICK, "--kv-type", "i8", "--kv-type", "i4", "--json", timeout=600)
    t.equal(r.returncode, 0, "exit code: %r" % r.stderr[-300:])
    quality = {c["format"]: c["quality"] for c in json.loads(r.stdout)["certificates"]}
    for wanted, good in (("strict", ("strict",)), ("small", ("strict", "balanced", "small"))):
        with t.fresh(path, "--kv-type", "auto", "--kv-quality", wanted) as s:
            t.equal(kv_format(s)["k"], "i8" if quality["i8"] in good else "f16",
                    "auto, %s, certificates %r (four bits need more than a quick one)" % (wanted, quality))
    with t.fresh(path, "--kv-type", "i4", "--kv-quality", "strict") as s:
        found, page, log = kv_format(s), s.get("/").body.decode(), s.log()
        t.equal((found["k"], found["v"], found["failed"]), ("i4", "i4", quality["i4"] != "strict"), "i4 asked for: %r" % found)
        if found["failed"]:
            t.check("failed its certificate for strict" in log, "log: %r" % log[-500:])
            t.check("failed its certificate for strict" in page, "page")
        body = {"model": s.served_name(), "prompt": "Once upon a time", "max_tokens": 8}
        t.equal(s.post("/v1/completions", body).status, 200, "it is served all the same")
    with t.fresh(path, "--kv-type", "auto", "--kv-type-v", "i8") as s:
        found = kv_format(s)
        t.equal((found["k"], found["v"]), ("i8", "i8"), "beside auto a format of V alone is K's too")
        t.check("--kv-type-v i8 alone: K has it too" in s.log(), "the log says so: %r" % s.log()[-500:])


@test("kvasir certify: a second one of the same model is refused while the first is at work")
def one_at_a_time(t):
    path = own_copy(t, "stories", "certify-twice")
    process = subprocess.Popen([t.binary, "certify", path, *QUICK, "--kv-type", "bf16"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None and not work_files(path):
        time.sleep(0.02)
    if process.poll() is None:
        r = t.run("certify", path, *QUICK, "--kv-type", "i8", timeout=600)
        t.equal(r.returncode, 1, "exit code")
        t.check(b"another `kvasir certify`" in r.stderr, "message: %r" % r.stderr[-300:])
    else:
        t.note("the first was done before the second started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
