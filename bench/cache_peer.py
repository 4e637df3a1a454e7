#!/usr/bin/env python3
"""The same block operations in vLLM's own bookkeeping, beside ours in the same run.

usage: cache_peer.py [--micro build/release/bench/cache_micro] [--blocks 200000]

Needs a Python that has vllm (its CPU build will do); nothing else of the project does. Runs vLLM's
BlockPool and block hashes in this process (processor time of one thread, medians), then our
cache_micro, whose figures for the same number of blocks follow. What is compared: taking a block
from the free list, entering a full block under its identity, giving it back, and finding a cached
prompt of 32,768 tokens (for vLLM with the hashing that a new request costs, and without).
"""
import argparse
import statistics
import subprocess
import sys
import time

BLOCK = 16
LONG = 32768


def timed(rounds, prepare, run, per):
    out = []
    for i in range(rounds):
        given = prepare(i)
        start = time.thread_time_ns()
        run(given)
        out.append((time.thread_time_ns() - start) / per)
    return statistics.median(out)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--micro", default="build/release/bench/cache_micro")
    args.add_argument("--blocks", type=int, default=200_000)
    a = args.parse_args()
    try:
        from vllm.utils.hashing import sha256_cbor
        from vllm.v1.core import kv_cache_utils as utils
        from vllm.v1.core.block_pool import BlockPool
    except ImportError as e:
        sys.exit("SKIPPED: no vllm here: %s" % e)
    utils.init_none_hash(sha256_cbor)
    pool = BlockPool(a.blocks + 1, True, BLOCK)
    per = LONG // BLOCK

    def hashes(seed):
        out, parent = [], None
        for b in range(per):
            tokens = [(seed * 7919 + b * BLOCK + i) % 128000 for i in range(BLOCK)]
            parent = utils.hash_block_tokens(sha256_cbor, parent, tokens)
            out.append(parent)
        return out

    prompts = [hashes(s) for s in range(min(20, a.blocks // per))]
    held = []

    def take(_):
        held.append(pool.get_new_blocks(per))

    def enter(i):
        for block, h in zip(held[i], prompts[i]):
            pool._insert_block_hash(utils.make_block_hash_with_group_id(h, 0), block, num_tokens=BLOCK)

    rounds = len(prompts)
    rows = [("allocate a block", timed(rounds, lambda i: i, take, per)),
            ("enter a full block (hash known)", timed(rounds, lambda i: i, enter, per)),
            ("release a block", timed(rounds, lambda i: list(reversed(held[i])), pool.free_blocks, per))]

    def find(hs):
        for h in hs:
            if pool.get_cached_block(h, [0]) is None:
                raise RuntimeError("not found")

    rows.append(("find 32,768 tokens, hashes known", timed(rounds, lambda i: prompts[i], find, 1)))
    rows.append(("hash 32,768 tokens", timed(5, lambda i: i, hashes, 1)))
    print("vLLM's BlockPool, %d blocks of %d tokens" % (a.blocks, BLOCK))
    for name, ns in rows:
        print("  %-36s %12.0f ns" % (name, ns))
    sys.stdout.flush()
    print("Kvasir, the same number of blocks")
    sys.stdout.flush()
    return subprocess.call([a.micro, str(a.blocks)])


if __name__ == "__main__":
    sys.exit(main())
