// Tiles of interleaved weight rows: a lane is a weight row. repacked.h describes the layouts.
//
// One code for AVX2, for AVX2 with VNNI, and for AVX-512: every width of a tile adds a lane's products in the same order,
// block after block, and all integers of a block are the same in all three, so a result has the same bits.
#pragma once

#include "fill.h"
#include "repacking.h"

#if defined(PYLLAMA_SPEC_BLOCKS_AVX2)

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define PYLLAMA_SPEC_BLOCKS_AVX512
#endif

namespace pyllama_spec {

namespace {  // each file that includes this has other instructions

// ---- vectors: I of integers, F of floats. N: lanes.

#if defined(PYLLAMA_SPEC_BLOCKS_AVX512)

struct Avx512 {
    using I = __m512i;
    using F = __m512;
    static constexpr int    N = 16, N_MOST = 8;
    static constexpr bool   HAS_DOT = true;

    static I at(const void * from) { return _mm512_loadu_si512(from); }
    static I zero() { return _mm512_setzero_si512(); }
    static I byte(int x) { return _mm512_set1_epi8((char) x); }
    static I four(const char * from) { return _mm512_set1_epi32(load<int>(from)); }
    static I both(I a, I b) { return _mm512_and_si512(a, b); }
    static I right(I a, int n) { return _mm512_srli_epi16(a, n); }
    static I left(I a, int n) { return _mm512_slli_epi16(a, n); }
    static I with(I a, I b, I mask) { return _mm512_ternarylogic_epi64(a, b, mask, 0xf8); }  // a | b & mask
    static I look_up(__m128i table, I a) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a); }
    static I add(I a, I b) { return _mm512_add_epi32(a, b); }
    static I times(I a, I b) { return _mm512_mullo_epi32(a, b); }
    static I dot(I sum, I w, I x) { return _mm512_dpbusd_epi32(sum, w, x); }
    static I dot_16(I sum, I a, I b) { return _mm512_dpwssd_epi32(sum, a, b); }
    static I of_bytes(const void * from) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) from)); }
    static I wide(const void * from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *) from)); }
    static I shifted_32(I a, I n) { return _mm512_sllv_epi32(a, n); }
    static I if_less(I a, int b, I x, I y) { return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, lanes(b)), y, x); }
    static I of_unsigned(const void * from) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) from)); }
    static I less(I a, int b) { return _mm512_sub_epi8(a, byte(b)); }
    static I lanes(int x) { return _mm512_set1_epi32(x); }
    static F as_floats(I a) { return _mm512_castsi512_ps(a); }
    static F floats(I a) { return _mm512_cvtepi32_ps(a); }
    static F halves(const void * from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) from)); }
    static F one(const char * from) { return _mm512_set1_ps(load<float>(from)); }
    static F none() { return _mm512_setzero_ps(); }
    static F load_floats(const float * from) { return _mm512_loadu_ps(from); }
    static void store_floats(float * to, F x) { _mm512_storeu_ps(to, x); }
    static void store(void * to, I x) { _mm512_storeu_si512(to, x); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F minus(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
};

#endif

template <bool IS_VNNI> struct Avx2 {
    using I = __m256i;
    using F = __m256;
    static constexpr int  N = 8, N_MOST = 6;
    static constexpr bool HAS_DOT = IS_VNNI;

    static I at(const void * from) { return _mm256_loadu_si256((const __m256i *) from); }
    static I zero() { return _mm256_setzero_si256(); }
    static I byte(int x) { return _mm256_set1_epi8((char) x); }
    static I four(const char * from) { return _mm256_set1_epi32(load<int>(from)); }
    static I both(I a, I b) { return _mm256_and_si256(a, b); }
    static I right(I a, int n) { return _mm256_srli_epi16(a, n); }
    static I left(I a, int n) { return _mm256_slli_epi16(a, n); }
    static I with(I a, I b, I mask) { return _mm256_or_si256(a, _mm256_and_si256(b, mask)); }
    static I look_up(__m128i table, I a) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), a); }
    static I add(I a, I b) { return _mm256_add_epi32(a, b); }
    static I times(I a, I b) { return _mm256_mullo_epi32(a, b); }
    static I of_bytes(const void * from) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) from)); }
    static I wide(const void * from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) from)); }
    static I shifted_32(I a, I n) { return _mm256_sllv_epi32(a, n); }
    static I if_less(I a, int b, I x, I y) { return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi32(lanes(b), a)); }
    static I of_unsigned(const void * from) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) from)); }
    static I less(I a, int b) { return _mm256_sub_epi8(a, byte(b)); }  // bytes
    static I lanes(int x) { return _mm256_set1_epi32(x); }
    static F as_floats(I a) { return _mm256_castsi256_ps(a); }
    static F floats(I a) { return _mm256_cvtepi32_ps(a); }
    static F halves(const void * from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) from)); }
    static F one(const char * from) { return _mm256_set1_ps(load<float>(from)); }
    static F none() { return _mm256_setzero_ps(); }
    static F load_floats(const float * from) { return _mm256_loadu_ps(from); }
    static void store_floats(float * to, F x) { _mm256_storeu_ps(to, x); }
    static void store(void * to, I x) { _mm256_storeu_si256((__m256i *) to, x); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F minus(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }

    static I dot([[maybe_unused]] I sum, [[maybe_unused]] I w, [[maybe_unused]] I x) {
#if defined(__AVXVNNI__)
        return _mm256_dpbusd_avx_epi32(sum, w, x);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpbusd_epi32(sum, w, x);
#else
        return zero();
#endif
    }

    static I dot_16(I sum, I a, I b) { return add(sum, _mm256_madd_epi16(a, b)); }

    // Without VNNI: pairs of products in 16 bits, and then of these in 32, times a factor.
    static I pairs(I w, I x) { return _mm256_maddubs_epi16(w, x); }
    static I add_16(I a, I b) { return _mm256_add_epi16(a, b); }
    static I size(I a) { return _mm256_abs_epi8(a); }
    static I signed_by(I x, I w) { return _mm256_sign_epi8(x, w); }
    static I below_zero(I x) { return _mm256_cmpgt_epi8(zero(), x); }
    static I xor_of(I a, I b) { return _mm256_xor_si256(a, b); }
    static I less_32(I a, I b) { return _mm256_sub_epi32(a, b); }
    static I ones() { return _mm256_set1_epi16(1); }

    static I twice(const void * bytes) {  // in 16 bits
        const __m128i x = _mm_loadl_epi64((const __m128i *) bytes);
        return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, x));
    }

    static I interleaved(const char * a, const char * b) {  // in 16 bits
        return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *) a), _mm_loadl_epi64((const __m128i *) b)));
    }
};

