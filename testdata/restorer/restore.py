#!/usr/bin/env python3
"""Restores a Onefold repository of format 1 or 2. Written from docs/format.md alone, sharing no code with the program.

    restore.py REPO [--password-file FILE] --list
    restore.py REPO [--password-file FILE] --snapshot ID|latest --target DIR

Without --password-file the password is that of the environment variable ONEFOLD_PASSWORD. What is damaged is named on
stderr; the exit code is 0 if everything asked for came back, else 1.
"""

import argparse
import functools
import io
import os
import re
import resource
import stat
import struct
import sys
import time
from collections import namedtuple
from pathlib import Path

import blake3
import lz4.block
import zstandard
from argon2 import low_level as argon2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC, TRAILER_MAGIC = b"1FLD", b"1FLT"
HEADER_LEN, TRAILER_LEN, CONFIG_LEN, TAG_LEN = 128, 64, 224, 16
TYPE_DATA, TYPE_META, TYPE_SESSION, TYPE_COMMIT, TYPE_FORGET, TYPE_GC, TYPE_CONFIG, TYPE_SLOT = range(1, 9)
KIND_DATA, KIND_TREE, KIND_RECIPE = 1, 2, 3
KIND_NAMES = {KIND_DATA: "data", KIND_TREE: "tree", KIND_RECIPE: "recipe"}
DOMAIN_REGION, DOMAIN_FRONT, DOMAIN_BACK, DOMAIN_BODY, DOMAIN_SLOT = 1, 2, 3, 4, 5
FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, CHAR_DEVICE, BLOCK_DEVICE = range(1, 8)
DEPTH_MAX, BASES_MAX, WHOLE_BASES_MAX, RUNS_MAX, SAMPLE_LEN = 4, 12, 2, 64, 7
LEVEL_MAX, LIST_MAX, STREAM_MAX, SMALL_OBJECT_MAX, FIELD_MAX = 40, 65_536, 1 << 62, 64 << 20, 65_536
# Opened regions that are kept: a region is read once for its many chunks.
REGION_CACHE_BYTES = 256 << 20
CONTAINER_PATH = re.compile(r"containers/([0-9a-f]{32})/([dm])([0-9a-f]{8})-([0-9a-f]{64})")
SLOT_NAME = re.compile(r"([0-9a-f]{32})\.[12]")
SESSION_NAME = re.compile(r"[0-9a-f]{32}")
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
NODE_MODES = {FIFO: stat.S_IFIFO, SOCKET: stat.S_IFSOCK, CHAR_DEVICE: stat.S_IFCHR, BLOCK_DEVICE: stat.S_IFBLK}
warnings = []

Header = namedtuple("Header", "raw sealed_len key")
Config = namedtuple("Config", "repository_id encrypted container_bytes region_limit master_key raw")
Commit = namedtuple("Commit", "session kind began tree host paths heads stored_hash")
Trailer = namedtuple("Trailer", "front_len back_offset back_len regions_len checksum")
# `bases` are the depth, the bases as container id, number of a region and runs of chunks, and the bytes that hold them.
Region = namedtuple("Region", "offset sealed_len plain_len compression chunks bases")
NO_BASES = (0, [], b"")
# `hints_len` is that of a metadata chunk; `fingerprint` is None where a back directory was read.
ChunkPlace = namedtuple("ChunkPlace", "fingerprint kind hints_len offset length")
# `fingerprint` is None for a hole; `kind` is KIND_DATA for a chunk and KIND_RECIPE for a segment.
Item = namedtuple("Item", "kind length fingerprint")
RecipeList = namedtuple("RecipeList", "level items length chunk_count")
Entry = namedtuple("Entry", "name kind mode uid gid mtime_ns xattrs link content recipe hints")
Child = namedtuple("Child", "fingerprint entry_count name")

class Damaged(Exception):
    """An object is not as the document says. The message names it."""

def require(condition, message):
    if not condition:
        raise Damaged(message)

def warn(message):
    warnings.append(message)
    print(f"restore.py: {message}", file=sys.stderr)

def plain_hash(data):
    return blake3.blake3(data).digest()

def keyed_hash(key, data, length=32):
    return blake3.blake3(data, key=key).digest(length=length)

def derive_key(context, material):
    return blake3.blake3(material, derive_key_context=context).digest()

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

