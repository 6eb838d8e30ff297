#!/usr/bin/env python3
"""The page of `sluice doctor` in a browser: a picture of it shows the heat map and the time line, light and dark.
`check_html.py PROGRAM`. Prints TAP; skips where there is no chromium."""
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from test_report import Tap  # noqa: E402

SIZE = "1200,1600"
TIMEOUT_S = 120
# Theme -> (hot cell, move), as in src/doctor/html.cpp.
COLOURS = {"light": ((0xC6, 0x28, 0x28), (0x2E, 0x7D, 0x6B)), "dark": ((0xEF, 0x53, 0x50), (0x4D, 0xB6, 0xA0))}
HOT_PIXELS, MOVE_PIXELS = 1500, 20  # a full cell has 54 x 54


def page(program, folder):
    """Of a real run, so that the time line is one, too."""
    bench = [program, "bench", "--ranks", "2", "--launch", "processes", "--tokens", "512", "--hidden", "1024", "--iters", "5"]
    subprocess.run(bench, env={**os.environ, "SLUICE_TRACE": str(folder / "traces")}, check=True, capture_output=True, timeout=TIMEOUT_S)
    path = folder / "page.html"
    subprocess.run([program, "doctor", folder / "traces", "--html", path], check=True, capture_output=True, timeout=TIMEOUT_S)
    return path


def in_theme(path, theme):
    """The browser has no switch for it, so the media query is answered here."""
    answer = "all" if theme == "dark" else "not all"
    themed = path.with_name(f"{theme}.html")
    themed.write_text(re.sub(r"@media \(prefers-color-scheme: dark\)", f"@media {answer}", path.read_text()))
    return themed


def picture(browser, path, folder):
    png = folder / f"{path.stem}.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
               f"--window-size={SIZE}", f"--screenshot={png}", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    return png, done.stderr


def unfiltered(kind, line, before, step):
    out = bytearray(line)
    for i, value in enumerate(line):
        left = out[i - step] if i >= step else 0
        up, corner = before[i], before[i - step] if i >= step else 0
        if kind == 4:
            guess = left + up - corner
            distances = abs(guess - left), abs(guess - up), abs(guess - corner)
            add = (left, up, corner)[distances.index(min(distances))]
        else:
            add = (0, left, up, (left + up) // 2)[kind]
        out[i] = (value + add) & 255
    return out


def pixels(png):
    """Colour -> how many; of an 8-bit RGB or RGBA picture."""
    data, at, packed = png.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += length + 12
    assert depth == 8 and colours in (2, 6), (depth, colours)
    step = 3 if colours == 2 else 4
    raw, line, counts = zlib.decompress(packed), bytearray(width * step), {}
    for y in range(height):
        begin = y * (width * step + 1)
        line = unfiltered(raw[begin], raw[begin + 1:begin + 1 + width * step], line, step)
        for x in range(0, len(line), step):
            colour = tuple(line[x:x + 3])
            counts[colour] = counts.get(colour, 0) + 1
    return counts


def main():
    tap = Tap()
    names = [f"the_page_is_drawn_{theme}" for theme in COLOURS]
    browser = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if not browser:
        for name in names:
            tap.skip(name, "chromium is not installed")
        return tap.end()
    with tempfile.TemporaryDirectory(prefix="slt-") as temporary:
        folder = pathlib.Path(temporary)
        drawn = page(pathlib.Path(sys.argv[1]).resolve(), folder)
        for name, (theme, (hot, move)) in zip(names, COLOURS.items()):
            png, said = picture(browser, in_theme(drawn, theme), folder)
            counts = pixels(png) if png.exists() else {}
            well = counts.get(hot, 0) >= HOT_PIXELS and counts.get(move, 0) >= MOVE_PIXELS
            tap.result(name, well, f"hot {counts.get(hot, 0)}, move {counts.get(move, 0)}\n{said[-2000:]}")
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