// Two vectors as one of twice the lanes: each activation is loaded once for both.
template <class V> struct Twice {
    struct I {
        typename V::I a, b;
    };

    struct F {
        typename V::F a, b;
    };

    static constexpr int  N = 2 * V::N, N_MOST = V::N_MOST;
    static constexpr bool HAS_DOT = V::HAS_DOT;

    template <int K> static inline PYLLAMA_SPEC_INLINE typename V::I part(I x) { return K == 0 ? x.a : x.b; }
    template <int K> static inline PYLLAMA_SPEC_INLINE typename V::F part(F x) { return K == 0 ? x.a : x.b; }
    template <int K, class T> static inline PYLLAMA_SPEC_INLINE T part(T x) { return x; }
    static inline PYLLAMA_SPEC_INLINE I joined(typename V::I a, typename V::I b) { return { a, b }; }
    static inline PYLLAMA_SPEC_INLINE F joined(typename V::F a, typename V::F b) { return { a, b }; }

#define EACH(f) \
    template <class... X> static inline PYLLAMA_SPEC_INLINE auto f(X... x) { \
        return joined(V::f(part<0>(x)...), V::f(part<1>(x)...)); \
    }
    EACH(zero) EACH(byte) EACH(four) EACH(lanes) EACH(ones) EACH(one) EACH(none)
    EACH(both) EACH(right) EACH(left) EACH(with) EACH(look_up) EACH(add) EACH(times) EACH(shifted_32) EACH(if_less) EACH(less)
    EACH(as_floats) EACH(floats) EACH(mul) EACH(fma) EACH(minus)
    EACH(dot) EACH(dot_16) EACH(pairs) EACH(add_16) EACH(size) EACH(signed_by)
    EACH(below_zero) EACH(xor_of) EACH(less_32)
#undef EACH

    // From memory: bytes of a vector's part.
#define LOAD(f, bytes) \
    static inline PYLLAMA_SPEC_INLINE auto f(const void * x) { \
        return joined(V::f(x), V::f((const char *) x + (bytes))); \
    }
    LOAD(at, 4 * V::N) LOAD(of_bytes, V::N) LOAD(of_unsigned, V::N) LOAD(wide, 2 * V::N) LOAD(halves, 2 * V::N) LOAD(twice, V::N)
#undef LOAD

    static I interleaved(const char * a, const char * b) {
        return { V::interleaved(a, b), V::interleaved(a + V::N, b + V::N) };
    }

    static F load_floats(const float * x) { return { V::load_floats(x), V::load_floats(x + V::N) }; }
    static void store_floats(float * to, F x) {
        V::store_floats(to, x.a);
        V::store_floats(to + V::N, x.b);
    }

    static void store(void * to, I x) {
        V::store(to, x.a);
        V::store((char *) to + 4 * V::N, x.b);
    }
};

