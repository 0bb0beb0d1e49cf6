"""Source trees for the tests, and what is compared of a tree: every attribute that a restore must bring back."""

import hashlib
import os
import random
import socket
import stat
from pathlib import Path

LATER = 1_700_000_000_123_456_789
# Before 1970, and not on a whole second.
BEFORE_1970 = -86_400_000_000_001


def escape(name):
    """Bytes as text that any JSON reader takes: what is not printable ASCII, and the backslash, as `\\xNN`."""
    return "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in name)


def describe(root):
    """`{path: attributes}` of everything below `root`, which is not itself among it."""
    root, found, first_names = os.fsencode(root), {}, {}
    pending = [b""]
    while pending:
        path = pending.pop()
        for name in os.listdir(os.path.join(root, path)):
            below = os.path.join(path, name)
            found[escape(below)] = about = describe_entry(os.path.join(root, below))
            if about["type"] == "directory":
                pending.append(below)
    # Hard links: each name of an inode has the first of its names.
    for path in sorted(found):
        inode = found[path].pop("inode")
        if found[path]["type"] != "directory":
            first = first_names.setdefault(inode, path)
            if first != path:
                found[path]["hard_link"] = first
    return found


TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def describe_entry(path):
    status = os.lstat(path)
    about = {
        "type": TYPES[stat.S_IFMT(status.st_mode)],
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
        "inode": (status.st_dev, status.st_ino),
    }
    if about["type"] == "file":
        about["size"] = status.st_size
        about["sha256"] = hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).hexdigest()
    elif about["type"] == "symlink":
        about["target"] = escape(os.readlink(path))
    elif "device" in about["type"]:
        about["device"] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    xattrs = {}
    for name in os.listxattr(path, follow_symlinks=False):
        # What a security module attaches to every new file is the host's, not the tree's.
        if name != "security.selinux":
            xattrs[escape(os.fsencode(name))] = os.getxattr(path, name, follow_symlinks=False).hex()
    if xattrs:
        about["xattrs"] = xattrs
    return about


def compare(expected, found, as_root):
    """Lines that say what differs. Who is not root can make neither owners nor devices."""
    lines = []
    for path in sorted(expected.keys() | found.keys()):
        want, have = expected.get(path), found.get(path)
        if not as_root and want and "device" in want["type"] and not have:
            continue
        if want is None or have is None:
            lines.append(f"{path}: {'is not expected' if want is None else 'is missing'}")
            continue
        for key in sorted(want.keys() | have.keys()):
            if key in ("uid", "gid") and not as_root:
                continue
            if want.get(key) != have.get(key):
                lines.append(f"{path}: {key}: expected {want.get(key)}, found {have.get(key)}")
    return lines


def noise(seed, length):
    return random.Random(seed).randbytes(length)


def text(seed, length):
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("etaoinshrdlu", k=chosen.randrange(2, 9))) for _ in range(2000)]
    out = bytearray()
    while len(out) < length:
        out += b" ".join(chosen.choice(words).encode() for _ in range(12)) + b"\n"
    return bytes(out[:length])


