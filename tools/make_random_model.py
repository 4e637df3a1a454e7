#!/usr/bin/env python3
"""Writes a llama model with random weights as GGUF, for speed measurements where nothing can be downloaded.

usage: make_random_model.py --vocab-from MODEL.gguf --type q4_0|q4_k|q8_0|f16 OUT.gguf
           [--layers 20] [--hidden 2048] [--ff 5632] [--heads 32] [--kv-heads 8] [--context 8192] [--seed 1]

Needs numpy and nothing else. The defaults make 1.003 billion parameters (0.56 GB as q4_0, 1.07 GB as q8_0). The tokenizer's keys
(vocabulary, merges, template) are copied byte for byte from another GGUF file, so that servers load the result; what it says is
noise. Weights are normal with a standard deviation of 1/sqrt(columns), so that activations stay in the range of a real model, and are
quantised like any other. Streams to disk, a few MB at a time; the same arguments give the same bytes. Output head tied to the
embedding; norms f32.
"""
import argparse
import os
import struct
import sys
import zlib

import numpy as np

ALIGN = 32
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
PIECE = 1 << 22  # values made at once


class Reader:
    """Of a GGUF file's key-value part; values come as (type, bytes as in the file)."""

    def __init__(self, file):
        self.file = file

    def take(self, fmt):
        raw = self.file.read(struct.calcsize(fmt))
        if len(raw) != struct.calcsize(fmt):
            raise EOFError("the file ends inside its metadata")
        return struct.unpack(fmt, raw)[0]

    def raw(self, size):
        data = self.file.read(size)
        if len(data) != size:
            raise EOFError("the file ends inside its metadata")
        return data

    def string(self):
        return self.raw(self.take("<Q"))

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            inner, count = self.take("<I"), self.take("<Q")
            if inner in SCALARS:
                self.raw(struct.calcsize(SCALARS[inner]) * count)
            else:
                for _ in range(count):
                    self.skip_value(inner)
            return inner, count
        elif kind in SCALARS:
            self.raw(struct.calcsize(SCALARS[kind]))
        else:
            raise ValueError("unknown GGUF value type %d" % kind)
        return None

    def pairs(self):
        """(key, type, bytes, array length or None)"""
        if self.raw(4) != b"GGUF" or self.take("<I") not in (2, 3):
            raise ValueError("not a GGUF file of version 2 or 3")
        self.take("<Q")
        for _ in range(self.take("<Q")):
            key, kind = self.string().decode(), self.take("<I")
            start = self.file.tell()
            array = self.skip_value(kind)
            end = self.file.tell()
            self.file.seek(start)
            yield key, kind, self.raw(end - start), array[1] if array else None


def tokenizer(path):
    """The bytes of all tokenizer.* pairs, how many, and the size of the vocabulary."""
    out, count, vocab = b"", 0, 0
    with open(path, "rb") as f:
        for key, kind, value, length in Reader(f).pairs():
            if key.startswith("tokenizer."):
                out += text(key) + struct.pack("<I", kind) + value
                count += 1
                vocab = length if key == "tokenizer.ggml.tokens" else vocab
    if not vocab:
        sys.exit("%s: no vocabulary" % path)
    return out, count, vocab


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


# ---- Formats: name -> (GGUF type, file type, values a block, bytes a block, function from (blocks, values) to bytes)

def f16(x):
    return x.astype("<f2").view(np.uint8).reshape(len(x), -1)


def inverse(d):
    return np.divide(1.0, d, out=np.zeros_like(d), where=d != 0)


def q8_0(x):
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    return np.hstack([f16(d), np.rint(x * inverse(d)).astype(np.int8).view(np.uint8)])


def q4_0(x):
    # The value of largest magnitude becomes -8.
    top = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = top / np.float32(-8)
    q = np.clip(np.rint(x * inverse(d)) + 8, 0, 15).astype(np.uint8)
    return np.hstack([f16(d), q[:, :16] | (q[:, 16:] << 4)])