// Keeps weights in a register: otherwise GCC unpacks many ahead and has no registers left for wide tiles.
template <class I> inline PYLLAMA_SPEC_INLINE void pin([[maybe_unused]] I & x) {
#if defined(__GNUC__)
    if constexpr (std::is_class_v<I>) {
        pin(x.a);
        pin(x.b);
    } else {
        __asm__("" : "+v"(x));
    }
#endif
}

// ---- formats: how numbers are stored, and what is multiplied

enum class Values { NUMBERS, IQ4, POWERS };  // what nibbles stand for

template <class V, int BITS_, int OFFSET_, Values VALUES = Values::NUMBERS> struct Format {
    static constexpr int BITS = BITS_;
    static constexpr bool IS_BYTE = BITS == 8 || VALUES == Values::IQ4;
    // Without VNNI the products of bytes need signed weights.
    static constexpr int OFFSET = IS_BYTE && !V::HAS_DOT ? 0 : OFFSET_;
    // Products of pairs that fit 16 bits together.
    static constexpr int N_PAIRS = BITS == 6 ? 2 : BITS == 5 || VALUES == Values::POWERS ? 4 : 8;

    // Of four bits, six rows need more registers than there are without VNNI.
    static constexpr int N_MOST = BITS == 4 && !IS_BYTE && !V::HAS_DOT ? 5 : V::N_MOST;

    // Vector v of 32 numbers.
    static inline PYLLAMA_SPEC_INLINE typename V::I vector(const Numbers<BITS, V::N> & q, int v) {
        using I = typename V::I;
        if constexpr (BITS == 8) {
            return V::at(q.planes[v]);
        }
        constexpr int AFTER_NIBBLES = BITS & 4, N_AFTER = BITS & 2;
        const auto moved = [](I x, int by) PYLLAMA_SPEC_INLINE { return by > 0 ? V::left(x, by) : by < 0 ? V::right(x, -by) : x; };
        I out = V::zero();
        if constexpr (AFTER_NIBBLES) {
            const I x = V::at(q.planes[BITS % 4 + v % 4]);
            out = V::both(v < 4 ? x : V::right(x, 4), V::byte(15));
        }
        if constexpr (N_AFTER) {
            const I x = moved(V::at(q.planes[BITS % 2 + v / 4]), AFTER_NIBBLES - 2 * (v % 4));
            out = AFTER_NIBBLES ? V::with(out, x, V::byte(3 << AFTER_NIBBLES)) : V::both(x, V::byte(3));
        }
        if constexpr (BITS % 2) {
            out = V::with(out, moved(V::at(q.planes[0]), AFTER_NIBBLES + N_AFTER - v), V::byte(1 << (AFTER_NIBBLES + N_AFTER)));
        }
        if constexpr (VALUES != Values::NUMBERS) {
            out = V::look_up(table(), out);
        }
        return out;
    }

    static __m128i table() {
        if constexpr (VALUES == Values::POWERS) {  // doubled, plus 12
            return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        }
        const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
        return OFFSET ? _mm_xor_si128(values, _mm_set1_epi8((char) 128)) : values;
    }
};