def edited_words(seed, length, distances):
    """A text in which one word in so many bytes was replaced, once for each distance."""
    words = text(seed, length).split(b" ")
    for edit, distance in enumerate(distances):
        chosen = random.Random(f"{seed} {edit}")
        # A word and its space take about six bytes.
        for at in range(chosen.randrange(distance // 6), len(words), distance // 6):
            words[at] = b"edit%d" % chosen.randrange(1000)
    return b" ".join(words)


def write(path, data, mode=0o644):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def is_root():
    """Whether this user may make devices and any owner: root, and not only in a user namespace."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def make_tree(root, noise_len, text_len, repeated_len, many, as_root):
    """One entry of every kind, owners and devices for root only, contents and times determined by the arguments."""
    root = Path(root)
    raw = os.fsencode(root)
    root.mkdir()
    write(root / "empty", b"")
    write(root / "noise", noise(1, noise_len))
    write(root / "text", text(2, text_len), 0o640)
    write(root / "zeros", bytes(10_000))
    write(root / "program", b"#!/bin/sh\n", 0o4755)
    write(root / "read-only", b"nobody writes here\n", 0o400)
    write(root / ("n" * 255), b"a long name\n")
    write(raw + b"/not utf-8 \xff\xfe\n\\", b"bytes\n")
    with open(root / "sparse", "wb") as file:
        file.write(noise(3, 5000))
        file.seek(1 << 20)
        file.write(b"behind a hole")
        file.truncate(3 << 20)
    with open(root / "hole", "wb") as file:
        file.truncate(1 << 20)
    many_in = root / "many"
    many_in.mkdir()
    for number in range(many):
        write(many_in / f"{number:05}", b"%d\n" % number if number % 3 else b"")
    # Long names fill a node with a few entries, and the nodes above it too.
    long_in = root / "long"
    long_in.mkdir()
    for number in range(80):
        os.symlink("x", long_in / f"{number:05}{'x' * 240}")
    # The same bytes over and over: many references to a few chunks.
    write(root / "repeated", noise(4, 4096) * (repeated_len // 4096))
    deep = root
    for level in range(20):
        deep = deep / f"level-{level}"
        deep.mkdir()
    write(deep / "deep", b"down here\n")
    (root / "closed").mkdir()
    write(root / "closed" / "inside", b"inside\n")
    os.symlink("noise", root / "link")
    os.symlink(b"/nowhere/\xff", root / "dangling link")
    os.link(root / "text", root / "second name of text")
    os.symlink("empty", root / "many" / "link one")
    os.link(root / "many" / "link one", root / "many" / "link two", follow_symlinks=False)
    os.mkfifo(root / "fifo", 0o620)
    with socket.socket(socket.AF_UNIX) as listener:
        # By a short path: the address of a socket has room for about 100 bytes.
        parent = os.open(root, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{parent}/socket")
        os.close(parent)
    os.setxattr(root / "noise", "user.empty", b"")
    os.setxattr(root / "noise", "user.binary", bytes(range(256)))
    os.setxattr(root / "many", "user.directory", b"of a directory")
    if as_root:
        make_root_only(root)
    set_times(root)


def make_root_only(root):
    os.chown(root / "text", 1234, 5678)
    os.chown(root / "link", 4_000_000_000, 3, follow_symlinks=False)
    os.chown(root / "many", 1000, 1000)
    os.chown(root / "program", 1000, 0)
    os.chmod(root / "program", 0o6755)
    # A container may take this right from root.
    for name, kind, device in (("null", stat.S_IFCHR, (1, 3)), ("wide", stat.S_IFBLK, (0x123, 0x45678))):
        try:
            os.mknod(root / name, kind | 0o600, os.makedev(*device))
        except PermissionError:
            print(f"sources.py: no right to make devices: {name} is left out")


def set_times(root):
    """Times that depend on the name alone, of one entry in four before 1970; directories last and from below."""
    for directory, directories, files in os.walk(os.fsencode(root), topdown=False):
        for name in files + [d for d in directories if os.path.islink(os.path.join(directory, d))]:
            path = os.path.join(directory, name)
            shift = int.from_bytes(hashlib.sha256(name).digest()[:4], "little")
            when = BEFORE_1970 - shift if shift % 4 == 0 else LATER + shift
            os.utime(path, ns=(when, when), follow_symlinks=False)
        if directory.endswith(b"/closed"):
            os.chmod(directory, 0o500)
        os.utime(directory, ns=(LATER - len(directory), LATER - len(directory)))


def change_tree(root):
    """What the second snapshot finds changed: contents, an insertion, attributes, new names and names that are gone."""
    root = Path(root)
    data = (root / "noise").read_bytes()
    third = len(data) // 3
    write(root / "noise", data[:third] + b"inserted" + data[third:])
    with open(root / "text", "ab") as file:
        file.write(b"a new last line\n")
    os.unlink(root / "empty")
    os.mkdir(root / "empty")
    os.unlink(root / "link")
    os.symlink("text", root / "link")
    os.unlink(root / "many" / "00007")
    write(root / "many" / "00007 and a half", b"new\n")
    os.chmod(root / "zeros", 0o7777)
    os.removexattr(root / "noise", "user.empty")
    set_times(root)


def make_removable(tree):
    """Who is not root cannot remove what is in a directory without the right to write."""
    for directory, _, _ in os.walk(os.fsencode(tree)):
        os.chmod(directory, 0o700)
