#!/usr/bin/env python3
"""Draw what a command printed as a terminal picture (SVG).

usage: terminal_svg.py TITLE < OUTPUT > PICTURE.svg

Reads plain UTF-8 text (colours and cursor movement are dropped), wraps at 110 columns. Used for docs/quickstart.svg:
    ./kvasir-quickstart --once 2>&1 | tools/terminal_svg.py './kvasir-quickstart --once' > docs/quickstart.svg
"""
import html
import re
import sys

COLUMNS, CELL, LINE = 110, 8.4, 19


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sys.stdin.read())
    lines = ["$ " + sys.argv[1]]
    for line in text.rstrip("\n").split("\n"):
        line = line.split("\r")[-1].rstrip()  # a progress line shows its last state
        lines += [line[i:i + COLUMNS] for i in range(0, len(line), COLUMNS)] or [""]
    width, height = COLUMNS * CELL + 40, len(lines) * LINE + 60
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
          f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{html.escape(sys.argv[1])}">')
    print(f'<rect width="100%" height="100%" rx="8" fill="#1b1f27"/>')
    for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        print(f'<circle cx="{20 + 20 * i}" cy="18" r="6" fill="{colour}"/>')
    print('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" fill="#d7dae0">')
    for i, line in enumerate(lines):
        weight = ' fill="#8fd48f"' if i == 0 else ""
        print(f'<text x="20" y="{52 + i * LINE}" xml:space="preserve"{weight}>{html.escape(line)}</text>')
    print("</g>\n</svg>")


if __name__ == "__main__":
    main()
