#!/usr/bin/env python3
"""House rules that a script can see: sizes, file names, include guards, strings that do not belong into the repository.

usage: style_check.py [ROOT]            exit code 1 and one line for each problem
       style_check.py --lower [ROOT]    takes from tests/style_ratchet.json what is no longer needed

Header under 200 lines, C++ file (and x_inl.h, a body that several files include) under 500, function under 70. What was longer once stands in tests/style_ratchet.json
with its size; an entry may only shrink, and must as soon as it can. Self-tested on bad input at every run.
"""
import json
import os
import re
import subprocess
import sys

HEADER_LINES, FILE_LINES, FUNCTION_LINES = 200, 500, 70
CODE_FOLDERS = ("src", "apps", "tests", "bench")
RATCHET = "tests/style_ratchet.json"

# Paths of the machines we build on, and hosts of package registries: a clone must work elsewhere. In pieces, so that
# this file does not hold them.
BANNED = [
    (re.compile(r"(?<![\w.~}])/(" + "|".join(["work", "ro" + "ot", "opt/pe" + "ers", "opt/whe" + "els", "tmp/" + "b"]) + r")(?=[/\s\"'`:)]|$)"),
     "a path of one machine"),
    (re.compile(r"py" + r"pi\.org|python" + r"hosted|crates" + r"\.io|deb" + r"\.debian\.org|registry\.npm" + r"js"),
     "the host of a package registry"),
]
BANNED_EXEMPT = ("rust/Cargo.lock",)  # cargo writes its registry there itself


def strip(text):
    """The text with comments, strings and character literals blanked, every line kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
        re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)) if m.group(0)[0] == "/" else
                       '""' + "\n" * m.group(0).count("\n"), text)


def is_function(head):
    """Does this text before a '{' at namespace or class scope begin a function's body?"""
    head = re.sub(r"\[\[.*?\]\]", " ", head, flags=re.S).strip()
    plain = re.sub(r"^\s*(template\s*<(?:[^<>]|<[^<>]*>)*>\s*)+", "", head, flags=re.S)
    plain = re.sub(r"^(public|private|protected)\s*:\s*", "", plain)
    if re.match(r"(inline\s+)?namespace\b|(class|struct|union|enum|extern)\b(?!.*\)\s*(const|noexcept|override|final|\s)*$)", plain, re.S):
        return False
    flat = plain
    while re.search(r"\([^()]*\)", flat):
        flat = re.sub(r"\([^()]*\)", "@", flat)
    flat = re.sub(r"operator\s*[^\s@\w]+", "operator", flat)
    return "@" in flat and "=" not in flat.split("@")[0] and not re.search(r"@.*=\s*$", flat, re.S)


def functions(text):
    """(name, first line, lines) of each function body."""
    # Preprocessor lines say nothing about scope.
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group(0).count("\n"), strip(text), flags=re.M)
    found, stack, start = [], [], 0
    for at, c in enumerate(code):
        if c == "{":
            head = code[start:at]
            inside = bool(stack) and stack[-1][0] != "scope"
            kind = "inner" if inside else "function" if is_function(head) else \
                "scope" if re.match(r"\s*(\w+\s*:\s*)?(template\b.*|inline\s+|typedef\s+)?(namespace|class|struct|union|enum|extern)\b", head, re.S) else "inner"
            stack.append((kind, head, start + len(head) - len(head.lstrip())))
            if kind == "scope":
                start = at + 1
        elif c == "}" and stack:
            kind, head, begin = stack.pop()
            if kind == "function":
                name = re.search(r"([\w:~]+(?:\s*operator\s*\S+)?)\s*\(([^()]*)", head)
                label = name.group(1) if name else "?"
                if label.startswith(("TEST", "BENCHMARK")):
                    label = "%s(%s)" % (label, re.sub(r"\s+", " ", name.group(2)))
                first = code.count("\n", 0, begin) + 1
                found.append((label, first, code.count("\n", 0, at) + 2 - first))
            if not stack or stack[-1][0] == "scope":
                start = at + 1
        elif c == ";" and (not stack or stack[-1][0] == "scope"):
            start = at + 1
    return found


def sizes(path, text):
    """(ratchet key, size, limit, line) of everything in a file that has a limit."""
    lines = text.count("\n") + (not text.endswith("\n"))
    result = [(path, lines, HEADER_LINES if path.endswith(".h") and not path.endswith("_inl.h") else FILE_LINES, 1)]
    for name, first, length in functions(text):
        result.append(("%s %s" % (path, name), length, FUNCTION_LINES, first))
    return result


def check_file(path, text, ratchet, used):
    problems = []
    name = os.path.basename(path)
    is_cpp = path.startswith(tuple(f + "/" for f in CODE_FOLDERS)) and re.search(r"\.(h|hh|hpp|cc|cpp|cxx|c)$", name)
    if is_cpp:
        if not re.fullmatch(r"[a-z][a-z0-9_]*\.(h|cc)", name):
            problems.append("%s: C++ files are called snake_case.h or snake_case.cc" % path)
        if name.endswith(".h") and not re.search(r"^#pragma once$", text, re.M):
            problems.append("%s: no #pragma once" % path)
        for key, size, limit, line in sizes(path, text):
            entry = ratchet.get(key)
            if size >= limit:
                used[key] = max(size, used.get(key, 0))
                if entry is None or size > entry:
                    problems.append("%s:%d: %s has %d lines; the limit is %s" % (
                        path, line, key.split(" ", 1)[-1] if " " in key else "the file", size,
                        "under %d" % limit if entry is None else "%d (tests/style_ratchet.json)" % entry))
    if path not in BANNED_EXEMPT:
        for number, line in enumerate(text.split("\n"), 1):
            for pattern, what in BANNED:
                if pattern.search(line):
                    problems.append("%s:%d: %s: %s" % (path, number, what, line.strip()[:120]))
    return problems


