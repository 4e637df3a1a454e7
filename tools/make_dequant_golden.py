#!/usr/bin/env python3
"""Makes src/quant/testdata/dequant.bin: random blocks of every weight type served, and the floats they stand for
according to the `gguf` Python package (PyPI, MIT), the reference of GGUF's number formats.

    python3 tools/make_dequant_golden.py src/quant/testdata/dequant.bin

Little-endian; per type: u32 GGUF type number, u32 columns, u32 bytes, the row's bytes, columns float32.
"""
import struct
import sys

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
COLUMNS = 512


def main() -> None:
    rng = np.random.default_rng(20261129)
    with open(sys.argv[1], "wb") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            raw = rng.integers(0, 256, COLUMNS // elements * size, dtype=np.uint8)
            with np.errstate(all="ignore"):
                values = gguf.dequantize(raw.view(np.float32) if name == "F32" else
                                         raw.view(np.float16) if name == "F16" else raw, kind)
            values = np.asarray(values).reshape(-1).astype("<f4")
            assert values.size == COLUMNS, (name, values.size)
            out.write(struct.pack("<III", int(kind), COLUMNS, raw.size))
            out.write(raw.tobytes())
            out.write(values.tobytes())


if __name__ == "__main__":
    main()
