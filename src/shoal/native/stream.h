/* Copies into memory that is too large to be in the cache when it is read. */
#ifndef SHOAL_STREAM_H
#define SHOAL_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Bytes; what is longer leaves the cache before it is read, so it need not enter: a store past the cache saves reading
   the line first, a third of a copy's traffic. */
#define STREAM_FROM (4u << 20)

/* Copy some bytes of a tensor of `whole` bytes; they do not overlap. */
static void copy_away(char *to, const char *from, size_t bytes, size_t whole) {
#if defined(__SSE2__)
    if (whole >= STREAM_FROM && bytes >= 4096) {
        size_t head = -(uintptr_t)to & 63;
        memcpy(to, from, head);
        to += head, from += head, bytes -= head;
        for (; bytes >= 64; to += 64, from += 64, bytes -= 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)from + 1);
            __m128i c = _mm_loadu_si128((const __m128i *)from + 2), d = _mm_loadu_si128((const __m128i *)from + 3);
            _mm_prefetch(from + 1024, _MM_HINT_T0);
            _mm_stream_si128((__m128i *)to, a), _mm_stream_si128((__m128i *)to + 1, b);
            _mm_stream_si128((__m128i *)to + 2, c), _mm_stream_si128((__m128i *)to + 3, d);
        }
        _mm_sfence(); /* others see it before they see the phase that follows */
    }
#endif
    memcpy(to, from, bytes);
}

#endif
