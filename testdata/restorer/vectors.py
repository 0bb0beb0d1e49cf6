#!/usr/bin/env python3
"""Computes the test vectors of docs/format.md: keys, chunker, recipes, trees and sealed objects as a writer makes them.

    vectors.py docs/format.md

With `restore.py`, which reads what is made here, this is the second implementation of the whole format.
"""

import re
import struct
import sys
from pathlib import Path

import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from restore import (
    DIRECTORY, DOMAIN_BACK, DOMAIN_BODY, DOMAIN_FRONT, DOMAIN_REGION, DOMAIN_SLOT, FILE, KIND_DATA, KIND_RECIPE,
    KIND_TREE, MAGIC, SYMLINK, TRAILER_MAGIC, Damaged, Keys, Reader, argon2id, crc32c, derive_key,
    keyed_hash, nonce, open_slot, open_small_object, padme, parse_commit, parse_config, parse_directory, parse_fields,
    parse_hints, parse_node, parse_recipe, parse_trailer, plain_hash, unseal,
)

MASTER_KEY, REPOSITORY = bytes(range(0x20)), bytes(range(0x20, 0x30))
SESSION, RANDOM = bytes(range(0x30, 0x40)), bytes(range(0x40, 0x60))
SECONDS, NANOSECONDS = 1_700_000_000, 123_456_789
KEYS = Keys(MASTER_KEY, REPOSITORY)
HOLE_VALUE = (1 << 32) - 1


# Encoding


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def zigzag(value):
    return varint(value << 1 if value >= 0 else -(value << 1) - 1)


def string(value):
    return varint(len(value)) + value


def u32(value):
    return struct.pack("<I", value)


def time(seconds, nanoseconds):
    return zigzag(seconds) + varint(nanoseconds)


# Chunker


def gear_table(target):
    threshold = HOLE_VALUE // target
    for attempt in range(100_000):
        table = struct.unpack("<256I", keyed_hash(KEYS.chunk, u32(attempt), 1024))
        if all(-word % (1 << 32) >= threshold for word in table):
            return attempt, table
    raise AssertionError("no attempt makes a table")


def cut(data, least, target, most):
    _, table = gear_table(target)
    threshold, h, start, cuts = HOLE_VALUE // target, 0, 0, []
    for behind, byte in enumerate(data, start=1):
        h = (2 * h + table[byte]) % (1 << 32)
        if behind - start == most or (behind - start >= least and h < threshold):
            cuts.append(behind)
            start = behind
    return cuts if start == len(data) else [*cuts, len(data)]


# Recipes and trees as they are built: a ladder of open lists, each cut by the same rule


