"""What the programs of this directory share: running commands, saying what was measured on, writing the document."""

import importlib.util
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "performance.md"
PASSWORD = "correct horse battery staple"
MIB = 1024 * 1024
SUFFIXES = {"": 1, "K": 1024, "M": MIB, "G": 1024 * MIB}


class Failed(Exception):
    """A command under measurement failed, or what it made is not what it should be."""


def onefold_binary():
    """Returns the program under test: $ONEFOLD or target/release/onefold."""
    target = os.environ.get("CARGO_TARGET_DIR") or str(ROOT / "target")
    binary = os.environ.get("ONEFOLD") or os.path.join(target, "release", "onefold")
    if not os.access(binary, os.X_OK):
        sys.exit(f"{os.path.basename(sys.argv[0])}: no {binary}; cargo build --release, or set ONEFOLD")
    return os.path.realpath(binary)


def need_modules(modules, requirements, name):
    """Starts this program again in a virtual environment in the build directory, unless the modules can be imported."""
    if all(importlib.util.find_spec(module) for module in modules):
        return
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
    environment = target / name
    python = environment / "bin" / "python3"
    if pathlib.Path(sys.prefix) == environment:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {environment} has no {', '.join(modules)}; remove it and try again")
    if not python.exists():
        say(f"installing {', '.join(requirements)} into {environment}")
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)
    os.execv(python, [python, *sys.argv])


def onefold_environment(repository, cache):
    return {"ONEFOLD_REPOSITORY": repository, "ONEFOLD_PASSWORD": PASSWORD, "ONEFOLD_CACHE_DIR": cache}


def measure(command, environment, directory, stdin=subprocess.DEVNULL, stdout=None):
    """Runs a command to its end; returns wall seconds, processor seconds and peak memory in bytes (ru_maxrss).

    What it writes is shown if it fails; with `stdout` its output goes there instead. The kernel's figure includes what this
    interpreter held before it became the command, so peaks below some 20 MiB are not seen, and nothing large may be held
    here.
    """
    os.sync()
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=directory, stdin=stdin,
            stdout=output if stdout is None else stdout, stderr=output,
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            output.seek(0)
            said = output.read().decode(errors="replace")[-2000:]
            raise Failed(f"{shlex.join(command)}: exit code {child.returncode}\n{said}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def sizes(path):
    """Returns the apparent size and the space taken on disk below a path, in bytes; hard links count once."""
    if os.path.isfile(path):
        stat = os.stat(path)
        return stat.st_size, stat.st_blocks * 512
    apparent = on_disk = 0
    seen = set()
    for directory, _, names in os.walk(path):
        for name in names:
            stat = os.lstat(os.path.join(directory, name))
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                apparent += stat.st_size
                on_disk += stat.st_blocks * 512
    return apparent, on_disk


def parse_size(text):
    """Returns the bytes of a size as 64M; powers of 1024."""
    suffix = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(suffix)]
    if suffix not in SUFFIXES or not number.isdigit():
        raise ValueError(f"{text}: not a size such as 64M")
    return int(number) * SUFFIXES[suffix]


def machine():
    """Returns a line that says what the figures were measured on."""
    model = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as information:
        for line in information:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    cores = len(os.sched_getaffinity(0))
    where = subprocess.run(
        ["df", "--output=fstype", tempfile.gettempdir()], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    return f"{model}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}, repositories on {where}"


def commit():
    """Returns the commit that is checked out, marked where the tree differs from it in more than results of other runs."""

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    mark = "-dirty" if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results") else ""
    return (git("describe", "--always", "--abbrev=12") or "unknown") + mark


def today():
    return time.strftime("%Y-%m-%d", time.gmtime())


def say(text):
    """Tells on standard error what is going on."""
    print(f"{os.path.basename(sys.argv[0])}: {text}", file=sys.stderr, flush=True)


def check_marks(mark, path=DOCUMENT):
    """Returns the marks of a section as they stand in a document; fails unless each stands there once."""
    marks = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
    document = path.read_text(encoding="utf-8")
    if any(document.count(one) != 1 for one in marks):
        raise Failed(f"{path}: needs the marks of {mark} once each")
    return marks


def write_section(mark, text, path=DOCUMENT):
    """Replaces what stands between the marks of that name in docs/performance.md, or in another document."""
    begin, end = check_marks(mark, path)
    before, rest = path.read_text(encoding="utf-8").split(begin)
    path.write_text(before + begin + text + end + rest.split(end)[1], encoding="utf-8")