def text(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Damaged("text is not UTF-8") from None

def argon2id(password, salt, memory, passes, lanes):
    return argon2.hash_secret_raw(password, salt, passes, memory, lanes, 32, argon2.Type.ID, 0x13)

class Reader:
    """Takes the primitives of the document from a byte string and never reads behind its end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        require(count <= self.left(), "ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def end(self):
        require(self.left() == 0, f"{self.left()} bytes too many")

    def unpack(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def u8(self):
        return self.take(1)[0]

    def length(self, width):
        return int.from_bytes(self.take(width), "little")

    def zeros(self, count):
        require(not any(self.take(count)), "reserved bytes are not zero")

    def varint(self, bits=64):
        value = 0
        for shift in range(0, 70, 7):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                require(byte or not shift, "a varint is not in its shortest form")
                require(value < 1 << bits, f"a varint has more than {bits} bits")
                return value
        raise Damaged("a varint is too long")

    def string(self, longest=1 << 64):
        length = self.varint()
        require(length <= longest, f"a string has {length} bytes, more than {longest}")
        return self.take(length)

    def count(self, most, bytes_each=1):
        count = self.varint()
        require(count <= most, f"a list has {count} items, more than {most}")
        require(count * bytes_each <= self.left(), "a list ends too early")
        return count

    def time_ns(self):
        zigzag, nanoseconds = self.varint(), self.varint()
        require(nanoseconds < 1_000_000_000, "a time has too many nanoseconds")
        return ((zigzag >> 1) ^ -(zigzag & 1)) * 1_000_000_000 + nanoseconds

class Keys:
    def __init__(self, master_key, repository_id):
        def subkey(context):
            return derive_key(f"onefold v1 {context}", master_key + repository_id)

        self.repository_id = repository_id
        self.fingerprint_keys = {kind: subkey(f"fingerprint {name}") for kind, name in KIND_NAMES.items()}
        self.chunk, self.cut, self.salt, self.commit = map(subkey, ("chunk", "tree cut", "salt", "commit"))
        self.data, self.meta, self.object = map(subkey, ("data", "metadata", "object"))

    def fingerprint(self, kind, contents):
        return keyed_hash(self.fingerprint_keys[kind], contents)

    def mac(self, data):
        return keyed_hash(self.commit, data)

    def object_key(self, object_type, salt):
        family = {TYPE_DATA: self.data, TYPE_META: self.meta}.get(object_type, self.object)
        return keyed_hash(family, salt + self.repository_id + bytes([object_type]))

def nonce(domain, counter):
    return struct.pack("<IQ", domain, counter)

def unseal(key, domain, counter, sealed, associated):
    try:
        return AESGCM(key).decrypt(nonce(domain, counter), sealed, associated)
    except InvalidTag:
        raise Damaged("does not authenticate") from None

def check_front(data, object_type):
    """The first eight bytes, which every object has."""
    require(len(data) >= 8 and data[:4] == MAGIC, "is no object of a repository")
    version, found, suite = struct.unpack("<HBB", data[4:8])
    require(version in (1, 2), f"has format version {version}; this program reads versions 1 and 2")
    require(found == object_type, f"is of type {found} and not {object_type}")
    require(suite == 1, f"has suite {suite}, which is reserved")

def read_header(keys, data, object_type, session, ordinal):
    """Section "Header": checks everything that was asked for and the commitment, gives the object's key."""
    require(len(data) >= HEADER_LEN, "is shorter than a header")
    raw = bytes(data[:HEADER_LEN])
    check_front(raw, object_type)
    fields = Reader(raw[8:])
    repository, found_session, found_ordinal, epoch, salt, commitment, sealed_len = fields.unpack("16s16sII32s32sI")
    fields.zeros(12)
    require(repository == keys.repository_id, "belongs to another repository")
    require((found_session, found_ordinal) == (session, ordinal), "was made under another name")
    require(epoch == 0, f"has key epoch {epoch}, which is reserved")
    key = keys.object_key(object_type, salt)
    require(keyed_hash(key, b"commit") == commitment, "key commitment does not match")
    return Header(raw, sealed_len, key)

def open_small_object(keys, data, object_type, session, ordinal=0):
    """Section "Small sealed objects": MAC, then header, then body."""
    require(HEADER_LEN + TAG_LEN + 32 <= len(data) <= SMALL_OBJECT_MAX, f"has {len(data)} bytes")
    require(keys.mac(data[:-32]) == data[-32:], "MAC does not match")
    header = read_header(keys, data, object_type, session, ordinal)
    require(header.sealed_len == len(data) - HEADER_LEN - 32, "sealed length does not match")
    return unseal(header.key, DOMAIN_BODY, 0, data[HEADER_LEN:-32], header.raw)

def parse_config(data):
    check_front(data, TYPE_CONFIG)
    require(len(data) == CONFIG_LEN, f"has {len(data)} bytes")
    require(plain_hash(data[:192]) == data[192:], "checksum does not match")
    fields = Reader(data[8:160])
    repository_id, encrypted, chunker = fields.take(16), fields.u8(), fields.u8()
    no_similarity, zero = fields.unpack("BB")
    require(zero == 0 and no_similarity <= (data[4] == 2), "reserved bytes are not zero")
    low, target, high, region, container, inline_max = fields.unpack("6I")
    recipe_rule, tree_rule, (node_bytes, _made_at) = fields.unpack("3I"), fields.unpack("3I"), fields.unpack("Iq")
    master_key = fields.take(32)
    fields.zeros(40)
    require(encrypted in (0, 1), "says neither encrypted nor unencrypted")
    require(not (encrypted and any(master_key)), "is encrypted and yet has a key in clear")
    require(chunker in (1, 2), f"has unknown chunker {chunker}")
    require(64 <= low <= high <= 8 << 20 and 64 <= target, "chunk sizes are outside of their limits")
    require(chunker == 1 or low == target == high, "fixed chunks are of several sizes")
    step = 1 << max(container.bit_length() - 6, 0)
    require(64 << 10 <= container <= 64 << 20 and container % step == 0, "container bytes are outside of their limits")
    require(4 << 10 <= region <= 8 << 20, "region bytes are outside of their limits")
    require(2 * max(region, high) <= container, "regions or chunks are larger than half a container")
    require(1 <= inline_max <= 4096 and 256 * inline_max <= container, "recipe inline max is outside its limits")
    for least, target, most in (recipe_rule, tree_rule):
        require(2 <= least <= most <= LIST_MAX and 1 <= target <= most, "a cut rule is outside of its limits")
    require(256 * recipe_rule[2] <= container, "the recipe cut rule is outside of its limits")
    require(1024 <= node_bytes and 16 * node_bytes <= container, "tree node bytes are outside of their limits")
    return Config(repository_id, encrypted, container, max(region, high, container // 2), master_key, data)

def open_slot(data, repository_id, slot_id, password):
    """The master key, or None if the password is not this slot's."""
    check_front(data, TYPE_SLOT)
    require(len(data) >= 168 and plain_hash(data[:-32]) == data[-32:], "checksum does not match")
    fields = Reader(data[8:-32])
    found_repository, found_slot, kind = fields.unpack("16s16sB")
    fields.zeros(3)
    epoch, made_at, memory, passes, lanes, salt, commitment, sealed_len = fields.unpack("IqIII32s32sI")
    require(found_repository == repository_id, "belongs to another repository")
    require(found_slot == slot_id, "was made under another name")
    require(kind == 1 and epoch == 0, f"has kind {kind} and key epoch {epoch}, which is reserved")
    require(48 <= sealed_len <= 4096, f"has a body of {sealed_len} bytes")
    sealed = fields.take(sealed_len)
    if data[4] == 2:
        (label_len,) = fields.unpack("I")
        require(1 <= label_len <= 4096, f"has a label of {label_len} bytes")
        fields.take(label_len)
    fields.end()
    require(1 <= lanes <= 64 and 1 <= passes <= 32 and 8 * lanes <= memory <= 4_194_304, "Argon2 limits are exceeded")
    derived = argon2id(password, salt, memory, passes, lanes)
    wrapping_key = derive_key("onefold v1 key slot", derived + repository_id + slot_id)
    if keyed_hash(wrapping_key, b"commit") != commitment:
        return None
    associated = repository_id + slot_id + salt + commitment + struct.pack("<Iq", epoch, made_at)
    return Reader(unseal(wrapping_key, DOMAIN_SLOT, 0, sealed, associated)).take(32)

def parse_fields(body, known, many):
    """Section "Sessions, commits": `{tag: [value, ...]}`; unknown tags from 128 on are passed over."""
    fields, found = Reader(body), {}
    while fields.left():
        tag, value = fields.u8(), fields.string(FIELD_MAX)
        require(tag in known or tag >= 128, f"has unknown field {tag}")
        require(tag in many or tag not in found, f"field {tag} stands twice")
        if tag in known:
            found.setdefault(tag, []).append(value)
    return found

def parse_commit(body, session, stored_hash):
    fields = parse_fields(body, set(range(1, 15)), {8, 9, 10, 14})

    def one(tag, parse, default):
        reader = Reader(fields.get(tag, [b""])[0])
        value = parse(reader) if tag in fields else default
        reader.end()
        return value

    kind, tree = one(1, Reader.u8, None), one(4, lambda r: r.take(32), None)
    require(kind in (1, 2, 3), f"has kind {kind}")
    require(kind != 1 or tree, "is a snapshot without a tree")
    require(all(len(value) == 48 for value in fields.get(14, [])), "a head is not 48 bytes long")
    heads = [(value[:16], value[16:]) for value in fields.get(14, [])]
    # What is not used is checked all the same.
    began, _clock = one(2, Reader.time_ns, 0), one(3, Reader.time_ns, 0)
    one(7, lambda r: (r.varint(32), r.varint(32)), None)
    one(11, lambda r: r.take(16), None)
    one(13, lambda r: (r.time_ns(), [r.varint() for _ in range(12)]), None)
    texts = {tag: [text(value) for value in fields.get(tag, [])] for tag in (5, 6, 9, 10, 12)}
    return Commit(session, kind, began, tree, "".join(texts[5]), fields.get(8, []), heads, stored_hash)

def parse_bases(fields):
    """Depth and bases of a region, and the bytes that hold them."""
    depth, count = fields.unpack("BB")
    require(count <= BASES_MAX and (1 <= depth <= DEPTH_MAX if count else depth == 0), "a region has impossible bases")
    bases, raw = [], struct.pack("<BB", depth, count)
    for _ in range(count):
        container_id, (number, run_count) = fields.take(20), fields.unpack("IB")
        require(run_count <= RUNS_MAX, "a base has too many runs of chunks")
        runs, end = [fields.unpack("HH") for _ in range(run_count)], -1
        raw += container_id + struct.pack("<IB", number, run_count)
        for first, length in runs:
            require(end < first and 0 < length and first + length <= 0xFFFF, "a base has impossible runs of chunks")
            end, raw = first + length, raw + struct.pack("<HH", first, length)
        bases.append((container_id, number, runs))
    require(len({base[:2] for base in bases}) == count, "a region has a base twice")
    require(sum(not runs for _, _, runs in bases) <= WHOLE_BASES_MAX, "a region has too many whole bases")
    return depth, bases, raw

def parse_directory(plain, version, is_data, has_fingerprints, regions_at, region_limit):
    fields = Reader(plain)
    region_count, count = fields.unpack("II")
    base_count, sample_count, width = fields.unpack("IIB") if version == 2 else (0, 0, 4)
    require(region_count <= 4096 and count <= LIST_MAX, "its directory is too long")
    require(1 <= width <= 4, "its lengths have an impossible width")
    chunk_len = 32 * has_fingerprints + (width if is_data else 1 + 2 * width)
    require((15 if version == 2 else 13) * region_count <= fields.left(), "its directory has the wrong length")
    require(has_fingerprints or not sample_count, "its back directory has samples")
    bases_of = parse_bases if version == 2 else lambda *_: NO_BASES
    heads = [(fields.unpack("IIBI"), bases_of(fields)) for _ in range(region_count)]
    require(sum(head[3] for head, _ in heads) == count, "its regions do not add up to its chunks")
    require(sum(len(bases) for _, (_, bases, _) in heads) == base_count, "its bases are not those announced")
    require(fields.left() == chunk_len * count + SAMPLE_LEN * sample_count, "its directory has the wrong length")
    regions = []
    for (sealed_len, plain_len, compression, chunks_in_region), bases in heads:
        require(plain_len <= region_limit, "a region is too long")
        require(TAG_LEN <= sealed_len <= plain_len + TAG_LEN, "a region has a wrong sealed length")
        require(compression <= 3, f"a region has unknown compression {compression}")
        require((compression == 3) == bool(bases[1]), "bases and compression of a region contradict each other")
        chunks, offset = [], 0
        for _ in range(chunks_in_region):
            fingerprint = fields.take(32) if has_fingerprints else None
            kind, hints_len = (KIND_DATA, 0) if is_data else (fields.u8(), fields.length(width))
            length = fields.length(width)
            require(is_data or kind in (KIND_TREE, KIND_RECIPE), f"a chunk is of unknown kind {kind}")
            require(length >= max(1, hints_len), "a chunk is shorter than its hints")
            chunks.append(ChunkPlace(fingerprint, kind, hints_len, offset, length))
            offset += length
        require(offset == plain_len, "chunks do not add up to their region")
        regions.append(Region(regions_at, sealed_len, plain_len, compression, chunks, bases))
        regions_at += sealed_len
    last = b""
    for _ in range(sample_count):
        number, sample = *fields.unpack("H"), fields.take(SAMPLE_LEN - 2)
        order = struct.pack(">H", number) + sample[::-1]
        require(number < region_count and last <= order, "its samples are out of order")
        last = order
    return regions

def parse_trailer(data):
    magic, *numbers, zero, checksum, crc, zero_too = Reader(data[-TRAILER_LEN:]).unpack("4s5I32s2I")
    require(magic == TRAILER_MAGIC and zero == zero_too == 0, "has no trailer")
    require(crc == crc32c(data[-TRAILER_LEN:][:56]), "trailer checksum does not match")
    return Trailer(*numbers, checksum)

def decompress(stored, compression, plain_len, prefix=b""):
    """Gives exactly `plain_len` bytes and never takes memory for much more."""
    if compression == 0:
        plain = stored
    elif compression in (1, 3):
        raw = zstandard.DICT_TYPE_RAWCONTENT
        before = zstandard.ZstdCompressionDict(prefix, dict_type=raw) if compression == 3 else None
        # In small pieces, so that a frame that lies about its size is found out early.
        frame, out, size = zstandard.ZstdDecompressor(dict_data=before).decompressobj(), [], 0
        for at in range(0, len(stored), 1024):
            require(not frame.eof, "a region has more than one frame")
            out.append(frame.decompress(stored[at : at + 1024]))
            size += len(out[-1])
            require(size <= plain_len, "a region is longer than its directory says")
        require(frame.eof and not frame.unused_data, "a region is not one whole frame")
        plain = b"".join(out)
    else:
        plain = lz4.block.decompress(stored, uncompressed_size=plain_len)
    require(len(plain) == plain_len, "a region has another length than its directory says")
    return plain

def padme(length):
    exponent = length.bit_length() - 1
    step = 1 << max(exponent - exponent.bit_length(), 0)
    return -(-length // step) * step

def parse_hints(data, reference_count):
    """One container id or None for each reference."""
    if not data:
        return [None] * reference_count
    fields = Reader(data)
    containers = [fields.take(20) for _ in range(fields.count(len(data), 20))]
    hints = []
    while fields.left():
        count, number = fields.varint(), fields.varint()
        require(count <= reference_count - len(hints), "hints are for too many references")
        require(number <= len(containers), "a hint names no container")
        hints += [containers[number - 1] if number else None] * count
    require(len(hints) == reference_count, "hints are for too few references")
    return hints

def usable_hints(data, reference_count):
    """Hints that are not as they must be are passed over, since chunks are found without them too."""
    try:
        return parse_hints(data, reference_count)
    except Damaged as error:
        warn(f"hints: {error}; they are not used")
        return [None] * reference_count

def parse_recipe(fields):
    level = fields.u8()
    require(level <= LEVEL_MAX, f"a recipe has level {level}")
    items, total = [], 0
    for _ in range(fields.count(LIST_MAX)):
        length, kind = fields.varint(), KIND_RECIPE
        if level == 0:
            length, kind = length >> 1, None if length & 1 else KIND_DATA
        require(length >= 1, "an item of a recipe stands for nothing")
        require(kind != KIND_DATA or length < 1 << 32, "a chunk in a recipe is too long")
        items.append(Item(kind, length, fields.take(32) if kind else None))
        total += length
        require(total <= STREAM_MAX, "a recipe stands for too many bytes")
    return RecipeList(level, items, total, sum(item.kind == KIND_DATA for item in items))

def check_name(name):
    require(re.fullmatch(rb"[^/\0]{1,255}", name) and name not in (b".", b".."), f"name {name!r} is not allowed")
    return name

def parse_entry(fields):
    name, kind, flags = check_name(fields.string()), fields.u8(), fields.u8()
    require(FILE <= kind <= BLOCK_DEVICE, f"entry {name!r} is of unknown kind {kind}")
    require(flags < 8, f"entry {name!r} has unknown flags {flags}")
    mode, uid, gid, mtime_ns = fields.varint(), fields.varint(32), fields.varint(32), fields.time_ns()
    require(mode <= 0o7777, f"entry {name!r} has mode {mode:o}")
    xattrs, link, content, recipe = [], None, None, None
    if flags & 1:
        for _ in range(fields.count(fields.left(), 3)):
            key, value = fields.string(255), fields.string()
            require(key and b"\0" not in key, f"entry {name!r} has an attribute without a proper name")
            xattrs.append((key, value))
    if flags & 2:
        *link, _link_count = fields.varint(), fields.varint(), fields.varint()
    if kind == FILE:
        _ctime, _inode, recipe = fields.time_ns(), fields.varint(), parse_recipe(fields)
    elif kind == DIRECTORY:
        content = fields.take(32)
    elif kind == SYMLINK:
        content = fields.string(65_536)
        require(content and b"\0" not in content, f"symbolic link {name!r} has a target that is not allowed")
    else:
        content = fields.varint()
        require(kind in (CHAR_DEVICE, BLOCK_DEVICE) or content == 0, f"entry {name!r} has a device number")
    if flags & 4:
        fields.string()
    return Entry(name, kind, mode, uid, gid, mtime_ns, xattrs, link, content, recipe, [])

def parse_node(contents, hints):
    """`(level, entries or children)`; an entry gets the hints of its own recipe."""
    fields = Reader(contents)
    level = fields.u8()
    require(level <= LEVEL_MAX, f"has level {level}")
    if level:
        count = fields.count(LIST_MAX, 35)
        items = [Child(fields.take(32), fields.varint(), check_name(fields.string())) for _ in range(count)]
        require(items, "has neither entries nor children")
        usable_hints(hints, 0)
    else:
        items = [parse_entry(fields) for _ in range(fields.count(LIST_MAX, 9))]
        counts = [entry.recipe.chunk_count if entry.recipe else 0 for entry in items]
        all_hints = usable_hints(hints, sum(counts))
        for entry, count in zip(items, counts):
            entry.hints.extend(all_hints[:count])
            del all_hints[:count]
    fields.end()
    require(all(a.name < b.name for a, b in zip(items, items[1:])), "its names do not ascend")
    return level, items

class Container:
    """One container whose directory was read. Regions are read when they are asked for."""

    def __init__(self, repository, listed):
        is_data, name, path, session, ordinal, checksum = listed
        self.name, self.path, self.keys, self.id = name, path, repository.keys, session + struct.pack("<I", ordinal)
        self.is_data, data = is_data, path.read_bytes()
        # What checksums find is a warning: whether a chunk can be used is decided by its tag and its fingerprint.
        if plain_hash(data) != checksum:
            warn(f"{name}: checksum in the name does not match")
        require(len(data) <= repository.config.container_bytes, "is larger than a container")
        self.header = read_header(self.keys, data, TYPE_DATA if is_data else TYPE_META, session, ordinal)
        regions_at, limit = HEADER_LEN + self.header.sealed_len, repository.config.region_limit
        version = self.header.raw[4]
        try:
            plain = unseal(self.header.key, DOMAIN_FRONT, 0, data[HEADER_LEN:regions_at], self.header.raw)
            self.regions = parse_directory(plain, version, is_data, True, regions_at, limit)
            self.check_layout(data)
        except Damaged as error:
            warn(f"{name}: front directory: {error}; trying the back directory")
            trailer = parse_trailer(data)
            back_end = trailer.back_offset + trailer.back_len
            plain = unseal(self.header.key, DOMAIN_BACK, 0, data[trailer.back_offset : back_end], self.header.raw)
            self.regions = parse_directory(plain, version, is_data, False, regions_at, limit)
            self.name_chunks(repository)
        self.places = {}
        for number, region in enumerate(self.regions):
            for chunk in region.chunks:
                self.places.setdefault((chunk.kind, chunk.fingerprint), []).append((self, number, chunk))

    def check_layout(self, data):
        """Compares trailer, padding and back directory with the front; a difference loses nothing, so it is told."""
        try:
            trailer = parse_trailer(data)
            lengths = (self.header.sealed_len, sum(region.sealed_len for region in self.regions))
            require((trailer.front_len, trailer.regions_len) == lengths, "trailer and front directory differ")
            require(trailer.checksum == plain_hash(data[:-40]), "checksum in the trailer does not match")
            require(trailer.back_offset + trailer.back_len + TRAILER_LEN == len(data), "back directory is displaced")
            padding = data[HEADER_LEN + sum(lengths) : trailer.back_offset]
            require(len(data) == padme(len(data) - len(padding)) and not any(padding), "is not padded as it must be")
            unseal(self.header.key, DOMAIN_BACK, 0, data[trailer.back_offset : -TRAILER_LEN], self.header.raw)
        except Damaged as error:
            warn(f"{self.name}: {error}")

    def name_chunks(self, repository):
        """Computes the fingerprints that a back directory leaves out."""
        for number, region in enumerate(self.regions):
            try:
                plain = repository.region(self, number)
            except Damaged as error:
                warn(str(error))
                continue
            for index, chunk in enumerate(region.chunks):
                contents = plain[chunk.offset : chunk.offset + chunk.length - chunk.hints_len]
                region.chunks[index] = chunk._replace(fingerprint=self.keys.fingerprint(chunk.kind, contents))

    def open_region(self, number, repository):
        region = self.regions[number]
        prefix = b"".join(repository.base(self, number, *base) for base in region.bases[1])
        longest = WHOLE_BASES_MAX * repository.config.region_limit
        require(len(prefix) <= longest, f"{self.name}: region {number}: its bases are too long")
        with open(self.path, "rb") as file:
            sealed = os.pread(file.fileno(), region.sealed_len, region.offset)
        associated = self.header.raw + struct.pack("<BI", region.compression, region.plain_len)
        associated += region.bases[2] if self.header.raw[4] == 2 else b""
        try:
            stored = unseal(self.header.key, DOMAIN_REGION, number, sealed, associated)
            return decompress(stored, region.compression, region.plain_len, prefix)
        except (Damaged, zstandard.ZstdError, lz4.block.LZ4BlockError) as error:
            raise Damaged(f"{self.name}: region {number}: {error}") from None

class Repository:
    def __init__(self, path, password):
        self.path = Path(path)
        self.config = self.read_config()
        master_key = self.find_master_key(password) if self.config.encrypted else self.config.master_key
        self.keys = Keys(master_key, self.config.repository_id)
        require(self.keys.mac(self.config.raw[:160]) == self.config.raw[160:192], "config: MAC does not match")
        most = max(1, REGION_CACHE_BYTES // self.config.region_limit)
        self.region = functools.lru_cache(most)(lambda container, number: container.open_region(number, self))
        # Container id: [(is data, name, path, session, ordinal, checksum), ...].
        self.listed = {}
        for path in sorted(self.path.glob("containers/*/*")):
            name = path.relative_to(self.path).as_posix()
            if match := CONTAINER_PATH.fullmatch(name):
                session, ordinal, checksum = bytes.fromhex(match[1]), int(match[3], 16), bytes.fromhex(match[4])
                about = (match[2] == "d", name, path, session, ordinal, checksum)
                self.listed.setdefault(session + struct.pack("<I", ordinal), []).append(about)

    def read_config(self):
        for name in ("config", "config.copy"):
            try:
                return parse_config((self.path / name).read_bytes())
            except (OSError, Damaged) as error:
                warn(f"{name}: {error}")
        raise Damaged("config: neither copy can be read")

    def find_master_key(self, password):
        tried_ids = set()
        for path in sorted(self.path.glob("keys/*")):
            match = SLOT_NAME.fullmatch(path.name)
            if match and match[1] not in tried_ids:
                try:
                    slot_id = bytes.fromhex(match[1])
                    master_key = open_slot(path.read_bytes(), self.config.repository_id, slot_id, password)
                    if master_key:
                        return master_key
                    tried_ids.add(match[1])
                except (OSError, Damaged) as error:
                    warn(f"keys/{path.name}: {error}")
        raise Damaged("keys: no slot opens with this password")

    @functools.cache
    def open_containers(self, container_id):
        """The containers of that id that can be read: one, if nobody made a second under its ordinal."""
        opened = []
        for listed in self.listed.get(container_id, []):
            try:
                opened.append(Container(self, listed))
            except (OSError, Damaged) as error:
                warn(f"{listed[1]}: {error}")
        return opened

    def base(self, container, number, base_id, base_number, runs):
        """The plaintext of a base, or of runs of its chunks. Depths fall from region to base, so that this ends."""
        depth, problem = container.regions[number].bases[0], "does not exist"
        for opened in self.open_containers(base_id) if base_id != container.id else []:
            if base_number < len(opened.regions) and opened.is_data == container.is_data:
                if opened.regions[base_number].bases[0] >= depth:
                    problem = "is as deep as itself"
                    continue
                chunks = opened.regions[base_number].chunks
                if all(first + length <= len(chunks) for first, length in runs):
                    plain = self.region(opened, base_number)
                    parts = [chunks[first : first + length] for first, length in runs] if runs else [chunks]
                    return b"".join(plain[part[0].offset : part[-1].offset + part[-1].length] for part in parts)
                problem = "lacks chunks that are named"
        base = f"region {base_number} of container {base_id.hex()}"
        raise Damaged(f"{container.name}: region {number}: its base, {base}, {problem}")

    @functools.cache
    def places(self, is_data):
        """Where chunks are: `{(kind, fingerprint): [(container, number of the region, place in it), ...]}`."""
        found = {}
        for container_id, listed in self.listed.items():
            if any(about[0] == is_data for about in listed):
                for container in self.open_containers(container_id):
                    for key, places in container.places.items():
                        found.setdefault(key, []).extend(places)
        return found

    def places_of(self, kind, fingerprint, hint):
        """By the hint, then by the directories of all containers."""
        for container in self.open_containers(hint):
            yield from container.places.get((kind, fingerprint), [])
        yield from self.places(kind == KIND_DATA).get((kind, fingerprint), [])

    def read(self, kind, fingerprint, hint=None):
        """`(contents, hints)` of a chunk, from the first place where it opens and has that fingerprint."""
        for container, number, chunk in self.places_of(kind, fingerprint, hint):
            try:
                plain = self.region(container, number)
            except Damaged as error:
                warn(str(error))
                continue
            split = chunk.offset + chunk.length - chunk.hints_len
            contents = plain[chunk.offset : split]
            if self.keys.fingerprint(kind, contents) == fingerprint:
                return contents, plain[split : chunk.offset + chunk.length]
            warn(f"{container.name}: region {number}: a chunk does not have its fingerprint")
        raise Damaged(f"{KIND_NAMES[kind]} chunk {fingerprint.hex()} is in no container that can be read")

    def small_objects(self, directory, object_type, parse):
        """`{session: what parse makes of it}` of all that open."""
        found = {}
        for path in sorted(self.path.glob(f"{directory}/*")):
            try:
                if SESSION_NAME.fullmatch(path.name):
                    data, session = path.read_bytes(), bytes.fromhex(path.name)
                    body = open_small_object(self.keys, data, object_type, session)
                    found[session] = parse(body, session, plain_hash(data))
            except (OSError, Damaged) as error:
                warn(f"{directory}/{path.name}: {error}")
        return found

    def snapshots(self):
        """The snapshots that are not forgotten, oldest first."""
        commits = self.small_objects("commits", TYPE_COMMIT, parse_commit)
        # Nobody must know what stands in the body of a forget object.
        forgotten = self.small_objects("forget", TYPE_FORGET, lambda *_: True)
        for commit in commits.values():
            for session, stored_hash in commit.heads:
                if session not in commits or commits[session].stored_hash != stored_hash:
                    warn(f"commits/{session.hex()}: missing or exchanged, says {commit.session.hex()}")
        kept = [c for c in commits.values() if c.kind == 1 and c.session not in forgotten]
        return sorted(kept, key=lambda c: (c.began, c.session))

    def stream(self, recipe, hints):
        """The bytes of a file piece by piece; a hole is its length."""
        hints = iter(hints)
        for item in recipe.items:
            if item.kind is None:
                yield item.length
            elif item.kind == KIND_DATA:
                data = self.read(KIND_DATA, item.fingerprint, next(hints))[0]
                require(len(data) == item.length, f"data chunk {item.fingerprint.hex()} has another length")
                yield data
            else:
                contents, segment_hints = self.read(KIND_RECIPE, item.fingerprint)
                fields = Reader(contents)
                segment, where = parse_recipe(fields), f"recipe chunk {item.fingerprint.hex()}"
                fields.end()
                require(segment.level + 1 == recipe.level, f"{where} is of level {segment.level}")
                require(segment.length == item.length, f"{where} has another length than was said")
                yield from self.stream(segment, usable_hints(segment_hints, segment.chunk_count))

    def entries(self, fingerprint, level=None, first_name=None):
        """The entries below a node, in order."""
        contents, hints = self.read(KIND_TREE, fingerprint)
        try:
            found_level, items = parse_node(contents, hints)
            require(level is None or level == found_level, f"is of level {found_level}, not {level}")
            require(first_name is None or first_name == items[0].name, "has another first name")
        except (Damaged, IndexError) as error:
            raise Damaged(f"tree chunk {fingerprint.hex()}: {error}") from None
        if not found_level:
            yield from items
            return
        for child in items:
            count = 0
            for count, entry in enumerate(self.entries(child.fingerprint, found_level - 1, child.name), 1):
                yield entry
            if count != child.entry_count:
                warn(f"tree chunk {fingerprint.hex()}: says {child.entry_count} entries where there are {count}")

class Restorer:
    """Makes every entry where nothing was, by its name in an open directory, so that no link is ever followed."""

    def __init__(self, repository, target):
        self.repository, self.lost, self.links = repository, 0, {}
        # Root of a user namespace may make neither devices nor any owner.
        uid_map = Path("/proc/self/uid_map").read_text().split()
        self.is_root = os.geteuid() == 0 and uid_map == ["0", "0", "4294967295"]
        target.mkdir(parents=True, exist_ok=True)
        require(not any(target.iterdir()), f"{target} is not empty")
        self.root = os.open(target, os.O_RDONLY | os.O_DIRECTORY)

    def lose(self, path, error):
        self.lost += 1
        print(f"restore.py: {os.fsdecode(path)}: {error}", file=sys.stderr)

    def directory(self, fingerprint, parent, path=b""):
        last = b""
        try:
            # A node has checked its own names, here those of all nodes together are: none may be made twice.
            for entry in self.repository.entries(fingerprint):
                require(last < entry.name, "names do not ascend")
                last = entry.name
                try:
                    self.entry(entry, parent, path + b"/" + last)
                except (OSError, OverflowError, Damaged) as error:
                    self.lose(path + b"/" + last, error)
        except Damaged as error:
            self.lose(path or b"/", error)

    def entry(self, entry, parent, path):
        # Equal numbers alone do not make an inode: see "Hard links" in docs/format.md.
        key = blake3.blake3(repr(entry._replace(name=b"", hints=[])).encode()).digest() if entry.link else None
        if entry.link and entry.kind != DIRECTORY and key in self.links:
            self.link(self.links[key], entry.name, parent)
            return
        if entry.kind == DIRECTORY:
            os.mkdir(entry.name, 0o700, dir_fd=parent)
            inside = os.open(entry.name, OPEN_DIRECTORY, dir_fd=parent)
            try:
                self.directory(entry.content, inside, path)
            finally:
                os.close(inside)
        elif entry.kind == FILE:
            self.file(entry, parent)
        elif entry.kind in (CHAR_DEVICE, BLOCK_DEVICE) and not self.is_root:
            warn(f"{os.fsdecode(path)}: only root can make devices")
            return
        elif entry.kind == SYMLINK:
            os.symlink(entry.content, entry.name, dir_fd=parent)
        else:
            os.mknod(entry.name, NODE_MODES[entry.kind] | 0o600, device_number(entry.content), dir_fd=parent)
        if entry.link:
            self.links[key] = path
        self.attributes(entry, parent, path)

    def link(self, path, name, parent):
        *directories, first_name = path.split(b"/")[1:]
        at = os.dup(self.root)
        try:
            for directory in directories:
                below = os.open(directory, OPEN_DIRECTORY, dir_fd=at)
                os.close(at)
                at = below
            os.link(first_name, name, src_dir_fd=at, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(at)

    def file(self, entry, parent):
        with open(os.open(entry.name, CREATE_FILE, 0o600, dir_fd=parent), "wb", buffering=1 << 20) as file:
            try:
                for piece in self.repository.stream(entry.recipe, entry.hints):
                    if isinstance(piece, int):
                        file.seek(piece, io.SEEK_CUR)
                    else:
                        file.write(piece)
                require(file.tell() == entry.recipe.length, "has another length than its recipe says")
            finally:
                # A hole at the end is made by the length alone.
                file.truncate(file.tell())

    def attributes(self, entry, parent, path):
        """Owner first, which clears set-id bits and capabilities; times last, which everything else changes."""
        if self.is_root:
            os.chown(entry.name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        here = b"/proc/self/fd/%d/" % parent + entry.name
        for name, value in entry.xattrs:
            try:
                os.setxattr(here, name, value, follow_symlinks=False)
            except OSError as error:
                self.lose(path, f"extended attribute {os.fsdecode(name)}: {error.strerror}")
        if entry.kind != SYMLINK:
            os.chmod(here, entry.mode)
        os.utime(entry.name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

def device_number(r):
    major = (r >> 8 & 0xFFF) | (r >> 32 & ~0xFFF)
    minor = (r & 0xFF) | (r >> 12 & ~0xFF)
    return os.makedev(major & 0xFFFFFFFF, minor & 0xFFFFFFFF) if r else 0

def main():
    parser = argparse.ArgumentParser(description="restores a Onefold repository of format 1 or 2")
    parser.add_argument("repository", metavar="REPO")
    parser.add_argument("--password-file")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--snapshot", metavar="ID|latest")
    parser.add_argument("--target", type=Path)
    options = parser.parse_args()
    if not options.list and not (options.snapshot and options.target):
        parser.error("needs --list or --snapshot and --target")
    # One open directory and a few calls for each level of a deep tree.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    sys.setrecursionlimit(100_000)
    try:
        password = os.environb.get(b"ONEFOLD_PASSWORD", b"")
        if options.password_file:
            password = Path(options.password_file).read_bytes().split(b"\n")[0].removesuffix(b"\r")
        repository = Repository(options.repository, password)
        snapshots, name = repository.snapshots(), options.snapshot
        if options.list:
            for s in snapshots:
                began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(s.began // 1_000_000_000))
                print(s.session.hex(), began, s.host, *map(os.fsdecode, s.paths))
            return 0 if not warnings else 1
        found = [s for s in snapshots if s.session.hex().startswith(name)] if name != "latest" else snapshots[-1:]
        require(len(found) == 1, f"{len(found)} snapshots are {name}")
        restorer = Restorer(repository, options.target)
        restorer.directory(found[0].tree, restorer.root)
        return 0 if not restorer.lost else 1
    except (Damaged, OSError) as error:
        print(f"restore.py: {error}", file=sys.stderr)
        return 1

if __name__ == "__main__":
    sys.exit(main())
