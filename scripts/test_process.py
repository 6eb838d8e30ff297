"""Runs one test program with a time limit, and looks at what it leaves behind."""
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import uuid

MARK = "SLUICE_TEST_RUN"
SETTLE_S = 5  # promise F4: every process is gone within 5 s
SHARED_FOLDERS = ["/dev/shm", "/tmp", os.environ.get("XDG_RUNTIME_DIR", "")]


@dataclasses.dataclass
class Done:
    code: int
    output: str   # stdout and stderr
    problem: str  # how it ended, empty for exit code 0
    left: list    # sentences: processes, files and shared memory that stayed


def run_watched(command, log, timeout_s, env, cwd):
    """`command` gets a TMPDIR of its own, no standard input, and marked children."""
    log.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    temporary = pathlib.Path(tempfile.mkdtemp(prefix="slt-"))  # short: socket paths have a limit
    before = named_files()
    try:
        with log.open("w") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                                       env={**os.environ, **env, MARK: mark, "TMPDIR": str(temporary)},
                                       start_new_session=True)
            problem = wait(process, timeout_s)
        left = left_over(mark, temporary, before)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Done(process.returncode, log.read_text(errors="replace"), problem, left)


def wait(process, timeout_s):
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"did not end within {timeout_s} s and was killed"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


def left_over(mark, temporary, before):
    end = time.monotonic() + SETTLE_S
    while True:
        processes = marked_processes(mark)
        files = sorted(named_files() - before) + [str(path) for path in temporary.iterdir()]
        if not processes and not files or time.monotonic() > end:
            break
        time.sleep(0.1)
    sentences = [f"file or shared memory left: {path}" for path in files]
    for pid, what in processes:
        sentences.append(f"process left: {pid} {what}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return sentences


def marked_processes(mark):
    """Processes that inherited the mark: [(pid, command line)]."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:  # gone meanwhile, or another user's
            continue
    return found


def named_files():
    """What bears our name in the folders that all processes share."""
    return {str(path) for folder in SHARED_FOLDERS if folder and os.path.isdir(folder)
            for path in pathlib.Path(folder).iterdir() if "sluice" in path.name}
