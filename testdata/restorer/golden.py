#!/usr/bin/env python3
"""Makes testdata/formats/v1, the repository that is kept so that its format stays readable.

    python3 testdata/restorer/golden.py path/to/onefold

The source is the same each time; the repository is not, since its keys are random. What a released version has made
must never be made again: so this refuses to replace it, unless --replace is given.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import sources

KEPT = Path(__file__).resolve().parent.parent / "formats" / "v1"
PASSWORD = "correct horse battery staple"
SIZE_MAX = 200_000
# Small enough that recipes and directories of some hundred items have several levels.
PARAMETERS = ["--chunk-size", "512", "--container-size", "65536"]


def main():
    parser = argparse.ArgumentParser(description="makes the repository of testdata/formats/v1")
    parser.add_argument("onefold", type=Path)
    parser.add_argument("--replace", action="store_true")
    options = parser.parse_args()
    if not sources.is_root():
        sys.exit("golden.py: only root can make the owners and devices that the repository is to hold")
    if KEPT.exists():
        if not options.replace:
            sys.exit(f"golden.py: {KEPT} is there already; a kept repository is not made again")
        shutil.rmtree(KEPT)
    KEPT.mkdir(parents=True)
    (KEPT / "password").write_text(PASSWORD + "\n", encoding="ascii")
    snapshots = []
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")},
            "ONEFOLD_REPOSITORY": os.fspath(KEPT / "repo"),
            "ONEFOLD_PASSWORD_FILE": os.fspath(KEPT / "password"),
            "ONEFOLD_CACHE_DIR": os.path.join(temporary, "cache"),
        }

        def onefold(*arguments):
            command = [options.onefold.resolve(), *arguments]
            done = subprocess.run(command, env=environment, cwd=temporary, check=True, stdout=subprocess.PIPE)
            return done.stdout.decode()

        onefold("init", *PARAMETERS)
        source = Path(temporary) / "source"
        sources.make_tree(source, 26_000, 20_000, 6 << 20, 60, as_root=True)
        for compression in ("lz4", "zstd:19"):
            if snapshots:
                sources.change_tree(source)
            onefold("backup", "source", "--host", "golden", "--compression", compression)
            known = {snapshot["id"] for snapshot in snapshots}
            commits = {path.name for path in (KEPT / "repo" / "commits").iterdir()} - known
            assert len(commits) == 1, f"a backup made {len(commits)} commits"
            # The entries are below the name by which the source was given.
            entries = {f"source/{path}": about for path, about in sources.describe(source).items()}
            entries["source"] = sources.describe_entry(os.fspath(source))
            del entries["source"]["inode"]
            for about in entries.values():
                if "hard_link" in about:
                    about["hard_link"] = f"source/{about['hard_link']}"
            snapshots.append({"id": commits.pop(), "entries": entries})
        sources.make_removable(source)
    (KEPT / "expected.json").write_text(encode(snapshots), encoding="ascii")
    size = sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file())
    print(f"{KEPT}: {size} bytes")
    if size > SIZE_MAX:
        sys.exit(f"golden.py: {KEPT} has more than {SIZE_MAX} bytes")


def encode(snapshots):
    """JSON with one entry a line."""
    encoded = []
    for snapshot in snapshots:
        entries = sorted(snapshot["entries"].items())
        lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(about, sort_keys=True)}" for path, about in entries)
        encoded.append(f'{{"id": "{snapshot["id"]}", "entries": {{\n{lines}}}}}')
    return '{"snapshots": [' + ",\n".join(encoded) + "]}\n"


if __name__ == "__main__":
    main()