def is_end(rule, count, value):
    least, target, most = rule
    return count >= most or (count >= least and value < HOLE_VALUE // target)


def first_word(data):
    return struct.unpack("<I", data[:4])[0]


class Ladder:
    """Open lists of (encoding, length, value), one for each level, the closed ones going up as items."""

    def __init__(self, close, is_full):
        self.open, self.close, self.is_full = [[]], close, is_full

    def push(self, level, item):
        if level == len(self.open):
            self.open.append([])
        self.open[level].append(item)
        if self.is_full(self.open[level], level):
            self.up(level)

    def up(self, level):
        items, self.open[level] = self.open[level], []
        self.push(level + 1, self.close(level, items))

    def finish(self):
        level = 0
        while level + 1 < len(self.open):
            if self.open[level]:
                self.up(level)
            level += 1
        return level, self.open[level]


def encode_list(level, items):
    return bytes([level]) + varint(len(items)) + b"".join(item[0] for item in items)


def chunk_item(fingerprint, length):
    return varint(length << 1) + fingerprint, length, first_word(fingerprint)


def hole_item(length):
    return varint(length << 1 | 1), length, HOLE_VALUE


def build_recipe(items, rule, inline_max):
    def close(level, closed):
        fingerprint = KEYS.fingerprint(KIND_RECIPE, encode_list(level, closed))
        length = sum(item[1] for item in closed)
        return varint(length) + fingerprint, length, first_word(fingerprint)

    ladder = Ladder(close, lambda opened, level: is_end(rule, len(opened), opened[-1][2]))
    for item in items:
        ladder.push(0, item)
    level, top = ladder.finish()
    if len(top) > inline_max:
        level, top = level + 1, [close(level, top)]
    return encode_list(level, top)


def build_tree(entries, rule, node_bytes):
    """`entries` are (name, encoding). Gives the contents of the top node."""

    def close(level, items):
        contents = encode_list(level, items)
        count, name = sum(item[3] for item in items), items[0][4]
        fingerprint = KEYS.fingerprint(KIND_TREE, contents)
        encoded = fingerprint + varint(count) + string(name)
        return encoded, 40 + len(name), cut_value(name), count, name, contents

    def is_full(items, level):
        return is_end(rule, len(items), items[-1][2]) or sum(item[1] for item in items) >= node_bytes

    ladder = Ladder(close, is_full)
    for name, encoded in entries:
        ladder.push(0, (encoded, len(encoded), cut_value(name), 1, name))
    level, top = ladder.finish()
    return top[0][5] if level and len(top) == 1 else encode_list(level, top)


def cut_value(name):
    return first_word(keyed_hash(KEYS.cut, name))


def encode_entry(name, kind, content, mode=0o4755, mtime=(-5, 999_999_999), xattrs=(), link=None):
    flags = (1 if xattrs else 0) | (2 if link else 0)
    out = string(name) + bytes([kind, flags]) + varint(mode) + varint(1000) + varint(100) + time(*mtime)
    if xattrs:
        out += varint(len(xattrs)) + b"".join(string(name) + string(value) for name, value in xattrs)
    if link:
        out += b"".join(map(varint, link))
    return out + content


def encode_hints(hints):
    if not any(hints):
        return b""
    containers, runs = [], []
    for hint in hints:
        if hint and hint not in containers:
            containers.append(hint)
        number = containers.index(hint) + 1 if hint else 0
        if runs and runs[-1][1] == number:
            runs[-1][0] += 1
        else:
            runs.append([1, number])
    body = b"".join(varint(count) + varint(number) for count, number in runs)
    return varint(len(containers)) + b"".join(containers) + body


# Sealed objects


def make_salt(ordinal, contents):
    return keyed_hash(KEYS.salt, RANDOM + SESSION + u32(ordinal) + plain_hash(contents))


def make_header(object_type, ordinal, salt, sealed_len, version=1):
    key = KEYS.object_key(object_type, salt)
    raw = MAGIC + struct.pack("<HBB", version, object_type, 1) + REPOSITORY + SESSION + u32(ordinal) + u32(0) + salt
    return key, raw + keyed_hash(key, b"commit") + u32(sealed_len) + bytes(12)


def seal_small(object_type, body, ordinal=0):
    key, header = make_header(object_type, ordinal, make_salt(ordinal, body), len(body) + 16)
    whole = header + AESGCM(key).encrypt(nonce(DOMAIN_BODY, 0), body, header)
    return whole + KEYS.mac(whole)


def seal_container(object_type, ordinal, regions, version=1, based=None, samples=b""):
    """`regions` are lists of (kind, contents, hints); nothing is compressed but the region of number `based[0]`, which is
    stored as the frame `based[1]`, and whose depth and bases are encoded in `based[2]`. It has one base."""
    is_data = object_type == 1
    longest = max(len(contents) + len(hints) for region in regions for _, contents, hints in region)
    width = 4 if version == 1 else (longest.bit_length() + 7) // 8
    fingerprints, heads, fronts, backs, stored, associated = b"", b"", b"", b"", [], []
    for number, region in enumerate(regions):
        plain = b"".join(contents + hints for _, contents, hints in region)
        frame, bases = based[1:] if based and number == based[0] else (plain, b"" if version == 1 else bytes(2))
        stored.append(frame)
        associated.append(bytes([3 if frame is not plain else 0]) + u32(len(plain)) + bases)
        heads += u32(len(frame) + 16) + u32(len(plain)) + associated[-1][:1] + u32(len(region)) + bases
        for kind, contents, hints in region:
            fingerprint = KEYS.fingerprint(kind, contents)
            lengths = [len(contents) + len(hints)] if is_data else [len(hints), len(contents) + len(hints)]
            rest = b"" if is_data else bytes([kind])
            rest += b"".join(length.to_bytes(width, "little") for length in lengths)
            fingerprints, fronts, backs = fingerprints + fingerprint, fronts + fingerprint + rest, backs + rest
    counts = u32(len(regions)) + u32(sum(map(len, regions)))
    front_counts = back_counts = counts
    if version == 2:
        base_count = u32(1 if based else 0)
        front_counts = counts + base_count + u32(len(samples) // 7) + bytes([width])
        back_counts = counts + base_count + u32(0) + bytes([width])
    front = front_counts + heads + fronts + samples
    front_len = len(front) + 16
    key, header = make_header(object_type, ordinal, make_salt(ordinal, fingerprints), front_len, version)
    cipher = AESGCM(key)
    whole = header + cipher.encrypt(nonce(DOMAIN_FRONT, 0), front, header)
    for number, frame in enumerate(stored):
        whole += cipher.encrypt(nonce(DOMAIN_REGION, number), frame, header + associated[number])
    regions_len = len(whole) - 128 - front_len
    back = cipher.encrypt(nonce(DOMAIN_BACK, 0), back_counts + heads + backs, header)
    length = len(whole) + len(back) + 64
    whole += bytes(padme(length) - length)
    trailer = TRAILER_MAGIC + struct.pack("<4I", front_len, len(whole), len(back), regions_len) + u32(0)
    whole += back + trailer
    trailer += plain_hash(whole)
    return whole + trailer[24:] + u32(crc32c(trailer)) + u32(0)


# The vectors


def read_vectors(document):
    block = re.search(r"^```vectors\n(.*?)^```", Path(document).read_text(encoding="utf-8"), re.M | re.S)[1]
    vectors = {}
    for line in block.splitlines():
        name, is_new, value = line.rpartition("=")
        if is_new:
            last = name.strip()
        vectors[last] = vectors.get(last, "") + value.strip()
    return {name: bytes.fromhex(value) for name, value in vectors.items()}


def container_id(ordinal):
    return SESSION + u32(ordinal)


def fixed_objects(expected):
    """Config and slots, which are not sealed as other objects are."""

    def config(encrypted, chunker, sizes):
        rest = struct.pack("<BBH6I", encrypted, chunker, 0, *sizes, 256 << 10, 4 << 20, 24)
        rest += struct.pack("<7Iq", 256, 768, 4096, 64, 192, 1024, 128 << 10, SECONDS)
        raw = MAGIC + bytes([1, 0, 7, 1]) + REPOSITORY + rest + (bytes(32) if encrypted else MASTER_KEY) + bytes(40)
        raw += KEYS.mac(raw)
        return raw + plain_hash(raw)

    slot_id, salt, made_at = bytes(range(0x80, 0x90)), bytes(range(0x90, 0xB0)), struct.pack("<q", SECONDS)
    wrapping_key = derive_key("onefold v1 key slot", argon2id(b"onefold", salt, 64, 1, 1) + REPOSITORY + slot_id)
    commitment = keyed_hash(wrapping_key, b"commit")
    associated = REPOSITORY + slot_id + salt + commitment + u32(0) + made_at
    sealed = AESGCM(wrapping_key).encrypt(nonce(DOMAIN_SLOT, 0), MASTER_KEY, associated)
    label = AESGCM(KEYS.object_key(8, salt)).encrypt(nonce(DOMAIN_SLOT, 0), string(b"user") + string(b"host"), associated)
    slot = MAGIC + bytes([2, 0, 8, 1]) + REPOSITORY + slot_id + bytes([1, 0, 0, 0]) + u32(0) + made_at
    slot += struct.pack("<III", 64, 1, 1) + salt + commitment + u32(len(sealed)) + sealed + u32(len(label)) + label
    slot += plain_hash(slot)
    assert parse_config(expected["config"]).encrypted
    assert parse_config(expected["config_clear"]).master_key == MASTER_KEY
    assert open_slot(expected["slot"], REPOSITORY, slot_id, b"onefold") == MASTER_KEY
    assert open_slot(expected["slot"], REPOSITORY, slot_id, b"Onefold") is None
    return {"config": config(1, 1, (4096, 4096, 32768)), "config_clear": config(0, 2, (4096, 4096, 4096)), "slot": slot}


def field(tag, value):
    return bytes([tag]) + string(value)


def small_objects(expected):
    now = time(SECONDS, NANOSECONDS)
    session = field(1, b"\1") + field(15, varint(300)) + field(2, now) + field(5, b"host")
    containers = field(16, container_id(1)) + field(16, container_id(0x01020304))
    condemn = field(1, b"\2") + containers
    moved = field(129, container_id(1) + varint(2) + container_id(5) + container_id(300))
    runs = varint(0) + varint(2) + b"\xff\1" + varint(298) + varint(1) + b"\x80"
    manifest = field(18, SESSION + runs) + field(18, bytes(range(0xC0, 0xD0)) + varint(5) + varint(1) + b"\x11")
    made = {
        "session_body": session,
        "session": seal_small(3, session),
        # What the fields of this one say stands in the vector alone, so it is read and sealed again.
        "commit": seal_small(4, expected["commit_body"]),
        "fence_body": field(1, b"\2"),
        "condemn_body": condemn,
        "condemn": seal_small(6, condemn, 5),
        "condemn_marked_body": condemn + field(128, bytes(range(0xC0, 0xD0))) + field(128, SESSION),
        "commit_manifest_body": expected["commit_body"] + field(130, bytes(range(0xD0, 0xF0))),
        "manifest_body": manifest,
        "manifest": seal_small(9, manifest),
        "final_quick_body": field(1, b"\3") + field(142, b"\3") + field(16, container_id(1)),
        "final_body": field(1, b"\3") + containers + moved + field(129, container_id(2) + varint(0)),
    }
    commit = parse_commit(open_small_object(KEYS, expected["commit"], 4, SESSION), SESSION, b"")
    fields = parse_fields(expected["commit_body"], set(range(1, 15)), {8, 9, 10, 14})
    made["commit_body"] = b"".join(field(tag, value) for tag, values in fields.items() for value in values)
    written = field(132, varint(300) + varint(70_000))
    made["commit_rewritten_body"] = made["commit_body"].replace(field(12, fields[12][0]), written + field(12, fields[12][0]))
    assert commit.kind == 1 and commit.began == SECONDS * 10**9 + NANOSECONDS
    assert (commit.host, commit.paths) == ("host", [b"/home", b"/srv/\xff"]) and len(fields) == 14
    assert commit.heads == [(bytes(range(0xC0, 0xD0)), bytes(range(0xD0, 0xF0)))]
    return made


def lists_and_containers(expected):
    onefold, form, one = b"onefold", b"format", b"one"
    items = [
        chunk_item(KEYS.fingerprint(KIND_DATA, onefold), len(onefold)),
        hole_item(1 << 20),
        chunk_item(KEYS.fingerprint(KIND_DATA, form), len(form)),
    ]
    recipe = encode_list(0, items)
    third, fourth = container_id(3), container_id(4)
    stream = []
    for i in range(200):
        stream.append(chunk_item(KEYS.fingerprint(KIND_DATA, struct.pack("<Q", i)), 8))
        if i % 50 == 49:
            stream.append(hole_item(4096))
    rule, later = (4, 4, 16), time(SECONDS, NANOSECONDS)
    entries = [
        encode_entry(b"a", FILE, later + varint(99) + recipe, xattrs=[(b"user.a", b"\0\1\2")], link=(0x801, 99, 2)),
        encode_entry(b"b", FILE, later + varint(100) + b"\0\0"),
        encode_entry(b"c", DIRECTORY, bytes(range(0xA0, 0xC0))),
        encode_entry(b"d", SYMLINK, string(b"../x")),
    ]
    entries += [encode_entry(*entry) for entry in ((b"e", 4, b"\0"), (b"f", 5, b"\0"))]
    entries += [encode_entry(b"g", 6, varint(0x103)), encode_entry(b"h", 7, varint(0x801))]
    node = bytes([0]) + varint(len(entries)) + b"".join(entries)
    names = [b"%08d" % i for i in range(200)]
    tree_root = build_tree([(name, encode_entry(name, SYMLINK, string(b"x"))) for name in names], rule, 1024)
    data = seal_container(1, 3, [[(KIND_DATA, onefold, b""), (KIND_DATA, form, b"")], [(KIND_DATA, one, b"")]])
    hints = encode_hints([third, None])
    chunks = [(KIND_RECIPE, recipe, hints), (KIND_TREE, node, hints), (KIND_TREE, b"\0\0", b"")]
    metadata = seal_container(2, 4, [chunks])
    twice = b"onefold stores everything once" * 2
    frame = bytes.fromhex("28b52ffd203c3d000000010009920202")
    bases = bytes([1, 1]) + container_id(7) + u32(0) + bytes([1]) + struct.pack("<HH", 0, 1)
    sample = struct.pack("<H", 1) + bytes([5, 4, 3, 2, 1])
    regions = [[(KIND_DATA, onefold, b"")], [(KIND_DATA, twice, b"")]]
    based = seal_container(1, 5, regions, 2, (1, frame, bases), sample)
    metadata_2 = seal_container(2, 6, [chunks], 2)
    bases = bytes([1, 1]) + container_id(9) + u32(0) + bytes([0])
    regions = [[(KIND_TREE, b"\0\0", b"")], [(KIND_TREE, twice[:52], twice[52:])]]
    based_metadata = seal_container(2, 8, regions, 2, (1, frame, bases), sample)
    assert parse_hints(expected["hints"], 5) == [third, third, None, fourth, third]
    assert parse_recipe(Reader(expected["recipe"])).chunk_count == 2
    assert [entry.kind for entry in parse_node(expected["tree_entries"], hints)[1]] == [1, 1, 2, 3, 4, 5, 6, 7]
    trailer = parse_trailer(expected["metadata_container"])
    key = KEYS.object_key(2, expected["metadata_container"][48:80])
    back = expected["metadata_container"][trailer.back_offset : trailer.back_offset + trailer.back_len]
    plain = unseal(key, DOMAIN_BACK, 0, back, expected["metadata_container"][:128])
    assert len(parse_directory(plain, 1, False, False, 0, 1 << 20)[0].chunks) == 3
    return {
        "recipe": recipe,
        "hints": encode_hints([third, third, None, fourth, third]),
        "recipe_top": build_recipe(stream, rule, 3),
        "tree_entries": node,
        "tree_root": tree_root,
        "tree_root_fingerprint": KEYS.fingerprint(KIND_TREE, tree_root),
        "data_container": data,
        "data_container_name": plain_hash(data),
        "metadata_container": metadata,
        "metadata_container_name": plain_hash(metadata),
        "based_container": based,
        "based_container_name": plain_hash(based),
        "metadata_container_2": metadata_2,
        "metadata_container_2_name": plain_hash(metadata_2),
        "based_metadata_container": based_metadata,
        "based_metadata_container_name": plain_hash(based_metadata),
    }


def primitives(_expected):
    noise = bytearray(blake3.blake3(b"onefold test vector").digest(length=100_000))
    noise[60_000:80_000] = bytes(20_000)
    attempt, redrawn = gear_table(64)
    assert attempt == 42, f"the table for target 64 is that of attempt {attempt}"
    _, table = gear_table(4096)
    made = {
        "tree_cut_value": keyed_hash(KEYS.cut, b"onefold")[:4],
        "mac": KEYS.mac(b"onefold"),
        "salt": make_salt(7, b"onefold"),
        "gear_first_words": struct.pack("<4I", *table[:4]),
        "gear_table_blake3": plain_hash(struct.pack("<256I", *table)),
        "gear_redrawn_blake3": plain_hash(struct.pack("<256I", *redrawn)),
        "cuts": b"".join(map(u32, cut(noise, 512, 512, 4096))),
    }
    for name, kind in (("data", KIND_DATA), ("tree", KIND_TREE), ("recipe", KIND_RECIPE)):
        made[f"fingerprint_{name}"] = KEYS.fingerprint(kind, b"onefold")
    for name, object_type in (("data", 1), ("metadata", 2), ("commit", 4)):
        made[f"commitment_{name}"] = keyed_hash(KEYS.object_key(object_type, bytes(range(0x60, 0x80))), b"commit")
    return made


def verify(document):
    """Prints what differs and returns the exit code."""
    expected = read_vectors(document)
    made, failed = {}, 0
    for make in (primitives, fixed_objects, small_objects, lists_and_containers):
        try:
            made |= make(expected)
        except (AssertionError, Damaged, KeyError) as error:
            failed += 1
            print(f"{make.__name__}: {type(error).__name__}: {error}")
    for name in sorted(expected.keys() | made.keys()):
        if made.get(name) != expected.get(name):
            failed += 1
            was = made[name].hex() if name in made else "not computed"
            stands = expected[name].hex() if name in expected else "nothing"
            print(f"{name}: computed {was}, the document has {stands}")
    print(f"{len(expected)} vectors, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(verify(sys.argv[1]))
