#!/usr/bin/env python3
"""Prints the first indices of a shuffled order of more than 2^24, as vernier/sampler.h specifies it, for sampler_test.cpp.

    python3 tests/sdk/core/tasks/keyed_order.py

The generator is std::mt19937_64, seeded by std::seed_seq, as the C++ standard specifies both in [rand.eng.mers] and
[rand.util.seedseq].
"""
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def seed_seq(seeds, count):
    values, s = [0x8B8B8B8B] * count, len(seeds)
    t = 11 if count >= 623 else 7 if count >= 68 else 5 if count >= 39 else 3 if count >= 7 else (count - 1) // 2
    p = (count - t) // 2
    q, m = p + t, max(s + 1, count)
    mix = lambda x: x ^ x >> 27
    for k in range(m):
        r1 = 1664525 * mix(values[k % count] ^ values[(k + p) % count] ^ values[(k - 1) % count]) & M32
        r2 = r1 + (s if k == 0 else k % count + seeds[k - 1] if k <= s else k % count) & M32
        values[(k + p) % count] = values[(k + p) % count] + r1 & M32
        values[(k + q) % count] = values[(k + q) % count] + r2 & M32
        values[k % count] = r2
    for k in range(m, m + count):
        r3 = 1566083941 * mix(values[k % count] + values[(k + p) % count] + values[(k - 1) % count] & M32) & M32
        r4 = r3 - k % count & M32
        values[(k + p) % count] ^= r3
        values[(k + q) % count] ^= r4
        values[k % count] = r4
    return values


def draws_of(seed, epoch, count):
    n, m, r = 312, 156, 31
    words = seed_seq([seed & M32, seed >> 32, epoch & M32, epoch >> 32], 2 * n)
    x = [words[2 * i] | words[2 * i + 1] << 32 for i in range(n)]
    low = (1 << r) - 1
    for i in range(count):
        y = x[i] & ~low & M64 | x[i + 1] & low
        x.append(x[i + m] ^ y >> 1 ^ (0xB5026F5AA96619E9 if y & 1 else 0))
        z = x[-1]
        z ^= z >> 29 & 0x5555555555555555
        z ^= z << 17 & 0x71D67FFFEDA60000
        z ^= z << 37 & 0xFFF7EEE000000000
        yield z & M64 ^ (z & M64) >> 43


def mixed(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def index_at(place, size, keys):
    bits = (size - 1).bit_length()
    half = bits // 2
    while True:
        low, high = place & (1 << half) - 1, place >> half
        for first, second in zip(keys[::2], keys[1::2]):
            high ^= mixed(low ^ first) & (1 << bits - half) - 1
            low ^= mixed(high ^ second) & (1 << half) - 1
        place = high << half | low
        if place < size:
            return place


for seed, epoch, size in [(1, 0, (1 << 24) + 1001), (1, 1, (1 << 24) + 1001), (0xDEADBEEFCAFEF00D, 0, 1 << 40)]:
    keys = list(draws_of(seed, epoch, 8))
    print(seed, epoch, size, [index_at(place, size, keys) for place in range(5)])
