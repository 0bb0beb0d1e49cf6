#!/usr/bin/env python3
"""Compares what the independent restorer brings back with what was backed up.

    ONEFOLD=path/to/onefold python3 testdata/restorer/test.py

`testdata/restorer/test-0.1.0` sets ONEFOLD_0_1_0 as well, to the program of that version.
The last line is `N passed, M failed`; the exit code is 0 if nothing failed.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import golden
import restore as restorer
import sources
import vectors

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FORMATS = HERE.parent / "formats"
LINES_MAX, LINE_LEN_MAX = 860, 120
# The restorer reads no collections.
TYPE_COLLECTION = 6
AS_ROOT = sources.is_root()


class Failed(Exception):
    pass


def run(arguments, environment=None, cwd=None):
    done = subprocess.run(
        [os.fspath(argument) for argument in arguments],
        # What the caller has set for the program is not meant for the tests.
        env={**{k: v for k, v in os.environ.items() if not k.startswith("ONEFOLD_")}, **(environment or {})},
        cwd=cwd,
        capture_output=True,
        timeout=600,
    )
    output = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{output}")
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def restore(*arguments, environment=None):
    return run([sys.executable, HERE / "restore.py", *arguments], environment)


def expect_same(expected, found):
    if not expected:
        raise Failed("nothing to compare with")
    differences = sources.compare(expected, found, AS_ROOT)
    if differences:
        more = [f"and {len(differences) - 20} more"] if len(differences) > 20 else []
        raise Failed("\n".join(differences[:20] + more))


class Onefold:
    """The program with a repository of its own."""

    def __init__(self, temporary, password="a päßword"):
        self.repository = temporary / "repository"
        self.environment = {
            "ONEFOLD_REPOSITORY": os.fspath(self.repository),
            "ONEFOLD_CACHE_DIR": os.fspath(temporary / "cache"),
        }
        if password:
            self.environment["ONEFOLD_PASSWORD"] = password

    def __call__(self, *arguments, cwd=None):
        return run([os.environ["ONEFOLD"], *arguments], self.environment, cwd)

    def restore(self, *arguments):
        return restore(self.repository, *arguments, environment=self.environment)


def test_everything_needed_to_restore_is_one_short_file(temporary):
    """Whoever must write a restorer from the document alone has no more than this to write."""
    lines = (HERE / "restore.py").read_text(encoding="utf-8").splitlines()
    if len(lines) > LINES_MAX or max(map(len, lines)) > LINE_LEN_MAX:
        raise Failed(f"restore.py has {len(lines)} lines, the longest of {max(map(len, lines))} characters")
    # It runs without the files beside it.
    alone = shutil.copy(HERE / "restore.py", temporary)
    run([sys.executable, "-I", alone, "--help"])


def test_vectors_of_the_document(_temporary):
    run([sys.executable, HERE / "vectors.py", ROOT / "docs" / "format.md"])


def check_kept_repository(temporary, version):
    """Restores every snapshot of a kept repository by restorer and program. Returns the repository."""
    kept = FORMATS / version
    for needed in ("repo", "password", "expected.json"):
        if not (kept / needed).exists():
            raise Failed(f"testdata/formats/{version}/{needed} is missing: make it with testdata/restorer/golden.py")
    expected = json.loads((kept / "expected.json").read_text(encoding="ascii"))
    password = ["--password-file", kept / "password"]
    listed = [line.split()[0] for line in restore(kept / "repo", *password, "--list")[0].splitlines()]
    ids = [snapshot["id"] for snapshot in expected["snapshots"]]
    if listed != ids:
        raise Failed(f"lists the snapshots {listed}, expected {ids}")
    onefold = Onefold(temporary, (kept / "password").read_text(encoding="ascii").strip())
    shutil.copytree(kept / "repo", onefold.repository)
    for snapshot in expected["snapshots"]:
        target = temporary / snapshot["id"]
        restore(kept / "repo", *password, "--snapshot", snapshot["id"], "--target", target)
        expect_same(snapshot["entries"], sources.describe(target))
        target = temporary / f"{snapshot['id']} by the program"
        onefold("restore", snapshot["id"], "--target", target)
        expect_same(without_linked_symlinks(snapshot["entries"]), without_linked_symlinks(sources.describe(target)))
    onefold("check", "--read-data")
    return restorer.Repository(kept / "repo", (kept / "password").read_bytes().strip()), onefold


def without_linked_symlinks(entries):
    """The program makes each name of a symbolic link a link of its own."""
    return {
        path: {key: value for key, value in about.items() if key != "hard_link" or about["type"] != "symlink"}
        for path, about in entries.items()
    }


def test_kept_repository_of_format_1(temporary):
    repository, _ = check_kept_repository(temporary, "v1")
    check_variety(repository, compressions={0, 1, 2})


def test_kept_repository_of_format_2(temporary):
    """Also: the samples that it holds still find what is similar."""
    repository, onefold = check_kept_repository(temporary, "v2")
    check_variety(repository, compressions={0, 1, 2, 3})
    counts = golden.count_bases(repository)
    if not all(counts):
        raise Failed("regions with two whole bases, chunks as bases, in chains, of metadata: {}, {}, {}, {}".format(*counts))
    versions = temporary / "versions"
    versions.mkdir()
    text = sources.edited_words("versions", golden.TEXT_LEN, [*golden.DISTANCES, 2000])
    sources.write(versions / "text", text)
    onefold("backup", "versions", "--memory", "512M", cwd=temporary)
    onefold("check", "--read-data")
    after = restorer.Repository(onefold.repository, os.fsencode(onefold.environment["ONEFOLD_PASSWORD"]))
    added = [after.open_containers(container_id) for container_id in after.listed.keys() - repository.listed.keys()]
    bases = [base for ids in added for container in ids for region in container.regions for base in region.bases[1]]
    if not any(container_id in repository.listed for container_id, _, _ in bases):
        raise Failed("nothing is compressed against what the kept repository holds")


def test_repository_of_the_first_version_that_todays_program_has_pruned(temporary):
    """Objects and tags that version 0.1.0 does not know are no hindrance, neither for it nor for the restorer."""
    kept = FORMATS / "v1"
    expected = json.loads((kept / "expected.json").read_text(encoding="ascii"))["snapshots"]
    onefold = Onefold(temporary, (kept / "password").read_text(encoding="ascii").strip())
    shutil.copytree(kept / "repo", onefold.repository)
    before = set(onefold.repository.glob("containers/*/*"))
    # The second snapshot stays under another name, and needs much of what the first one has stored.
    onefold("tag", "--add", "kept", expected[1]["id"])
    onefold("forget", expected[0]["id"])
    # The limit forbids to copy the second snapshot's metadata for its hints alone, so that a map has to say where chunks are now.
    onefold("prune", "--max-unused", "0", "--max-repack-size", "75K")
    after = set(onefold.repository.glob("containers/*/*"))
    if not before - after or not after - before:
        raise Failed(f"{len(before - after)} containers were deleted and {len(after - before)} written")
    repository = restorer.Repository(onefold.repository, os.fsencode(onefold.environment["ONEFOLD_PASSWORD"]))
    for directory, object_type, expected_tags in (
        ("commits", restorer.TYPE_COMMIT, {134, 140}),
        ("forget", restorer.TYPE_FORGET, {135, 136, 137}),
        ("gc", TYPE_COLLECTION, {128, 129}),
    ):
        if missing := expected_tags - tags_in(repository, directory, object_type):
            raise Failed(f"no object in {directory}/ has the tags {sorted(missing)}")
    expect_second_snapshot(onefold, expected[1], temporary / "restored")
    # Today's hints need no map.
    summary = json.loads(onefold("prune", "--max-unused", "0", "--json")[0].splitlines()[-1])
    if summary["planned_refreshed_containers"] != 1:
        raise Failed(f"the hints of {summary['planned_refreshed_containers']} containers were refreshed")
    expect_second_snapshot(onefold, expected[1], temporary / "restored with refreshed hints")
    if first_version := os.environ.get("ONEFOLD_0_1_0"):
        environment = {**onefold.environment, "ONEFOLD_CACHE_DIR": os.fspath(temporary / "another cache")}
        if "0.1.0" not in run([first_version, "version"], environment)[0]:
            raise Failed(f"{first_version} is not version 0.1.0")
        run([first_version, "check", "--read-data"], environment)
        run([first_version, "restore", "latest", "--target", temporary / "restored by 0.1.0"], environment)
        # As it restored the repository before; not all hard links were linked by that version.
        environment["ONEFOLD_REPOSITORY"] = os.fspath(kept / "repo")
        run([first_version, "restore", "latest", "--target", temporary / "restored before"], environment)
        environment["ONEFOLD_REPOSITORY"] = os.fspath(onefold.repository)
        expect_same(sources.describe(temporary / "restored before"), sources.describe(temporary / "restored by 0.1.0"))
        # It finds every chunk of the source that is there still.
        run([first_version, "backup", "source"], environment, temporary / "restored by 0.1.0")
        onefold("check", "--read-data")


def expect_second_snapshot(onefold, expected, target):
    """Fails unless the repository is sound, and the restorer finds the second snapshot alone and restores it."""
    onefold("check", "--read-data")
    if len(onefold.restore("--list")[0].splitlines()) != 1:
        raise Failed("the forgotten snapshots are listed")
    onefold.restore("--snapshot", "latest", "--target", target)
    expect_same(expected["entries"], sources.describe(target))


def tags_in(repository, directory, object_type):
    """The tags in the bodies of all objects of a directory."""
    tags = set()
    for path in (repository.path / directory).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            session, ordinal = data[24:40], int.from_bytes(data[40:44], "little")
            fields = restorer.Reader(restorer.open_small_object(repository.keys, data, object_type, session, ordinal))
            while fields.left():
                tags.add(fields.u8())
                fields.string(restorer.FIELD_MAX)
    return tags


def check_variety(repository, compressions):
    """Fails unless the repository holds these compressions, and lists of three levels."""
    recipes, nodes, found_compressions = set(), set(), set()
    for kind, fingerprint in repository.places(is_data=False):
        contents, hints = repository.read(kind, fingerprint)
        (nodes if kind == restorer.KIND_TREE else recipes).add(contents[0])
        if kind == restorer.KIND_TREE and contents[0] == 0:
            recipes |= {entry.recipe.level for entry in restorer.parse_node(contents, hints)[1] if entry.recipe}
    for container_id in repository.listed:
        for container in repository.open_containers(container_id):
            found_compressions |= {region.compression for region in container.regions}
    levels = {0, 1, 2}
    for what, wanted, found in (
        ("levels of recipes", levels, recipes),
        ("levels of nodes", levels, nodes),
        ("compressions", compressions, found_compressions),
    ):
        if not wanted <= found:
            raise Failed(f"holds only the {what} {sorted(found)}")
    # A hint may be out of date: every data chunk is found without one too.
    for kind, fingerprint in repository.places(is_data=True):
        repository.read(kind, fingerprint)


def test_names_that_lead_elsewhere_are_refused(_temporary):
    good = vectors.encode_entry(b"name", restorer.SYMLINK, vectors.string(b"/etc"))
    restorer.parse_node(b"\0\1" + good, b"")
    hostile = [
        vectors.encode_entry(name, restorer.FIFO, b"\0") for name in (b"", b".", b"..", b"a/b", b"a\0b", b"n" * 256)
    ]
    nodes = [b"\0\1" + entry for entry in hostile]
    # A link, and a directory of the same name that would be made behind it.
    nodes.append(b"\0\2" + good + vectors.encode_entry(b"name", restorer.DIRECTORY, bytes(32)))
    nodes.append(b"\0\1" + vectors.encode_entry(b"name", restorer.SYMLINK, vectors.string(b"")))
    for node in nodes:
        try:
            restorer.parse_node(node, b"")
        except restorer.Damaged:
            continue
        raise Failed(f"{node} went unnoticed")


def test_hints_that_name_no_container_are_not_used(_temporary):
    """They only say where to look first."""
    recipe = vectors.encode_list(0, [vectors.chunk_item(bytes(32), 7), vectors.chunk_item(bytes(32), 7)])
    later = vectors.time(0, 0) + b"\1"
    node = b"\0\1" + vectors.encode_entry(b"name", restorer.FILE, later + recipe)
    container = vectors.container_id(3)
    runs = {b"\2\1": [container] * 2, b"\0\1\2\1": [container] * 2, b"\2\2": [None] * 2, b"\1\1": [None] * 2}
    for run_bytes, expected in runs.items():
        _, entries = restorer.parse_node(node, b"\1" + container + run_bytes)
        if entries[0].hints != expected:
            raise Failed(f"the runs {run_bytes.hex()} are understood as {entries[0].hints}")


def check_two_snapshots(temporary, init_options):
    onefold = Onefold(temporary)
    source = temporary / "source"
    sources.make_tree(source, 4_000_000, 3_000_000, 8 << 20, 700, AS_ROOT)
    onefold("init", *init_options)
    expected = []
    for change in (None, sources.change_tree):
        if change:
            change(source)
        compression = ("zstd:3", "--pad") if change else ("lz4",)
        onefold("backup", "source", "--compression", *compression, cwd=temporary)
        expected.append(sources.describe(source))
    ids = [line.split()[0] for line in onefold.restore("--list")[0].splitlines()]
    if len(ids) != 2:
        raise Failed(f"{len(ids)} snapshots instead of 2")
    for number, name in enumerate((ids[0], "latest")):
        target = temporary / f"restored-{number}"
        onefold.restore("--snapshot", name, "--target", target)
        expect_same(expected[number], sources.describe(target / "source"))
    holes = os.stat(temporary / "restored-0" / "source" / "sparse")
    if holes.st_blocks * 512 >= holes.st_size // 2:
        raise Failed("a sparse file came back without its holes")
    return onefold, expected


def test_two_snapshots(temporary):
    check_two_snapshots(temporary, [])


def test_two_snapshots_with_small_parameters_and_one_front_directory_lost(temporary):
    """Small parameters make recipes and directories of several levels. Back directories stand in for front ones."""
    onefold, expected = check_two_snapshots(temporary, ["--chunk-size", "512", "--container-size", "65536"])
    check_variety(restorer.Repository(onefold.repository, os.fsencode(onefold.environment["ONEFOLD_PASSWORD"])), {0, 1, 2})
    containers = sorted((onefold.repository / "containers").glob("*/*"))
    for name in ("d", "m"):
        container = next(path for path in containers if path.name.startswith(name))
        container.chmod(0o600)
        with open(container, "r+b") as file:
            # Within the sealed front directory, which begins at 128.
            file.seek(140)
            file.write(b"damaged")
    (onefold.repository / "config").unlink()
    for slot in (onefold.repository / "keys").glob("*.1"):
        slot.chmod(0o600)
        slot.write_bytes(b"damaged")
    target = temporary / "restored from back directories"
    _, told = onefold.restore("--snapshot", "latest", "--target", target)
    for name in (
        "containers/[^ ]*/d.*trying the back",
        "containers/[^ ]*/m.*trying the back",
        "config: ",
        "keys/.*1: ",
    ):
        if not re.search(f"^restore.py: {name}", told, re.M):
            raise Failed(f"nothing was told about {name}:\n{told}")
    expect_same(expected[1], sources.describe(target / "source"))


def edited_text(seed, length, edits):
    """Lines of numbers, of which one in each few thousand bytes was edited so many times."""
    drawn = random.Random(seed)
    lines = []
    while length > 0:
        lines.append(f"{drawn.getrandbits(32):08x} {drawn.randrange(700):05} {drawn.randrange(50):03}\n")
        length -= len(lines[-1])
    for edit in range(edits):
        drawn = random.Random(f"{seed} {edit}")
        for at in range(drawn.randrange(150), len(lines), 150):
            lines[at] = f"edited {drawn.getrandbits(32)}\n"
    return "".join(lines)


def test_upgraded_repository_whose_versions_are_compressed_against_each_other(temporary):
    """Made in format 1, upgraded, backed up into, pruned: each snapshot comes back by program and restorer."""
    onefold = Onefold(temporary)
    source = temporary / "source"
    source.mkdir()
    expected = []
    onefold("init", "--format", "1")
    for version in range(4):
        if version == 2:
            onefold("upgrade", "--format", "2")
        (source / "changes").write_text(edited_text("changes", 3_000_000, version), encoding="ascii")
        (source / "stays").write_text(edited_text("stays", 500_000, 0), encoding="ascii")
        onefold("backup", "source", cwd=temporary)
        expected.append(sources.describe(source))
    # The last prune takes apart what is compressed against old versions: that saves more than it costs. With 0 each one would.
    for removed in (None, 0, 2):
        listed = [line.split()[0] for line in onefold.restore("--list")[0].splitlines()]
        if removed is not None:
            onefold("forget", listed[removed])
            onefold("prune", "--max-unused", "1")
            onefold("check", "--read-data")
            del expected[removed], listed[removed]
        if removed != 2:
            repository = restorer.Repository(onefold.repository, os.fsencode(onefold.environment["ONEFOLD_PASSWORD"]))
            containers = [one for ids in repository.listed for one in repository.open_containers(ids)]
            if not any(region.bases[1] for one in containers for region in one.regions):
                raise Failed("no region is compressed against another")
        for number, name in enumerate(listed):
            by_program, by_restorer = (temporary / f"{removed} {number} {by}" for by in ("program", "restorer"))
            onefold("restore", name, "--target", by_program)
            onefold.restore("--snapshot", name, "--target", by_restorer)
            for target in (by_program, by_restorer):
                expect_same(expected[number], sources.describe(target / "source"))
                shutil.rmtree(target)


def test_copies_that_a_prune_has_compressed_again(temporary):
    """In both formats: what is copied is shorter than without the option, and comes back."""
    for number in (1, 2):
        written = []
        for options in ((), ("--recompress",)):
            below = temporary / f"{number} {len(written)}"
            below.mkdir()
            onefold, source = Onefold(below), below / "source"
            onefold("init", "--format", str(number), "--chunk-size", "4096", "--container-size", "1048576")
            source.mkdir()
            for version in range(3):
                for name in range(6):
                    seed = f"{name} {version if name % 2 else 0}"
                    (source / f"{name}").write_text(edited_text(seed, 300_000, 0), encoding="ascii")
                alone = ("--no-similarity",) if number == 2 else ()
                onefold("backup", "source", "--compression", "zstd:1", *alone, cwd=below)
            expected = sources.describe(source)
            onefold("forget", "--keep-last", "1", "--force")
            summary = json.loads(onefold("prune", "--max-unused", "0", "--json", *options)[0].splitlines()[-1])
            written.append(summary["written_regions_bytes"])
            onefold("check", "--read-data")
            onefold.restore("--snapshot", "latest", "--target", below / "restored")
            expect_same(expected, sources.describe(below / "restored" / "source"))
        if not 0 < written[1] < written[0]:
            raise Failed(f"format {number}: copies take {written[1]} bytes compressed again, and {written[0]} else")


def test_without_encryption(temporary):
    onefold = Onefold(temporary, password=None)
    sources.make_tree(temporary / "source", 50_000, 50_000, 40960, 20, AS_ROOT)
    onefold("init", "--no-encryption")
    onefold("backup", temporary / "source")
    target = temporary / "restored"
    onefold.restore("--snapshot", "latest", "--target", target)
    expect_same(
        sources.describe(temporary / "source"), sources.describe(Path(f"{target}{(temporary / 'source').resolve()}"))
    )


def test_damaged_data_and_a_wrong_password_are_told(temporary):
    onefold = Onefold(temporary)
    sources.make_tree(temporary / "source", 50_000, 50_000, 40960, 20, AS_ROOT)
    onefold("init")
    onefold("backup", "source", cwd=temporary)
    container = next((onefold.repository / "containers").glob("*/d*"))
    container.chmod(0o600)
    data = bytearray(container.read_bytes())
    regions_at = 128 + int.from_bytes(data[112:116], "little")
    data[regions_at] ^= 1
    container.write_bytes(data)
    for why, password in (("damaged data", onefold.environment["ONEFOLD_PASSWORD"]), ("a wrong password", "wrong")):
        onefold.environment["ONEFOLD_PASSWORD"] = password
        try:
            onefold.restore("--snapshot", "latest", "--target", temporary / why)
        except Failed:
            continue
        raise Failed(f"{why} went unnoticed")


def main():
    if "ONEFOLD" not in os.environ:
        print("test.py: the environment variable ONEFOLD must name the onefold binary")
        print("0 passed, 1 failed")
        return 1
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    # Below the build directory, which is on a disk: not every /tmp keeps extended attributes and holes.
    build = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    build.mkdir(parents=True, exist_ok=True)
    passed = 0
    for name, test in tests:
        temporary = Path(tempfile.mkdtemp(prefix="restorer-", dir=build))
        try:
            test(temporary)
            passed += 1
            print(f"ok      {name}", flush=True)
        except Exception as error:
            print(f"FAILED  {name}: {error if isinstance(error, Failed) else traceback.format_exc()}", flush=True)
        finally:
            sources.make_removable(temporary)
            shutil.rmtree(temporary)
    print(f"{passed} passed, {len(tests) - passed} failed")
    return 0 if passed == len(tests) else 1


if __name__ == "__main__":
    sys.exit(main())
