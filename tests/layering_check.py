#!/usr/bin/env python3
"""Reads the include lines of src/ and fails on an edge outside the table below, and on a folder of which docs/ARCHITECTURE.md says otherwise.

usage: layering_check.py [ROOT]       self-tested on bad input at every run
"""
import os
import re
import sys
import tempfile

# A folder may include itself and what its row lists. "model:model_config.h": that header and no other of the folder.
ALLOWED = {
    "base": "",
    "env": "base",
    "quant": "base",
    "text": "base",
    "kernels": "base quant",
    "transfer": "base env",
    "kvcache": "base quant",
    "model": "base env quant kernels",
    "kvstore": "base env quant kvcache transfer",
    "scheduler": "base kvcache kvstore",
    "calibrate": "base env quant kernels kvcache model",
    "certify": "base env quant kernels kvcache model calibrate",
    "engine": "base env quant kernels model kvcache calibrate certify kvstore scheduler",
    "loadgen": "base env",
    "plan": "base quant kvcache model:model_config.h",
    "cluster": "base env transfer kvcache kvstore scheduler engine",
    "sim": "base env kvcache kvstore transfer scheduler engine cluster plan model:model_config.h",
    "server": "base env text scheduler engine cluster",
}
# Single files that may include one folder more, and why that is no hole.
EXCEPTIONS = {
    # turns a model file's vocabulary and template into a tokenizer
    ("server/tokenizer_from_gguf", "model"),
}
ROW = re.compile(r"^\| *[0-9–]+ *\| *`(\w+)` *\|[^|]*\|([^|]*)\|")  # level, folder, purpose, may include
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def allowed(file, folder, target):
    """file: path below src without its suffix; target: the included path."""
    to = target.split("/")[0]
    if to == folder:
        return True
    if to not in ALLOWED:
        return "/" not in target  # a plain name is a header of a library or of rust/include
    if to in ALLOWED[folder].split():
        return True
    header = "%s:%s" % (to, target.split("/", 1)[-1])
    if header in ALLOWED[folder].split():
        return True
    for pattern, extra in EXCEPTIONS:
        if re.sub(r"_(test|fuzz|bench)$", "", file) == pattern:
            if extra in (to, header):
                return True
    return False


def check_page(root, folders):
    """The page's rows against the table, as far as folders exist."""
    page = os.path.join(root, "docs/ARCHITECTURE.md")
    with open(page, encoding="utf-8") as f:
        rows = dict(m.groups() for m in map(ROW.match, f) if m)
    problems = []
    for folder in folders:
        wanted = {w for w in ALLOWED[folder].split() if w in folders}
        said = {w for w in rows.get(folder, "").split() if w in ALLOWED}
        if folder not in rows:
            problems.append("docs/ARCHITECTURE.md: no row for src/%s" % folder)
        elif said != wanted:
            problems.append("docs/ARCHITECTURE.md: %s may include %s, it says %s" % (folder, " ".join(sorted(wanted)), " ".join(sorted(said))))
    problems += ["docs/ARCHITECTURE.md: a row for %s, which src/ lacks" % f for f in sorted(set(rows) - set(folders))]
    return problems


def check(root):
    problems = []
    src = os.path.join(root, "src")
    for folder in sorted(os.listdir(src)):
        if not os.path.isdir(os.path.join(src, folder)):
            continue
        if folder not in ALLOWED:
            problems.append("src/%s: a folder that the table of tests/layering_check.py does not know" % folder)
            continue
        for path, _, names in os.walk(os.path.join(src, folder)):
            for name in sorted(names):
                if not name.endswith((".h", ".cc")):
                    continue
                relative = os.path.relpath(os.path.join(path, name), src)
                with open(os.path.join(path, name), encoding="utf-8", errors="replace") as f:
                    for number, line in enumerate(f, 1):
                        found = INCLUDE.match(line)
                        if found and not allowed(os.path.splitext(relative)[0], folder, found.group(1)):
                            problems.append('src/%s:%d: includes "%s"; %s may include: %s' % (
                                relative, number, found.group(1), folder, ALLOWED[folder] or "nothing"))
    folders = [f for f in sorted(os.listdir(src)) if f in ALLOWED]
    return problems + check_page(root, folders)


def self_test():
    with tempfile.TemporaryDirectory() as root:
        def write(path, text):
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        page = ["| 0 | `%s` | p | %s | |\n" % row for row in (
            ("base", "–"), ("env", "base"), ("sim", "base env engine"), ("server", "base env engine model¹"))]
        page.append("| 4 | `engine` | p | base env | |\n")
        write("docs/ARCHITECTURE.md", "".join(page))
        write("src/engine/a.cc", '#include "base/status.h"\n')
        write("src/base/status.h", "#include <string>\n")
        write("src/env/a.cc", '#include "env/a.h"\n  #  include "base/status.h"\n')
        write("src/sim/a.cc", '#include "model/model_config.h"\n')
        write("src/server/tokenizer_from_gguf_test.cc", '#include "model/gguf.h"\n')
        assert check(root) == [], check(root)
        write("src/base/up.h", '#include "env/clock.h"\n')
        write("src/sim/b.cc", '\n#include "model/model.h"\n')
        write("src/server/other.cc", '#include "model/gguf.h"\n')
        write("src/engine/b.cc", '#include "apps/command.h"\n')
        write("src/misc/c.cc", "")
        found = check(root)
        write("docs/ARCHITECTURE.md", "".join(page[1:-1]) + "| 4 | `engine` | p | base | |\n| 1 | `plan` | p | base | |\n")
        pages = [p for p in check(root) if p.startswith("docs/")]
        assert len(pages) == 3 and "row for src/base" in pages[0] and "engine may" in pages[1] and "plan" in pages[2], pages
        assert len(found) == 5, found
        for word in ("src/base/up.h:1", "src/sim/b.cc:2", "src/server/other.cc:1", "src/engine/b.cc:1", "src/misc"):
            assert any(p.startswith(word) for p in found), (word, found)


def main():
    self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    problems = check(root)
    print("\n".join(problems) if problems else "layering: every include stands in the table")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