// The integer sums of R activation rows over the numbers of a part.
template <class V, class F, int R> struct Sums {
    using I = typename V::I;
    // Few sums would wait for themselves; two chains of two rows of up to four bits are slower from memory.
    static constexpr int N_CHAINS = V::HAS_DOT && R < 4 && (R != 2 || F::BITS > 4) ? 2 : 1;
    // -x is (x ^ -1) + 1: cheaper than a sign for each row is one sum of what is missing for all.
    static constexpr bool IS_INVERTED = F::IS_BYTE && !V::HAS_DOT && R > 2;
    I sums[N_CHAINS][R], pairs[R], factor, inverted;

    inline PYLLAMA_SPEC_INLINE void begin(int r, I start) {
        sums[0][r] = start;
        for (int i = 1; i < N_CHAINS; ++i) {
            sums[i][r] = V::zero();
        }
    }

    // Adds the products of vector i of n; x: the numbers of the first activation row.
    inline PYLLAMA_SPEC_INLINE void add(int i, int n, I w, const char * x, size_t stride) {
        pin(w);
        if constexpr (V::HAS_DOT) {
            for (int r = 0; r < R; ++r) {
                sums[i % N_CHAINS][r] = V::dot(sums[i % N_CHAINS][r], w, V::four(x + r * stride));
            }
        } else if constexpr (F::IS_BYTE) {
            I size = V::size(w), sign = IS_INVERTED ? V::below_zero(w) : w;
            pin(size);
            pin(sign);
            if constexpr (IS_INVERTED) {
                inverted = i == 0 ? V::pairs(size, sign) : V::add_16(inverted, V::pairs(size, sign));
                pin(inverted);
            }
            for (int r = 0; r < R; ++r) {
                I four = V::four(x + r * stride);
                four = V::pairs(size, IS_INVERTED ? V::xor_of(four, sign) : V::signed_by(four, sign));
                sums[0][r] = V::dot_16(sums[0][r], four, factor);
                pin(sums[0][r]);
            }
        } else {
            const bool is_last = (i + 1) % F::N_PAIRS == 0 || i + 1 == n;
            for (int r = 0; r < R; ++r) {
                I four = V::four(x + r * stride);
                const I now = V::pairs(w, four);
                pairs[r] = i % F::N_PAIRS == 0 ? now : V::add_16(pairs[r], now);
                pin(pairs[r]);  // otherwise GCC adds the products of all vectors in a tree, from memory
                if (is_last) {
                    sums[0][r] = V::dot_16(sums[0][r], pairs[r], factor);
                }
            }
        }
    }

    inline PYLLAMA_SPEC_INLINE I of(int r) const {
        if constexpr (IS_INVERTED) {
            return V::less_32(sums[0][r], V::dot_16(V::zero(), inverted, factor));
        }
        return N_CHAINS == 1 ? sums[0][r] : V::add(sums[0][r], sums[N_CHAINS - 1][r]);
    }

    // All numbers of a part: 32, or half of them from vector `first` on.
    template <int PART>
    inline PYLLAMA_SPEC_INLINE void add_part(const Numbers<F::BITS, V::N> & q, int first, const char * x) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
            if constexpr (PART == 16) {
                add(c, 4, F::vector(q, first + c), x + 4 * c, PART);
            } else {
                add(2 * c, 8, F::vector(q, c), x + 4 * c, PART);
                add(2 * c + 1, 8, F::vector(q, c + 4), x + 16 + 4 * c, PART);
            }
        }
    }
};

