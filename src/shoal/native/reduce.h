/* Element-wise reductions of two runs of numbers: out = x (op) y, where out may be x or y, and x is the lower rank's. One rounding per
   operation, as torch's and numpy's own: contraction into fused multiply-add is off, so that a scaled sum has the same bits with and
   without this code.

   Every bit of a result is decided here, and neither by the compiler, which may exchange the operands of an addition, nor by where an
   element lies in its vector: of two NaNs the first stays, a maximum or minimum is one of its operands, and -0 is less than +0.
   `collectives/dtypes.py` decides the same without this code. */
#ifndef SHOAL_REDUCE_H
#define SHOAL_REDUCE_H

#include <fenv.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif

/* out may be x or y, exactly: no element depends on another one, which the compiler cannot know. */
#if defined(__clang__)
#define EACH_BY_ITSELF _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define EACH_BY_ITSELF _Pragma("GCC ivdep")
#else
#define EACH_BY_ITSELF
#endif

/* Codes as in `transport/native_layout.py`. */
enum { INT32 = 5, INT64 = 6, FLOAT16 = 7, BFLOAT16 = 8, FLOAT32 = 9, FLOAT64 = 10 };
enum { SUM = 1, MAX = 2, MIN = 3 };

typedef void (*reduce_function)(void *out, const void *x, const void *y, size_t bytes, double scale); /* of y */

