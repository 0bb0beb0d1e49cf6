"""The backup programs that are compared: how each is found, set up and called."""

import json
import os
import shutil
import subprocess

from common import PASSWORD, Failed, onefold_binary, onefold_environment

NAMES = ["onefold", "onefold-1", "restic", "kopia", "rustic", "borg"]


class Program:
    """One backup program. Repository and password come from the environment, as Onefold, restic and rustic take them."""

    forced = ["--force"]
    version_arguments = ["version"]
    # Arguments of `backup` that are no defaults, and how a reader is told of them.
    tuned, settings = [], "defaults"

    def __init__(self, name, binary, as_shipped):
        self.name, self.binary = name, binary
        shown = subprocess.run([binary, *self.version_arguments], capture_output=True, text=True, check=True)
        self.version = self.stated(shown.stdout.strip().splitlines()[0])
        if as_shipped:
            self.tuned, self.settings = [], "defaults"

    def stated(self, line):
        """Returns name and version from what the program says of itself."""
        return line

    def environment(self, repository, cache):
        prefix = self.name.upper()
        return {f"{prefix}_REPOSITORY": repository, f"{prefix}_PASSWORD": PASSWORD, f"{prefix}_CACHE_DIR": cache}

    def init(self, _repository):
        """Returns the commands that create the repository."""
        return [[self.binary, "init"]]

    def backup(self, source, _name, read_all):
        return [self.binary, "backup", *self.tuned, *(self.forced if read_all else []), source]

    def restore(self, source, _name, target):
        return [self.binary, "restore", "latest", "--path", source, "--target", target]

    def check(self):
        return [self.binary, "check", "--read-data"]

    def restored(self, source, target):
        """Returns where `restore` puts the source."""
        return target + source


class OnefoldOne(Program):
    """Onefold in a repository of format 1, which compresses new data alone."""

    settings = "repositories of format 1"

    def __init__(self, name, binary, as_shipped):
        super().__init__(name, binary, as_shipped)
        self.settings = OnefoldOne.settings

    def environment(self, repository, cache):
        return onefold_environment(repository, cache)

    def init(self, _repository):
        return [[self.binary, "init", "--format", "1"]]


class Kopia(Program):
    """kopia does not compress unless a policy says so, and restores to the target itself."""

    forced = ["--force-hash=100"]
    version_arguments = ["--version"]
    tuned, settings = ["--compression=zstd"], "compression zstd (its default is none)"

    def stated(self, line):
        return f"kopia {line.split(' ')[0]}"

    def environment(self, _repository, cache):
        return {
            "KOPIA_PASSWORD": PASSWORD,
            "KOPIA_CACHE_DIRECTORY": os.path.join(cache, "cache"),
            "KOPIA_CONFIG_PATH": os.path.join(cache, "repository.config"),
            "KOPIA_LOG_DIR": os.path.join(cache, "log"),
            "KOPIA_CHECK_FOR_UPDATES": "false",
            "KOPIA_USE_KEYRING": "false",
        }

    def init(self, repository):
        commands = [[self.binary, "repository", "create", "filesystem", "--path", repository]]
        if self.tuned:
            commands.append([self.binary, "policy", "set", "--global", *self.tuned])
        return commands

    def backup(self, source, _name, read_all):
        return [self.binary, "snapshot", "create", "--no-progress", *(self.forced if read_all else []), source]

    def restore(self, source, _name, target):
        latest = ["--no-progress", "--snapshot-time", "latest"]
        return [self.binary, "snapshot", "restore", *latest, source, self.restored(source, target)]

    def check(self):
        return [self.binary, "snapshot", "verify", "--verify-files-percent=100", "--no-progress"]

    def restored(self, source, target):
        return os.path.join(target, os.path.basename(source))


class Rustic(Program):
    """rustic restores to a directory given as an argument, and filters snapshots by options of its own."""

    version_arguments = ["--version"]

    def restore(self, source, _name, target):
        return [self.binary, "restore", "latest", "--filter-paths-exact", source, target]


class Borg(Program):
    """borg names its archives, and extracts into the current directory without the leading slash."""

    forced = ["--files-cache", "disabled"]
    version_arguments = ["--version"]
    tuned, settings = ["--compression", "zstd,3"], "compression zstd,3 (its default is lz4)"

    def environment(self, repository, cache):
        return {
            "BORG_REPO": repository,
            "BORG_PASSPHRASE": PASSWORD,
            "BORG_BASE_DIR": cache,
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
        }

    def init(self, _repository):
        return [[self.binary, "init", "--encryption", "repokey-blake2"]]

    def backup(self, source, name, read_all):
        return [self.binary, "create", *self.tuned, *(self.forced if read_all else []), f"::{name}", source]

    def restore(self, _source, name, _target):
        return [self.binary, "extract", f"::{name}"]

    def check(self):
        return [self.binary, "check", "--verify-data"]


KINDS = {"onefold-1": OnefoldOne, "kopia": Kopia, "rustic": Rustic, "borg": Borg}


def installed(paths, wanted, as_shipped):
    """Returns the programs that are there, Onefold first, and the names of those that are not.

    `paths` maps names to the programs that were given; another is looked for in $PATH. `wanted` limits the others.
    """
    programs, missing = [], []
    for name in NAMES:
        if name != "onefold" and wanted is not None and name not in wanted:
            continue
        given = paths.get(name)
        if given is not None and not os.access(given, os.X_OK):
            raise Failed(f"--{name} {given}: no such program")
        binary = given or (onefold_binary() if name.startswith("onefold") else shutil.which(name))
        if binary is None:
            missing.append(name)
            continue
        programs.append(KINDS.get(name, Program)(name, os.path.abspath(binary), as_shipped))
    return programs, missing


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