// Prefetches what a wide tile needs later: it reads too slowly for the processor to run ahead. A narrow one is slower with
// it, but for a row of four bits with AVX2, from nearer (measured by tile_speed.cpp). n bytes of a block are as many of a
// later one.
template <class V, int BITS, int R> inline PYLLAMA_SPEC_INLINE void prefetch_later(const void * block, size_t n) {
    constexpr int FIRST = V::HAS_DOT ? (BITS == 8 ? 6 : 3) : BITS == 8 ? 4 : BITS == 4 ? 1 : 2;
    for (size_t at = 0; R >= FIRST && at < n; at += 64) {
        if constexpr (R == 1) {
            _mm_prefetch((const char *) block + (8 << 10) + at, _MM_HINT_T0);
        } else {
            _mm_prefetch((const char *) block + (12 << 10) + at, _MM_HINT_T1);
        }
    }
}

// ---- blocks of 32 numbers

template <int BITS, int N> constexpr bool has_min(const BlockOf32<BITS, N> *) { return false; }
template <int BITS, int N> constexpr bool has_min(const BlockWithMin<BITS, N> *) { return true; }
template <int N> constexpr bool has_min(const BlockOfPowers<N> *) { return false; }

template <class V, class B> inline PYLLAMA_SPEC_INLINE typename V::F scales_of(const B & b) {
    return V::halves(b.d);
}

// Half of the powers of two, since the values are doubled.
template <class V> inline PYLLAMA_SPEC_INLINE typename V::F scales_of(const BlockOfPowers<V::N> & b) {
    const typename V::I e = V::of_unsigned(b.e), large = V::shifted_32(V::add(e, V::lanes(-1)), V::lanes(23));
    return V::as_floats(V::if_less(e, 2, V::shifted_32(V::lanes(0x00200000), e), large));
}

template <class V, class B, class F> struct TileOf32 {
    using Block = B;
    static constexpr int    N_MOST = F::N_MOST;
    static constexpr size_t N_X_BYTES = 40;

    template <int R> static inline PYLLAMA_SPEC_INLINE void add(const B & b, const char * x, typename V::F (&out)[R]) {
        constexpr bool HAS_MIN = has_min((const B *) nullptr);
        prefetch_later<V, F::BITS, R>(&b, sizeof(b));
        Sums<V, F, R> sums;
        if constexpr (!V::HAS_DOT) {
            sums.factor = V::ones();
        }
        for (int r = 0; r < R; ++r) {
            sums.begin(r, F::OFFSET == 0 ? V::zero() : V::four(x + 36 * R + 4 * r));
        }
        sums.template add_part<32>(b.q, 0, x);
        const typename V::F d = scales_of<V>(b);
        for (int r = 0; r < R; ++r) {
            out[r] = V::fma(V::floats(sums.of(r)), V::mul(d, V::one(x + 32 * R + 4 * r)), out[r]);
        }
        if constexpr (HAS_MIN) {
            const typename V::F m = V::halves(b.m);
            for (int r = 0; r < R; ++r) {
                out[r] = V::fma(m, V::one(x + 36 * R + 4 * r), out[r]);
            }
        }
    }
};

// ---- blocks of 256: integers up to the block's end

// Scales by part, and minima by pair of parts.
template <int N> struct Scales {
    alignas(64) char scales[16 * N], mins[16 * N];
};

template <class V> inline PYLLAMA_SPEC_INLINE typename V::I six_bits(const SixBits<V::N> & from, int j) {
    const typename V::I low = V::at(from.low[j / 2]), high = V::at(from.high);
    const typename V::I up = j == 3 ? V::right(high, 2) : j == 2 ? high : V::left(high, 4 - 2 * j);
    return V::with(V::both(j % 2 ? V::right(low, 4) : low, V::byte(15)), up, V::byte(48));
}

