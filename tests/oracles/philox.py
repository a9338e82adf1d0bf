#!/usr/bin/env python3
"""Writes philox4x32.json: outputs of Philox4x32-10 from a plain implementation of the paper.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11). The 32-bit form is held
against the known answers that Random123 publishes; the same code with the 64-bit constants is held
against numpy's Philox4x64-10, a separate implementation.
"""
import json
import os
import random

import numpy as np

CONSTANTS = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}
KNOWN = [  # Random123 kat_vectors, "philox4x32 10": counter, key, output
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def philox(counter, key, bits=32, rounds=10):
    """One block: four words from a counter of four words and a key of two, each of `bits` bits."""
    (m0, m1), (w0, w1) = CONSTANTS[bits]
    mask = (1 << bits) - 1
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(rounds):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> bits) ^ c1 ^ k0, p1 & mask, (p0 >> bits) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return [c0, c1, c2, c3]


def words(text):
    return [int(w, 16) for w in text.split()]


def main():
    for counter, key, output in KNOWN:
        assert philox(words(counter), words(key)) == words(output), output
    draw = random.Random(20110101)
    for _ in range(8):
        counter, key = [draw.getrandbits(64) for _ in range(4)], [draw.getrandbits(64) for _ in range(2)]
        start = sum(c << (64 * i) for i, c in enumerate(counter))
        theirs = np.random.Philox(counter=start - 1, key=sum(k << (64 * i) for i, k in enumerate(key))).random_raw(4)
        assert philox(counter, key, 64) == [int(x) for x in theirs]  # numpy counts up before it draws
    rows = [(words(c), words(k)) for c, k, _ in KNOWN]
    # counters that run over a word boundary, one bit set in turn, then arbitrary ones
    rows += [([i, 0, 0, 0], [42, 0]) for i in range(4)]
    rows += [([0xFFFFFFFF, i, 0, 0], [42, 7]) for i in range(2)]
    rows += [([1 << 31 if j == i else 0 for j in range(4)], [1, 2]) for i in range(4)]
    rows += [([draw.getrandbits(32) for _ in range(4)], [draw.getrandbits(32) for _ in range(2)]) for _ in range(12)]
    vectors = [dict(counter=c, key=k, output=philox(c, k)) for c, k in rows]
    out = dict(algorithm="Philox4x32-10", source="Random123 known answers (the first three), then philox.py",
               vectors=vectors)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "philox4x32.json")
    with open(path, "w") as f:
        head = json.dumps({k: v for k, v in out.items() if k != "vectors"}, indent=2)[:-2]
        f.write(head + ',\n  "vectors": [\n' + ",\n".join("    " + json.dumps(v) for v in vectors) + "\n  ]\n}\n")


if __name__ == "__main__":
    main()