def q4_k(x):
    sub = x.reshape(len(x), 8, 32)
    low = np.maximum(-sub.min(axis=2), 0)  # a weight is d * scale * code - dmin * min
    scale = (sub.max(axis=2) + low) / np.float32(15)
    d, dmin = [(v.max(axis=1, keepdims=True) / np.float32(63)).astype("<f2").astype(np.float32) for v in (scale, low)]
    s, m = [np.clip(np.rint(v * inverse(w)), 0, 63).astype(np.uint8) for v, w in ((scale, d), (low, dmin))]
    step, zero = (d * s)[:, :, None], (dmin * m)[:, :, None]
    q = np.clip(np.rint((sub + zero) * inverse(step)), 0, 15).astype(np.uint8)
    # Twelve bytes of 6-bit scales and mins: the first four of each whole, the high bits of the last four on top of them.
    packed = np.hstack([s[:, :4] | (s[:, 4:] >> 4) << 6, m[:, :4] | (m[:, 4:] >> 4) << 6, (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4])
    nibbles = (q[:, 0::2] | q[:, 1::2] << 4).reshape(len(x), 128)
    return np.hstack([f16(d), f16(dmin), packed, nibbles])


FORMATS = {"f16": (1, 1, 1, 2, f16), "q4_0": (2, 2, 32, 18, q4_0), "q8_0": (8, 7, 32, 34, q8_0), "q4_k": (12, 14, 256, 144, q4_k)}


def tensors(a, vocab, kind):
    """(name, shape with the fastest dimension first, format or None for a norm)"""
    kv, h = a.hidden // a.heads * a.kv_heads, a.hidden
    yield "token_embd.weight", (h, vocab), kind
    for i in range(a.layers):
        b = "blk.%d." % i
        yield b + "attn_norm.weight", (h,), None
        yield b + "attn_q.weight", (h, h), kind
        yield b + "attn_k.weight", (h, kv), kind
        yield b + "attn_v.weight", (h, kv), kind
        yield b + "attn_output.weight", (h, h), kind
        yield b + "ffn_norm.weight", (h,), None
        yield b + "ffn_gate.weight", (h, a.ff), kind
        yield b + "ffn_up.weight", (h, a.ff), kind
        yield b + "ffn_down.weight", (a.ff, h), kind
    yield "output_norm.weight", (h,), None


def tensor_bytes(shape, kind):
    count = int(np.prod(shape, dtype=np.int64))
    return 4 * count if kind is None else count // FORMATS[kind][2] * FORMATS[kind][3]


def write_tensor(out, name, shape, kind, seed):
    if kind is None:
        out.write(np.ones(shape, "<f4").tobytes())
        return
    rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
    block, pack = FORMATS[kind][2], FORMATS[kind][4]
    left = int(np.prod(shape, dtype=np.int64))
    while left:
        count = min(left, PIECE)
        x = rng.standard_normal(count, dtype=np.float32) * np.float32(shape[0] ** -0.5)
        out.write(np.ascontiguousarray(pack(x.reshape(-1, block))).tobytes())
        left -= count


def write(out, a, vocab_pairs, vocab_count, vocab):
    own = [("general.architecture", "llama"), ("general.name", "random"), ("general.file_type", FORMATS[a.type][1]),
           ("llama.block_count", a.layers), ("llama.context_length", a.context), ("llama.embedding_length", a.hidden),
           ("llama.feed_forward_length", a.ff), ("llama.attention.head_count", a.heads), ("llama.attention.head_count_kv", a.kv_heads),
           ("llama.attention.layer_norm_rms_epsilon", 1e-5), ("llama.rope.dimension_count", a.hidden // a.heads),
           ("llama.rope.freq_base", 10000.0), ("llama.vocab_size", vocab)]
    plan = list(tensors(a, vocab, a.type))
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(plan), len(own) + vocab_count))
    out.write(b"".join(pair(*p) for p in own) + vocab_pairs)
    offset = 0
    for name, shape, kind in plan:
        out.write(text(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *shape))
        out.write(struct.pack("<IQ", FORMATS[kind][0] if kind else 0, offset))
        offset += -(-tensor_bytes(shape, kind) // ALIGN) * ALIGN
    for i, (name, shape, kind) in enumerate(plan):
        out.write(b"\0" * (-out.tell() % ALIGN))
        write_tensor(out, name, shape, kind, a.seed)
        if sys.stderr.isatty():
            sys.stderr.write("\r%d of %d tensors" % (i + 1, len(plan)))
    # Readers may expect the last tensor padded as well.
    out.write(b"\0" * (-out.tell() % ALIGN))
    return sum(int(np.prod(s, dtype=np.int64)) for _, s, _ in plan)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--vocab-from", required=True, metavar="MODEL.gguf")
    ap.add_argument("--type", choices=sorted(FORMATS), default="q4_0")
    for flag, value in (("layers", 20), ("hidden", 2048), ("ff", 5632), ("heads", 32), ("kv-heads", 8), ("context", 8192), ("seed", 1)):
        ap.add_argument("--" + flag, type=int, default=value)
    a = ap.parse_args()
    block = FORMATS[a.type][2]
    if a.hidden % block or a.ff % block or a.hidden % a.heads or a.heads % a.kv_heads or a.hidden // a.heads % 2:
        ap.error("hidden and ff must be multiples of %d, hidden of 2 x heads, heads of kv-heads" % block)
    pairs, count, vocab = tokenizer(a.vocab_from)
    part = a.out + ".part"
    with open(part, "wb") as out:
        parameters = write(out, a, pairs, count, vocab)
    os.replace(part, a.out)
    print("%s: %.3f billion parameters, %.2f GB, %s" % (a.out, parameters * 1e-9, os.path.getsize(a.out) * 1e-9, a.type))


if __name__ == "__main__":
    main()