template <class V, int BITS>
inline PYLLAMA_SPEC_INLINE void unpack_scales(const SuperWithMins<BITS, V::N> & b, Scales<V::N> & to) {
    for (int j = 0; j < 2; ++j) {
        V::store(to.scales + 4 * V::N * j, six_bits<V>(b.scales, j));
        V::store(to.mins + 4 * V::N * j, six_bits<V>(b.scales, 2 + j));
    }
}

template <class V> inline PYLLAMA_SPEC_INLINE void unpack_scales(const SuperOfTwoBits<V::N> & b, Scales<V::N> & to) {
    for (int j = 0; j < 4; ++j) {
        const typename V::I both = V::at(b.scales + 4 * V::N * j);
        V::store(to.scales + 4 * V::N * j, V::both(both, V::byte(15)));
        V::store(to.mins + 4 * V::N * j, V::both(V::right(both, 4), V::byte(15)));
    }
}

template <class V> inline PYLLAMA_SPEC_INLINE void unpack_scales(const SuperOfThreeBits<V::N> & b, Scales<V::N> & to) {
    for (int j = 0; j < 4; ++j) {
        V::store(to.scales + 4 * V::N * j, V::less(six_bits<V>(b.scales, j), 32));
    }
}

template <class V, int BITS, int PARTS>
inline PYLLAMA_SPEC_INLINE void unpack_scales(const SuperWithScales<BITS, PARTS, V::N> & b, Scales<V::N> & to) {
    for (int j = 0; j < PARTS / 4; ++j) {
        const typename V::I x = V::at(b.scales + 4 * V::N * j);
        V::store(to.scales + 4 * V::N * j, BITS == 4 ? V::less(x, 32) : x);
    }
}

template <class V, class B, class F, int PART, bool HAS_MINS> struct TileOf256 {
    using Block = B;
    static constexpr int    N_MOST = F::N_MOST, N_PARTS = 256 / PART;
    // An offset of the weights: initial values where products are summed in 32 bits, otherwise sums as for minima.
    static constexpr bool   HAS_STARTS = F::OFFSET != 0 && V::HAS_DOT, HAS_SUMS = HAS_MINS || (F::OFFSET != 0 && !V::HAS_DOT);
    static constexpr size_t N_X_BYTES = 256 + N_PARTS * ((HAS_STARTS ? 4 : 0) + (HAS_SUMS ? 2 : 0)) + 4;

    template <int R> static inline PYLLAMA_SPEC_INLINE void add(const B & b, const char * x, typename V::F (&out)[R]) {
        using I = typename V::I;
        Scales<V::N> scales;
        unpack_scales<V>(b, scales);
        I whole[R];
        for (int r = 0; r < R; ++r) {
            whole[r] = V::zero();
        }
        const auto part = [&](int s, int half) PYLLAMA_SPEC_INLINE {
            Sums<V, F, R> sums;
            const char * scale = scales.scales + V::N * s;
            for (int r = 0; r < R; ++r) {
                sums.begin(r, HAS_STARTS ? V::four(x + PART * R + 4 * r) : V::HAS_DOT ? V::zero() : whole[r]);
            }
            if constexpr (!V::HAS_DOT) {
                sums.factor = V::twice(scale);
            }
            sums.template add_part<PART>(b.q[s * PART / 32], 4 * half, x);
            if constexpr (V::HAS_DOT) {
                const I by = V::of_bytes(scale);
                for (int r = 0; r < R; ++r) {
                    whole[r] = V::add(whole[r], V::times(sums.of(r), by));
                }
            } else {
                for (int r = 0; r < R; ++r) {
                    whole[r] = sums.of(r);
                }
            }
            x += (PART + (HAS_STARTS ? 4 : 0)) * R;
        };
        for (int p = 0; p < 8; ++p) {
            prefetch_later<V, F::BITS, R>((const char *) &b + p * (sizeof(B) / 8), sizeof(B) / 8);
            if constexpr (PART == 16) {
                part(2 * p, 0);
                part(2 * p + 1, 1);
            } else {
                part(p, 0);
            }
        }
        I sums[R];
        if constexpr (HAS_SUMS) {
            for (int r = 0; r < R; ++r) {
                sums[r] = V::zero();
            }
            for (int p = 0; p < N_PARTS / 2; ++p, x += 4 * R) {
                I by;
                if constexpr (HAS_MINS) {
                    by = V::wide(scales.mins + 2 * V::N * p);
                } else {
                    by = V::interleaved(scales.scales + 2 * V::N * p, scales.scales + 2 * V::N * p + V::N);
                }
                for (int r = 0; r < R; ++r) {
                    sums[r] = V::dot_16(sums[r], by, V::four(x + 4 * r));
                }
            }
        }
        const typename V::F d = V::halves(b.d);
        for (int r = 0; r < R; ++r) {
            if constexpr (HAS_SUMS && !HAS_MINS) {
                whole[r] = V::add(whole[r], V::times(sums[r], V::lanes(-F::OFFSET)));
            }
            typename V::F all = V::mul(V::floats(whole[r]), d);
            if constexpr (HAS_MINS) {
                all = V::minus(V::floats(sums[r]), V::halves(b.dmin), all);
            }
            out[r] = V::fma(all, V::one(x + 4 * r), out[r]);
        }
    }
};