static inline float from_bits32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline uint32_t bits_of32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline double from_bits64(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
static inline uint64_t bits_of64(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}
static inline float from_bfloat16(uint16_t bits) { return from_bits32((uint32_t)bits << 16); }
static inline uint16_t to_bfloat16(float value) {
    uint32_t bits = bits_of32(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16; /* to nearest, ties to even */
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (uint16_t)0x7FC0 : (uint16_t)rounded;
}

/* Of 16 bits with a fraction of 10. Neither for NaNs. */
#if defined(__aarch64__)
static inline float from_float16(uint32_t half) {
    uint16_t bits = (uint16_t)half;
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
static inline uint32_t to_float16(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
}
#else
static inline float from_float16(uint32_t half) {
    uint32_t magnitude = half & 0x7FFFu, sign = (half & 0x8000u) << 16;
    float denormal = (float)(int32_t)magnitude * 0x1p-24f;
    uint32_t bits = magnitude < 0x0400u ? bits_of32(denormal) : (magnitude << 13) + (112u << 23);
    return from_bits32((magnitude >= 0x7C00u ? 0x7F800000u : bits) | sign);
}
static inline uint32_t to_float16(float value) {
    uint32_t bits = bits_of32(value), magnitude = bits & 0x7FFFFFFFu;
    uint32_t normal = (magnitude - (112u << 23) + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13; /* to nearest, ties to even */
    uint32_t denormal = bits_of32(from_bits32(magnitude) + 0.5f) - 0x3F000000u; /* the addition rounds */
    uint32_t half = magnitude < 0x38800000u ? denormal : normal;
    return (magnitude >= 0x47800000u ? 0x7C00u : half) | ((bits >> 16) & 0x8000u);
}
#endif
static inline uint32_t plus16(uint32_t x, uint32_t y) {
    float exact = from_float16(x) + from_float16(y);
    uint32_t sum = exact != exact ? 0xFE00u : to_float16(exact); /* of opposite infinities */
    sum = (y & 0x7FFFu) > 0x7C00u ? y | 0x0200u : sum;
    return (x & 0x7FFFu) > 0x7C00u ? x | 0x0200u : sum;
}

/* A sum in which x is a NaN is that NaN, made quiet; everything else is the processor's. */
static inline float plus32(float x, float y) {
    float sum = x + y;
    return x != x ? from_bits32(bits_of32(x) | 0x00400000u) : sum;
}
static inline double plus64(double x, double y) {
    double sum = x + y;
    return x != x ? from_bits64(bits_of64(x) | 0x0008000000000000u) : sum;
}

#define ELEMENTS(TYPE) \
    EACH_BY_ITSELF     \
    for (size_t i = 0; i < bytes / sizeof(TYPE); i++)
#define HEAD(NAME) FOR_EVERY_CPU static void NAME(void *out, const void *x, const void *y, size_t bytes, double scale)

#define WHOLE(NAME, TYPE, RESULT)         \
    HEAD(NAME) {                          \
        TYPE *o = out;                    \
        const TYPE *a = x, *b = y;        \
        (void)scale;                      \
        ELEMENTS(TYPE) { o[i] = RESULT; } \
    }
#define FLOATING_SUM(NAME, TYPE, PLUS)              \
    HEAD(NAME) {                                    \
        TYPE *o = out;                              \
        const TYPE *a = x, *b = y;                  \
        (void)scale;                                \
        ELEMENTS(TYPE) { o[i] = PLUS(a[i], b[i]); } \
    }
#define SCALED_SUM(NAME, TYPE, PLUS)                    \
    HEAD(NAME) {                                        \
        TYPE *o = out, s = (TYPE)scale;                 \
        const TYPE *a = x, *b = y;                      \
        ELEMENTS(TYPE) { o[i] = PLUS(a[i], s * b[i]); } \
    }
#define TIMES(NAME, TYPE)                      \
    HEAD(NAME) {                               \
        TYPE *o = out, s = (TYPE)scale;        \
        const TYPE *a = x;                     \
        (void)y;                               \
        ELEMENTS(TYPE) { o[i] = s * a[i]; }    \
    }
/* One of both operands, bit for bit; `v LEAST u` is false for NaN too. Equal values differ in the sign of a zero only. */
#define EXTREME(NAME, BITS, TYPE, FROM, LEAST, JOINED, NEUTRAL)              \
    HEAD(NAME) {                                                             \
        BITS *o = out;                                                       \
        const BITS *a = x, *b = y;                                           \
        (void)scale;                                                         \
        ELEMENTS(BITS) {                                                     \
            BITS p = a[i], q = b[i];                                         \
            TYPE u = FROM(p), v = FROM(q);                                   \
            BITS sign = u == v ? q : (BITS)(NEUTRAL);                        \
            BITS best = !(v LEAST u) ? q : (BITS)(p JOINED sign);            \
            o[i] = u != u ? p : best;                                        \
        }                                                                    \
    }
/* The same of 16 bits, compared as whole numbers. */
#define EXTREME16(NAME, IS_FURTHER, INFINITE)                                       \
    HEAD(NAME) {                                                             \
        int16_t *o = out;                                                    \
        const int16_t *a = x, *b = y;                                        \
        (void)scale;                                                         \
        ELEMENTS(int16_t) {                                                  \
            int16_t p = a[i], q = b[i], absolute_p = p & 0x7FFF, absolute_q = q & 0x7FFF; \
            int16_t u = p ^ ((p >> 15) & 0x7FFF), v = q ^ ((q >> 15) & 0x7FFF); \
            int16_t best = v IS_FURTHER u ? q : p;                           \
            best = absolute_q > INFINITE ? q : best;                         \
            o[i] = absolute_p > INFINITE ? p : best;                         \
        }                                                                    \
    }

FLOATING_SUM(add_f32, float, plus32)
FLOATING_SUM(add_f64, double, plus64)
SCALED_SUM(add_scaled_f32, float, plus32)
SCALED_SUM(add_scaled_f64, double, plus64)
TIMES(times_f32, float)
TIMES(times_f64, double)
EXTREME(max_f32, uint32_t, float, from_bits32, <=, &, -1)
EXTREME(min_f32, uint32_t, float, from_bits32, >=, |, 0)
EXTREME(max_f64, uint64_t, double, from_bits64, <=, &, -1)
EXTREME(min_f64, uint64_t, double, from_bits64, >=, |, 0)
EXTREME16(max_f16, >, 0x7C00)
EXTREME16(min_f16, <, 0x7C00)
EXTREME16(max_bf16, >, 0x7F80)
EXTREME16(min_bf16, <, 0x7F80)
WHOLE(add_f16, uint16_t, (uint16_t)plus16(a[i], b[i]))
WHOLE(add_bf16, uint16_t, to_bfloat16(from_bfloat16(a[i]) + from_bfloat16(b[i]))) /* any NaN becomes the only one */
WHOLE(add_i32, uint32_t, a[i] + b[i])                                             /* unsigned: overflow wraps around */
WHOLE(max_i32, int32_t, a[i] < b[i] ? b[i] : a[i])
WHOLE(min_i32, int32_t, b[i] < a[i] ? b[i] : a[i])
WHOLE(add_i64, uint64_t, a[i] + b[i])
WHOLE(max_i64, int64_t, a[i] < b[i] ? b[i] : a[i])
WHOLE(min_i64, int64_t, b[i] < a[i] ? b[i] : a[i])

/* The same by the processor's own conversions, where it has them: a tenth of the time. */
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx,f16c"))) static void add_f16_by_f16c(void *out, const void *x, const void *y, size_t bytes,
                                                                double scale) {
    char *o = out;
    const char *a = x, *b = y;
    const __m128i magnitude = _mm_set1_epi16(0x7FFF), infinity = _mm_set1_epi16(0x7C00), quiet = _mm_set1_epi16(0x0200);
    size_t at = 0;
    for (; at + 16 <= bytes; at += 16) {
        __m128i p = _mm_loadu_si128((const __m128i *)(a + at)), q = _mm_loadu_si128((const __m128i *)(b + at));
        __m128i sum = _mm256_cvtps_ph(_mm256_add_ps(_mm256_cvtph_ps(p), _mm256_cvtph_ps(q)), _MM_FROUND_TO_NEAREST_INT);
        __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(p, magnitude), infinity);
        _mm_storeu_si128((__m128i *)(o + at), _mm_blendv_epi8(sum, _mm_or_si128(p, quiet), is_nan));
    }
    add_f16(o + at, a + at, b + at, bytes - at, scale);
}
static int has_f16c(void) { return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"); }
#else
#define add_f16_by_f16c add_f16
static int has_f16c(void) { return 0; }
#endif

static reduce_function reducer(int dtype, int op) {
    static const struct { int dtype, op; reduce_function function; } known[] = {
        {FLOAT32, SUM, add_f32},   {FLOAT32, MAX, max_f32},   {FLOAT32, MIN, min_f32},
        {FLOAT64, SUM, add_f64},   {FLOAT64, MAX, max_f64},   {FLOAT64, MIN, min_f64},
        {INT32, SUM, add_i32},     {INT32, MAX, max_i32},     {INT32, MIN, min_i32},
        {INT64, SUM, add_i64},     {INT64, MAX, max_i64},     {INT64, MIN, min_i64},
        {FLOAT16, SUM, add_f16},   {FLOAT16, MAX, max_f16},   {FLOAT16, MIN, min_f16},
        {BFLOAT16, SUM, add_bf16}, {BFLOAT16, MAX, max_bf16}, {BFLOAT16, MIN, min_bf16},
    };
    if (dtype == FLOAT16 && op == SUM && has_f16c()) return add_f16_by_f16c;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].dtype == dtype && known[i].op == op) return known[i].function;
    return NULL;
}

/* out = x + scale * y, and out = scale * x; NULL where a reduction of this type cannot be scaled here. */
static reduce_function scaled_reducer(int dtype, int op) {
    return op != SUM ? NULL : dtype == FLOAT32 ? add_scaled_f32 : dtype == FLOAT64 ? add_scaled_f64 : NULL;
}
static reduce_function scaler(int dtype, int op) {
    return op != SUM ? NULL : dtype == FLOAT32 ? times_f32 : dtype == FLOAT64 ? times_f64 : NULL;
}

/* A thread may have been told to take denormals for zero (torch.set_flush_denormal), or to round in another way. Which
   thread makes a sum is chance and differs between ranks: sums are made as every thread starts. */
#if defined(__x86_64__)
typedef unsigned Arithmetic;
static Arithmetic plain_arithmetic(void) {
    Arithmetic before = _mm_getcsr();
    _mm_setcsr(0x1F80); /* no exceptions, to nearest, denormals as they are */
    return before;
}
static void restore_arithmetic(Arithmetic before) { _mm_setcsr(before); }
#else
typedef fenv_t Arithmetic;
static Arithmetic plain_arithmetic(void) {
    Arithmetic before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}
static void restore_arithmetic(Arithmetic before) { fesetenv(&before); }
#endif

#endif