def check(files, ratchet):
    """files: (path, text) pairs. Returns problems and what the ratchet should hold."""
    used, problems = {}, []
    for path, text in files:
        problems += check_file(path, text, ratchet, used)
    for key, entry in sorted(ratchet.items()):
        if used.get(key, 0) < entry:
            problems.append("%s: \"%s\": %d can shrink to %s: run tests/style_check.py --lower" % (
                RATCHET, key, entry, used[key] if key in used else "nothing"))
    lowered = {k: min(v, used[k]) for k, v in sorted(ratchet.items()) if k in used}
    return problems, lowered


def repository_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, check=False)
    names = sorted(filter(None, listed.stdout.decode("utf-8", "surrogateescape").split("\0")))
    if listed.returncode != 0 or not names:  # an unpacked archive
        names = sorted(os.path.relpath(os.path.join(p, n), root) for p, d, ns in os.walk(root) for n in ns
                       if not re.search(r"(^|/)(build|target|\.git|\.cache|__pycache__)(/|$)", os.path.relpath(p, root)))
    for name in names:
        try:
            with open(os.path.join(root, name), "rb") as f:
                raw = f.read()
        except (FileNotFoundError, IsADirectoryError):
            continue
        if b"\0" not in raw[:4096]:
            yield name, raw.decode("utf-8", "replace")


def self_test():
    def problems(path, text, ratchet=None):
        return check([(path, text)], ratchet or {})[0]
    body = "  x();\n"
    long_function = "namespace a {\nint F(int a = 3) {\n%s}\n}  // namespace a\n" % (body * 68)
    assert problems("src/a/a.cc", "int F() {\n%s}\n" % (body * 67)) == []
    assert len(problems("src/a/a.cc", long_function)) == 1, problems("src/a/a.cc", long_function)
    assert problems("src/a/a.cc", long_function, {"src/a/a.cc F": 70}) == []
    assert len(problems("src/a/a.cc", long_function, {"src/a/a.cc F": 71})) == 1  # must shrink
    assert len(problems("src/a/a.cc", "int F() {}\n", {"src/a/a.cc F": 71})) == 1  # must go
    assert check([("src/a/a.cc", long_function)], {"src/a/a.cc F": 90, "gone": 80})[1] == {"src/a/a.cc F": 70}
    for head in ("TEST(A, B) {\n", "class C {\n public:\n  C() : a_{1}, b_(2) {\n", "template <typename T>\nauto F(T t) -> int {\n",
                 "bool operator==(const A& a, const A& b) {\n", "static constexpr int F() noexcept {\n", "A::~A() {\n"):
        text = head + "  if (\"{\" == '}') { // {\n" + body * 70 + "  }\n}\n" + ("};\n" if "class" in head else "")
        assert len(problems("src/a/a.cc", text)) == 1, (head, problems("src/a/a.cc", text))
    # neither tables nor classes nor namespaces are functions
    for head in ("constexpr int kA[] = {\n", "namespace a {\n", "struct A {\n", "const std::map<int, int> kM = {\n",
                 "enum class E : int {\n", "template <typename T>\nclass A {\n", "const auto x = F(3, {\n"):
        assert problems("src/a/a.cc", head + "  1,\n" * 80 + "};\n") == [], (head, problems("src/a/a.cc", head + "  1,\n" * 80 + "};\n"))
    assert len(problems("src/a/a.h", "#pragma once\n" + "\n" * 199)) == 1
    assert problems("src/a/a.h", "#pragma once\n" + "\n" * 198) == []
    assert len(problems("src/a/a.h", "\n")) == 1
    assert len(problems("src/a/CamelCase.cc", "\n")) == 1 and len(problems("src/a/a.cpp", "\n")) == 1
    assert len(problems("src/a/a.cc", "\n" * 500)) == 1 and problems("src/a/a.cc", "\n" * 499) == []
    assert len(problems("docs/a.md", "see /wo" + "rk/x\n")) == 1 and problems("docs/a.md", "a/wo" + "rk is fine, /ro" + "oted too\n") == []
    assert len(problems("docs/a.md", "https://py" + "pi.org/simple\n")) == 1


def main():
    self_test()
    arguments = [a for a in sys.argv[1:] if a != "--lower"]
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(root, RATCHET)
    ratchet = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            ratchet = json.load(f)
    problems, lowered = check(repository_files(root), ratchet)
    if "--lower" in sys.argv:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(lowered, f, indent=1)
            f.write("\n")
        print("%d entries, %d taken away" % (len(lowered), len(ratchet) - len(lowered)))
        return 0
    print("\n".join(problems) if problems else "style: nothing to say")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
