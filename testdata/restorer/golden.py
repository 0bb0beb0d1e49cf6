#!/usr/bin/env python3
"""Makes testdata/formats/v1 or v2, a repository that is kept so that its format stays readable.

    python3 testdata/restorer/golden.py --format 2 path/to/onefold

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

import restore as restorer
import sources

FORMATS = Path(__file__).resolve().parent.parent / "formats"
PASSWORD = "correct horse battery staple"
SIZES_MAX = {1: 200_000, 2: 300_000}
# Files that no version of the second source changes.
FILES = 24
# Small enough that recipes and directories of some hundred items have several levels.
PARAMETERS = ["--chunk-size", "512", "--container-size", "65536"]
# A text, and how far apart the edits of each further version are: with dense ones a region has whole regions as bases, with
# scattered ones chunks of several.
TEXT_LEN = 142_000
DISTANCES = [800, 1500, 3000]


def main():
    parser = argparse.ArgumentParser(description="makes a repository of testdata/formats")
    parser.add_argument("onefold", type=Path)
    parser.add_argument("--format", type=int, choices=(1, 2), required=True)
    parser.add_argument("--replace", action="store_true")
    options = parser.parse_args()
    if not sources.is_root():
        sys.exit("golden.py: only root can make the owners and devices that the repository is to hold")
    kept = FORMATS / f"v{options.format}"
    if kept.exists():
        if not options.replace:
            sys.exit(f"golden.py: {kept} is there already; a kept repository is not made again")
        shutil.rmtree(kept)
    kept.mkdir(parents=True)
    (kept / "password").write_text(PASSWORD + "\n", encoding="ascii")
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        maker = Maker(options.onefold, kept, Path(temporary))
        make_first_format(maker) if options.format == 1 else make_second_format(maker)
        sources.make_removable(temporary)
    (kept / "expected.json").write_text(encode(maker.snapshots), encoding="ascii")
    size = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())
    print(f"{kept}: {size} bytes")
    if size > SIZES_MAX[options.format]:
        sys.exit(f"golden.py: {kept} has more than {SIZES_MAX[options.format]} bytes")


def make_first_format(maker):
    maker.onefold("init", "--format", "1", *PARAMETERS)
    source = maker.temporary / "source"
    sources.make_tree(source, 26_000, 20_000, 6 << 20, 60, as_root=True)
    maker.backup(source, "lz4")
    sources.change_tree(source)
    maker.backup(source, "zstd:19")


def make_second_format(maker):
    """A tree of all kinds of entries, and versions of a text, each compressed against those before it; one was pruned."""
    maker.onefold("init", "--format", "2", *PARAMETERS)
    source = maker.temporary / "source"
    sources.make_tree(source, 26_000, 20_000, 6 << 20, 60, as_root=True)
    maker.backup(source, "lz4")
    versions = maker.temporary / "versions"
    versions.mkdir()
    # Nodes that list these resemble each other from version to version.
    for number in range(FILES):
        sources.write(versions / f"file-{number:03}", sources.noise(1000 + number, 40))
    for version in range(len(DISTANCES) + 1):
        sources.write(versions / "text", sources.edited_words("versions", TEXT_LEN, DISTANCES[:version]))
        # What no other version has, so that a prune removes something.
        sources.write(versions / "noise", sources.noise(5 + version, 2000))
        sources.set_times(versions)
        maker.backup(versions, "zstd:19")
    forgotten = maker.snapshots.pop(1)
    maker.onefold("forget", forgotten["id"])
    maker.onefold("prune", "--compression", "zstd:19")
    counts = count_bases(restorer.Repository(maker.kept / "repo", PASSWORD.encode()))
    print("regions: {} with two whole bases, {} with chunks as bases, {} in chains, {} of metadata with bases".format(*counts))
    if not all(counts):
        sys.exit("golden.py: not all forms of bases are in the repository: make it again, with other keys")


def count_bases(repository):
    """How many regions have two whole bases, chunks as bases, and a base that has one, and how many of metadata have bases."""
    containers = [one for container_id in repository.listed for one in repository.open_containers(container_id)]
    regions = [region for container in containers for region in container.regions]
    two_whole = sum(len(runs_of(region, False)) == 2 for region in regions)
    of_chunks = sum(len(runs_of(region, True)) > 0 for region in regions)
    metadata = [region for container in containers if not container.is_data for region in container.regions]
    deep = sum(region.bases[0] >= 2 for region in regions)
    return two_whole, of_chunks, deep, sum(region.bases[0] >= 1 for region in metadata)


def runs_of(region, are_chunks):
    return [runs for _, _, runs in region.bases[1] if bool(runs) == are_chunks]


class Maker:
    """The program with the repository, and what its snapshots have."""

    def __init__(self, program, kept, temporary):
        self.program, self.kept, self.temporary = program.resolve(), kept, temporary
        self.snapshots = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")},
            "ONEFOLD_REPOSITORY": os.fspath(kept / "repo"),
            "ONEFOLD_PASSWORD_FILE": os.fspath(kept / "password"),
            "ONEFOLD_CACHE_DIR": os.fspath(temporary / "cache"),
        }

    def onefold(self, *arguments):
        command = [self.program, *arguments]
        done = subprocess.run(command, env=self.environment, cwd=self.temporary, check=True, stdout=subprocess.PIPE)
        return done.stdout.decode()

    def backup(self, source, compression):
        name = source.name
        # So much memory that similar regions are searched for.
        self.onefold("backup", name, "--host", "golden", "--compression", compression, "--memory", "512M")
        known = {snapshot["id"] for snapshot in self.snapshots}
        commits = {path.name for path in (self.kept / "repo" / "commits").iterdir()} - known
        assert len(commits) == 1, f"a backup made {len(commits)} commits"
        # The entries are below the name by which the source was given.
        entries = {f"{name}/{path}": about for path, about in sources.describe(source).items()}
        entries[name] = sources.describe_entry(os.fspath(source))
        del entries[name]["inode"]
        for about in entries.values():
            if "hard_link" in about:
                about["hard_link"] = f"{name}/{about['hard_link']}"
        self.snapshots.append({"id": commits.pop(), "entries": entries})


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