template <class V, class T, int R> void tile_of_groups(const Panel & panel) {
    const typename T::Block * block = (const typename T::Block *) panel.weights;
    for (int64_t i = 0; i < panel.n_out; i += V::N) {
        typename V::F sums[R];
        for (int r = 0; r < R; ++r) {
            sums[r] = panel.is_first ? V::none() : V::load_floats(panel.out[r] + i);
        }
        const char * x = panel.x;
        for (int64_t b = 0; b < panel.n_blocks; ++b, ++block, x += R * T::N_X_BYTES) {
            T::template add<R>(*block, x, sums);
        }
        for (int r = 0; r < R; ++r) {
            V::store_floats(panel.out[r] + i, sums[r]);
        }
    }
}

template <class V, class T, int R> constexpr auto tile_or_none() -> void (*)(const Panel &) {
    if constexpr (R <= T::N_MOST) {
        return tile_of_groups<V, T, R>;
    } else {
        return nullptr;
    }
}

// The engine's quantize_row_q8_K, which is not vectorised, to the bit.
inline void quantize_q8_K(const float * from, void * to, int64_t n_k) {
    block_q8_K * out = (block_q8_K *) to;
    for (int64_t b = 0; b < n_k / QK_K; ++b, ++out, from += QK_K) {
        __m256 largest[4] = {};
        for (int i = 0; i < QK_K; i += 32) {
            for (int k = 0; k < 4; ++k) {
                const __m256 x = _mm256_loadu_ps(from + i + 8 * k);
                largest[k] = _mm256_max_ps(largest[k], _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x));
            }
        }
        largest[0] = _mm256_max_ps(_mm256_max_ps(largest[0], largest[1]), _mm256_max_ps(largest[2], largest[3]));
        __m128 four = _mm_max_ps(_mm256_castps256_ps128(largest[0]), _mm256_extractf128_ps(largest[0], 1));
        four = _mm_max_ps(four, _mm_movehl_ps(four, four));
        const float most = _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
        if (!(most > 0)) {
            *out = {};
            continue;
        }
        int first = 0;  // the first of the largest
        for (; first < QK_K - 8; first += 8) {
            const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(from + first));
            if (_mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(most), _CMP_EQ_OQ))) {
                break;
            }
        }
        while (from[first] != most && from[first] != -most) {
            ++first;
        }
        const float scale = -127.0f / from[first];
        for (int i = 0; i < QK_K; i += 16) {
            const auto eight_of = [&](int k) {
                return _mm256_min_epi32(
                    _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + i + k), _mm256_set1_ps(scale))), _mm256_set1_epi32(127));
            };
            const __m256i all = _mm256_permute4x64_epi64(_mm256_packs_epi32(eight_of(0), eight_of(8)), 0xd8);
            const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
            _mm_storeu_si128((__m128i *) (out->qs + i), bytes);
            // Plus 128, as unsigned bytes: their sum is one instruction.
            const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8((char) 128)), _mm_setzero_si128());
            out->bsums[i / 16] = (int16_t) (_mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128);
        }
        out->d = 1 / scale;
    }
}

