"""Random changes to files: of bytes, and of what a format is made of, so that checksums and lengths still fit."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import yaml
from safetensors.torch import load, save

from candapt.storage.files import digest

Mutator = Callable[[bytes, Random], bytes]

INTEGERS = (0, 1, -1, 2, 7, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64)
"""Numbers at which readers go wrong."""
TEXTS = (
    *(
        "",
        "x",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "hf_hub:a/b",
        "local-dir:/etc",
        "resnet18",
        "auto",
        "\0",
        "é\udce9",
    ),
    *("<script>alert(1)</script>", "\x1b[2J", "1e400", "nan", "a\nb", "*a", "-", "can", "dann", "A" * 5000),
)
"""Texts that mean something somewhere."""
NUMBERS = (*INTEGERS, 10**30, 1e308, -1e-308, 0.5, float("nan"), float("inf"))
PLAIN = (*TEXTS, *NUMBERS, None, True, False)


def plain(random: Random) -> Any:
    """A value as JSON and YAML have them."""
    kind = random.randrange(8)
    if kind == 0:
        return [random.choice(PLAIN) for _ in range(random.choice((0, 1, 3, 300)))]
    if kind == 1:
        return {str(random.choice(PLAIN)): random.choice(PLAIN) for _ in range(random.randrange(4))}
    if kind == 2:
        return _nested(random.choice((5, 50, 500)))
    return random.choice(PLAIN)


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def change_bytes(data: bytes, random: Random) -> bytes:
    """One to eight changes anywhere."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        at = random.randrange(len(changed) + 1)
        # Most of what steers a reader stands at the beginning.
        at = min(at, random.randrange(256)) if random.random() < 0.5 else at
        length = random.choice((1, 2, 4, 8, 16, 64, 1024))
        kind = random.randrange(8)
        if kind == 0:
            changed[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            changed[at:at] = random.randbytes(length)
        elif kind == 3:
            del changed[at : at + length]
        elif kind == 4:
            changed[at:at] = changed[at : at + length] * random.choice((1, 2, 100))
        elif kind == 5:
            del changed[at:]
        elif kind == 6:
            size = random.choice((1, 2, 4, 8))
            number = random.choice(INTEGERS) % 2 ** (8 * size)
            changed[at : at + size] = number.to_bytes(size, random.choice(("little", "big")))
        else:
            changed[at : at + random.choice((0, length))] = random.choice(TEXTS).encode("utf-8", "surrogateescape")
    return bytes(changed)


def change_tree(tree: Any, random: Random) -> Any:
    """Replace, remove, repeat or add one node of nested lists and mappings, in place; returns the tree."""
    parent, places = tree, []
    while isinstance(parent, dict | list) and parent:
        key = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        places.append((parent, key))
        parent = parent[key]
    if not places:
        return plain(random)
    parent, key = random.choice(places)
    kind = random.randrange(5)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.extend([parent[key]] * random.choice((1, 5, 1000)))
    elif kind == 2 and isinstance(parent, dict):
        parent[str(random.choice(PLAIN))] = plain(random)
    else:
        parent[key] = plain(random)
    return tree


def _changed_tree(tree: Any, random: Random) -> Any:
    for _ in range(random.choice((1, 1, 2, 4))):
        tree = change_tree(tree, random)
    return tree


def change_json(data: bytes, random: Random) -> bytes:
    """Change values of a JSON file."""
    return json.dumps(_changed_tree(json.loads(data), random)).encode()


def change_yaml(data: bytes, random: Random) -> bytes:
    """Change values of a YAML file."""
    tree = _changed_tree(yaml.safe_load(data), random)
    return yaml.safe_dump(tree, allow_unicode=random.random() < 0.5).encode("utf-8", "surrogatepass")


def change_safetensors(data: bytes, random: Random) -> bytes:
    """Change names, types, shapes or places in the table of contents, or the metadata; the length is put right."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(_changed_tree(json.loads(data[8 : 8 + size]), random)).encode()
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def change_checkpoint(data: bytes, random: Random) -> bytes:
    """Change the state that a checkpoint tells, and make the checksum for it."""
    tensors, size = load(data), int.from_bytes(data[:8], "little")
    state = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["state"])
    text = json.dumps(_changed_tree(state, random))
    return save(tensors, {"state": text, "sha256": digest(tensors, text)})


def change_archive(data: bytes, random: Random) -> bytes:
    """Change, repeat, drop or compress parts of a zip archive; the checksums are put right."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        members = old.infolist()
        chosen = random.choice(members)
        method = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        for member in members:
            content = old.read(member)
            if member is chosen:
                kind = random.randrange(6)
                if kind == 0:
                    continue
                if kind == 1:
                    new.writestr(member.filename, content, method)
                elif kind == 2:
                    content = b"\0" * random.choice((0, 1, 10**6, 10**7))
                else:
                    content = change_bytes(content, random)
            new.writestr(member.filename, content, method)
    return made.getvalue()


def change_array_header(data: bytes, random: Random) -> bytes:
    """Change what the header of an array in an `.npz` file says, at unchanged length."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            if random.random() < 0.5:
                size = int.from_bytes(content[8:10], "little")
                header = content[10 : 10 + size].decode("latin1")
                types = ("<f8", "|O", "<U0", "|S0", "<U9", "|V4", "<m8[s]", "<M8[D]", ">f4", "<c8", "<f2", "|b1", "<i8")
                shapes = (
                    "()",
                    "(3,)",
                    "(-1, 3)",
                    "(-2, -3)",
                    "(0, 5)",
                    f"({2**62}, 4)",
                    "(1, 2, 3, 4, 5)",
                    f"({10**9},)",
                )
                header = header.replace(header.split("'")[3], random.choice(types)) if random.random() < 0.5 else header
                shape = header[header.index("(") : header.index(")") + 1]
                header = header.replace(shape, random.choice(shapes)) if random.random() < 0.5 else header
                text = header.encode("latin1")
                content = content[:8] + struct.pack("<H", len(text)) + text + content[10 + size :]
            new.writestr(member.filename, content)
    return made.getvalue()


def change_png(data: bytes, random: Random) -> bytes:
    """Change, repeat or drop chunks of a PNG file; the checksums are put right. Other images are changed anywhere."""
    if not data.startswith(b"\x89PNG"):
        return change_bytes(data, random)
    chunks, at = [], 8
    while at + 8 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    chosen = random.randrange(len(chunks))
    name, content = chunks[chosen]
    if name == b"IDAT" and random.random() < 0.5:
        content = zlib.compress(change_bytes(zlib.decompress(content), random))
    chunks[chosen : chosen + 1] = random.choice(([], [(name, change_bytes(content, random))], [(name, content)] * 3))
    whole = b"".join(len(c).to_bytes(4, "big") + n + c + zlib.crc32(n + c).to_bytes(4, "big") for n, c in chunks)
    return data[:8] + whole


def mutate(data: bytes, mutators: Sequence[Mutator], random: Random) -> bytes:
    """One changed file; where the format can no longer be taken apart, its bytes are changed."""
    mutator = random.choice(mutators)
    try:
        return mutator(data, random)
    except (ValueError, LookupError, OverflowError, RecursionError, zipfile.BadZipFile, zlib.error, yaml.YAMLError):
        return change_bytes(data, random)
