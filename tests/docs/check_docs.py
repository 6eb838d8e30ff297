#!/usr/bin/env python3
"""Executes what README.md, CONTRIBUTING.md and docs/*.md tell a reader to type. Prints TAP.

    ```console run      each line that begins with `$ ` is a command (a final backslash continues it) and
                        must end with exit code 0, or with N where `# exit N` ends the line; other lines
                        show output. The commands of one block run in one shell, in a folder that looks
                        like a built clone; what they write is thrown away.
    ```cpp build        compiles without warnings, and links where it has a main
    ```cpp run          the same, and ends with exit code 0

Links to files of the project must lead somewhere. docs/errors.md must have the messages of the library, and no others
(error_messages.py).
"""
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from error_messages import check_errors  # noqa: E402
from test_report import Tap  # noqa: E402

TIMEOUT_S = 300
PAGES = [page for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))] if page.exists()]


def blocks(page):
    """(first line, info string, text) of each fenced block."""
    start, info, lines = 0, None, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.match(r"\s*```(.*)$", line)
        if fence and info is None:
            start, info, lines = number, fence.group(1).strip(), []
        elif fence:
            yield start, info, "\n".join(lines)
            info = None
        elif info is not None:
            lines.append(line)


def commands(text):
    """(command, expected exit code)."""
    for line in re.sub(r"\\\n(?:> )?", "", text).splitlines():
        if line.startswith("$ "):
            expected = re.search(r"\s# exit (\d+)$", line)
            yield line[2:], int(expected.group(1)) if expected else 0


def like_a_clone(folder):
    """Links to everything at the top: commands find what they need, and write beside it, not into it."""
    for path in ROOT.iterdir():
        if path.name != ".git":
            (folder / path.name).symlink_to(path)


def run_console(tap, name, text, clone):
    script = ["cd " + str(clone)]
    for command, expected in commands(text):
        script.append(f"{command}\ncode=$?; [ $code -eq {expected} ] || {{ echo \"exit code $code, not {expected}, of: \"{quoted(command)}; exit 99; }}")
    if len(script) == 1:
        tap.result(name, False, "the block is marked `run` but has no line that begins with `$ `")
        return
    try:
        done = subprocess.run(["bash", "-c", "\n".join(script)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=TIMEOUT_S)
        tap.result(name, done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    except subprocess.TimeoutExpired:
        tap.result(name, False, f"did not end within {TIMEOUT_S} s")


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def build_cpp(tap, name, text, build, folder, run):
    source, program = folder / "block.cpp", folder / "block"
    source.write_text(text + "\n")
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", source]
    if re.search(r"\bint main\b", text):
        command += ["-o", program, f"-L{build}/lib", f"-Wl,-rpath,{build}/lib", "-lsluice"]
    else:
        command.append("-fsyntax-only")
    steps = [command] + ([[program]] if run else [])
    for step in steps:
        done = subprocess.run([str(part) for part in step], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=TIMEOUT_S)
        if done.returncode != 0:
            tap.result(name, False, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
            return
    tap.result(name, True)


def dead_links(page):
    """Targets of links that are files, and are not there."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    return [target for target in targets if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()]


def check_links(tap, page):
    missing = dead_links(page)
    tap.result(f"{page.relative_to(ROOT)}_links_lead_somewhere", not missing, "\n".join(missing))


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    tap = Tap()
    if not (ROOT / "README.md").exists():
        tap.result("README.md_exists", False)
    check_errors(tap)
    for page in PAGES:
        check_links(tap, page)
        for line, info, text in blocks(page):
            name = f"{page.relative_to(ROOT)}:{line}"
            with tempfile.TemporaryDirectory(prefix="slt-") as temporary:
                folder = pathlib.Path(temporary)
                if info == "console run":
                    like_a_clone(folder)
                    run_console(tap, name, text, folder)
                elif info in ("cpp build", "cpp run"):
                    build_cpp(tap, name, text, build, folder, info == "cpp run")
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())