// ---- the table

template <class V, class T, class C, bool IS_FLIPPED> RepackedKernel kernel_x86(decltype(RepackedKernel::fill) fill) {
    using R = Repacking<C, V::N, IS_FLIPPED ? 128 : 0>;
    static_assert(std::is_same_v<typename R::To, typename T::Block>);
    return { V::N, T::N_MOST, R::LENGTH, sizeof(typename R::To), sizeof(typename C::From), T::N_X_BYTES, R::pack, R::unpack,
        R::LENGTH == QK_K ? quantize_q8_K : nullptr, fill,
        { tile_of_groups<V, T, 1>, tile_of_groups<V, T, 2>, tile_of_groups<V, T, 3>, tile_of_groups<V, T, 4>,
          tile_of_groups<V, T, 5>, tile_or_none<V, T, 6>(), tile_or_none<V, T, 7>(), tile_or_none<V, T, 8>() } };
}

template <class V, class C, class F> const RepackedKernel * of_32() {
    using T = TileOf32<V, typename C::template To<V::N>, F>;
    constexpr bool HAS_MIN = has_min((const typename T::Block *) nullptr);
    static const RepackedKernel kernel = kernel_x86<V, T, C, F::BITS == 8 && V::HAS_DOT>(
        fill_32<std::conditional_t<HAS_MIN, block_q8_1, block_q8_0>, HAS_MIN, F::OFFSET>);
    return &kernel;
}

template <class V, class C, class F, int PART, bool HAS_MINS = false> const RepackedKernel * of_256() {
    using T = TileOf256<V, typename C::template To<V::N>, F, PART, HAS_MINS>;
    static const RepackedKernel kernel = kernel_x86<V, T, C, false>(fill_256<PART, T::HAS_STARTS, T::HAS_SUMS, F::OFFSET>);
    return &kernel;
}

template <class V> const RepackedKernel * kernel_x86_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return of_32<V, Of32<block_q4_0, 4>, Format<V, 4, 8>>();
        case GGML_TYPE_Q5_0:   return of_32<V, Of32<block_q5_0, 5>, Format<V, 5, 16>>();
        case GGML_TYPE_Q8_0:   return of_32<V, OfBytes, Format<V, 8, 128>>();
        case GGML_TYPE_Q4_1:   return of_32<V, Of32WithMin<block_q4_1, 4>, Format<V, 4, 0>>();
        case GGML_TYPE_Q5_1:   return of_32<V, Of32WithMin<block_q5_1, 5>, Format<V, 5, 0>>();
        case GGML_TYPE_IQ4_NL: return of_32<V, Of32<block_iq4_nl, 4>, Format<V, 4, 128, Values::IQ4>>();
        case GGML_TYPE_MXFP4:  return of_32<V, OfPowers, Format<V, 4, 12, Values::POWERS>>();
        case GGML_TYPE_Q4_K:   return of_256<V, OfSuperWithMins<block_q4_K, 4>, Format<V, 4, 0>, 32, true>();
        case GGML_TYPE_Q5_K:   return of_256<V, OfSuperWithMins<block_q5_K, 5>, Format<V, 5, 0>, 32, true>();
        case GGML_TYPE_Q2_K:   return of_256<V, OfTwoBits, Format<V, 2, 0>, 16, true>();
        case GGML_TYPE_Q3_K:   return of_256<V, OfThreeBits, Format<V, 3, 4>, 16>();
        case GGML_TYPE_Q6_K:   return of_256<V, OfSixBits, Format<V, 6, 32>, 16>();
        case GGML_TYPE_IQ4_XS: return of_256<V, OfTable, Format<V, 4, 128, Values::IQ4>, 32>();
        default:               return nullptr;
    }
}

}  // namespace

}  // namespace pyllama_spec

#endif
