// Record batches v2 to Arrow buffers, uncompressed only: what decoding costs at least. It trusts its input, so it is for
// measuring and for nothing else.
#include <nmmintrin.h>
#include <stdint.h>
#include <string.h>

static int64_t be64(const uint8_t *p) { return (int64_t)__builtin_bswap64(*(uint64_t *)p); }
static int32_t be32(const uint8_t *p) { return (int32_t)__builtin_bswap32(*(uint32_t *)p); }
static int16_t be16(const uint8_t *p) { return (int16_t)__builtin_bswap16(*(uint16_t *)p); }

static const uint8_t *varint(const uint8_t *p, int64_t *out) {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *p++;
        v |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) break;
    }
    *out = (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
    return p;
}

static uint32_t checksum(const uint8_t *p, size_t n) {
    uint64_t c = 0xffffffff;
    for (; n >= 8; p += 8, n -= 8) c = _mm_crc32_u64(c, *(uint64_t *)p);
    while (n--) c = _mm_crc32_u8((uint32_t)c, *p++);
    return ~(uint32_t)c;
}

// Returns the records written, -1 on a wrong checksum, -2 where something is compressed.
int64_t decode(const uint8_t *d, int64_t n, int64_t *off, int64_t *ts, int32_t *koff, int32_t *voff, uint8_t *k,
               uint8_t *v, uint8_t *kvalid, uint8_t *vvalid) {
    int64_t at = 0, r = 0;
    int32_t kb = 0, vb = 0;
    koff[0] = voff[0] = 0;
    while (at + 61 <= n) {
        const uint8_t *b = d + at, *p = b + 61;
        int64_t base = be64(b), t0 = be64(b + 27);
        int32_t length = be32(b + 8), count = be32(b + 57);
        if (checksum(b + 21, length - 9) != (uint32_t)be32(b + 17)) return -1;
        if (be16(b + 21) & 7) return -2;
        at += 12 + length;
        for (int i = 0; i < count; i++) {
            int64_t size, dt, delta, klen, vlen;
            p = varint(p, &size);
            const uint8_t *end = p + size;
            p = varint(p + 1, &dt);
            p = varint(p, &delta);
            p = varint(p, &klen);
            off[r] = base + delta;
            ts[r] = t0 + dt;
            if (klen >= 0) {
                memcpy(k + kb, p, klen);
                kb += klen;
                p += klen;
                kvalid[r >> 3] |= 1 << (r & 7);
            }
            p = varint(p, &vlen);
            if (vlen >= 0) {
                memcpy(v + vb, p, vlen);
                vb += vlen;
                vvalid[r >> 3] |= 1 << (r & 7);
            }
            r++;
            koff[r] = kb;
            voff[r] = vb;
            p = end;
        }
    }
    return r;
}
