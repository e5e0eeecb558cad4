/* Element-wise reductions of two runs of numbers: out = x (op) y, where out may be x or y. One rounding per operation, as torch's and numpy's
   own: contraction into fused multiply-add is off, so that a scaled sum has the same bits with and without this code. */
#ifndef SHOAL_REDUCE_H
#define SHOAL_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EVERY_CPU
#endif

/* Codes as in `collectives/dtypes.py` and `wire/frames.py`. */
enum { INT32 = 5, INT64 = 6, BFLOAT16 = 8, FLOAT32 = 9, FLOAT64 = 10 };
enum { SUM = 1, MAX = 2, MIN = 3 };

typedef void (*reduce_function)(void *out, const void *x, const void *y, size_t bytes, double scale); /* of y */

static inline float from_bfloat16(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

static inline uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16; /* to nearest, ties to even */
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (uint16_t)0x7FC0 : (uint16_t)rounded;
}

#define ADD(a, b) ((a) + (b))
#define GREATER(a, b) (((b) > (a) || (b) != (b)) ? (b) : (a)) /* not-a-number wins, as in torch */
#define LESSER(a, b) (((b) < (a) || (b) != (b)) ? (b) : (a))

#define PLAIN(NAME, TYPE, OP)                                                                                   \
    FOR_EVERY_CPU static void NAME(void *out, const void *x, const void *y, size_t bytes, double scale) {       \
        TYPE *o = out;                                                                                          \
        const TYPE *a = x, *b = y;                                                                              \
        (void)scale;                                                                                            \
        for (size_t i = 0; i < bytes / sizeof(TYPE); i++) o[i] = OP(a[i], b[i]);                                \
    }
#define SCALED(NAME, TYPE)                                                                                      \
    FOR_EVERY_CPU static void NAME(void *out, const void *x, const void *y, size_t bytes, double scale) {       \
        TYPE *o = out, s = (TYPE)scale;                                                                         \
        const TYPE *a = x, *b = y;                                                                              \
        for (size_t i = 0; i < bytes / sizeof(TYPE); i++) o[i] = a[i] + s * b[i];                               \
    }
#define TIMES(NAME, TYPE)                                                                                       \
    FOR_EVERY_CPU static void NAME(void *out, const void *x, const void *unused, size_t bytes, double scale) {  \
        TYPE *o = out, s = (TYPE)scale;                                                                         \
        const TYPE *a = x;                                                                                      \
        (void)unused;                                                                                           \
        for (size_t i = 0; i < bytes / sizeof(TYPE); i++) o[i] = s * a[i];                                      \
    }
#define BRAIN(NAME, OP)                                                                                         \
    FOR_EVERY_CPU static void NAME(void *out, const void *x, const void *y, size_t bytes, double scale) {       \
        uint16_t *o = out;                                                                                      \
        const uint16_t *a = x, *b = y;                                                                          \
        (void)scale;                                                                                            \
        for (size_t i = 0; i < bytes / 2; i++) {                                                                \
            float left = from_bfloat16(a[i]), right = from_bfloat16(b[i]);                                      \
            o[i] = to_bfloat16(OP(left, right));                                                                \
        }                                                                                                       \
    }

PLAIN(add_f32, float, ADD)
PLAIN(max_f32, float, GREATER)
PLAIN(min_f32, float, LESSER)
PLAIN(add_f64, double, ADD)
PLAIN(max_f64, double, GREATER)
PLAIN(min_f64, double, LESSER)
PLAIN(add_i32, uint32_t, ADD) /* unsigned: overflow wraps around */
PLAIN(max_i32, int32_t, GREATER)
PLAIN(min_i32, int32_t, LESSER)
PLAIN(add_i64, uint64_t, ADD)
PLAIN(max_i64, int64_t, GREATER)
PLAIN(min_i64, int64_t, LESSER)
BRAIN(add_bf16, ADD)
BRAIN(max_bf16, GREATER)
BRAIN(min_bf16, LESSER)
SCALED(add_scaled_f32, float)
SCALED(add_scaled_f64, double)
TIMES(times_f32, float)
TIMES(times_f64, double)

static reduce_function reducer(int dtype, int op) {
    static const struct { int dtype, op; reduce_function function; } known[] = {
        {FLOAT32, SUM, add_f32},   {FLOAT32, MAX, max_f32},   {FLOAT32, MIN, min_f32},
        {FLOAT64, SUM, add_f64},   {FLOAT64, MAX, max_f64},   {FLOAT64, MIN, min_f64},
        {INT32, SUM, add_i32},     {INT32, MAX, max_i32},     {INT32, MIN, min_i32},
        {INT64, SUM, add_i64},     {INT64, MAX, max_i64},     {INT64, MIN, min_i64},
        {BFLOAT16, SUM, add_bf16}, {BFLOAT16, MAX, max_bf16}, {BFLOAT16, MIN, min_bf16},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].dtype == dtype && known[i].op == op) return known[i].function;
    return NULL;
}

/* out = x + scale * y, and out = scale * x; NULL where a sum of this type cannot be scaled here. */
static reduce_function scaled_reducer(int dtype) {
    return dtype == FLOAT32 ? add_scaled_f32 : dtype == FLOAT64 ? add_scaled_f64 : NULL;
}

static reduce_function scaler(int dtype) {
    return dtype == FLOAT32 ? times_f32 : dtype == FLOAT64 ? times_f64 : NULL;
}

#endif
