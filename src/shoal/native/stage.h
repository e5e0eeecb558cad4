/* A long message where cores are few: two copies in user space take less time than the kernel's one, which looks up every
   page (16 MB: 2 ms against 4), and the sender would only wait.

   The sender copies pieces, in order, into its stage, a few slots of its arena that stay in the cache; the receiver
   copies them out. Neither depends on the other: what is not staged, the receiver reads itself, from the end. Counts
   lie in the lower half of a word (the sender's of what is staged, the receiver's of what is taken) and the number of
   the message in the upper one. The layout is also in `collectives/mailbox/pieces.py`. */
#ifndef SHOAL_STAGE_H
#define SHOAL_STAGE_H

#include "stream.h"
#include "team.h"

enum { STAGED = 2, GIVING = 3, TAKEN = 9, UNTIL = 10 };   /* words in a neighbour's lines of an arena */
enum { STAGE_PIECE = 1 << 18, STAGE_SLOTS = 8 };          /* bytes; pieces */
enum { STAGE_TURN = 64 };                                 /* pieces after which the sender looks for its other messages */
#define STAGE_PATIENCE 0.001 /* seconds that one waits for the other, which may have no core just now */

typedef struct {
    uint64_t *own, *its;             /* lines of the other in this rank's arena, and of this rank in the other's */
    uint64_t *own_state, *its_state; /* not 0: it leaves */
    char *slots, *tensor;
    size_t bytes;
    uint64_t number; /* of the message, from 1 */
} Stage;

static uint64_t load_long(uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
static int has_left(const Stage *s) { return load_long(s->own_state) || load_long(s->its_state); }
static size_t pieces_of(const Stage *s) { return (s->bytes + STAGE_PIECE - 1) / STAGE_PIECE; }
static size_t piece_bytes(const Stage *s, size_t piece) {
    size_t left = s->bytes - piece * STAGE_PIECE;
    return left < STAGE_PIECE ? left : STAGE_PIECE;
}
static char *slot_of(const Stage *s, size_t piece) { return s->slots + piece % STAGE_SLOTS * STAGE_PIECE; }
static void tell(uint64_t *at, uint64_t number, size_t count) {
    __atomic_store_n(at, number << 32 | count, __ATOMIC_SEQ_CST);
    futex((uint32_t *)at, FUTEX_WAKE, INT_MAX, 0);
}

/* Stage what there is room for, and more while somebody takes it. Returns the pieces that were staged. */
static ssize_t give(const Stage *s) {
    uint64_t staged = load_long(s->own + STAGED);
    size_t pieces = pieces_of(s), begun = staged >> 32 == s->number ? (uint32_t)staged : 0, at = begun, left = pieces;
    for (int is_late = 0; at < left && at - begun < STAGE_TURN && !has_left(s);) {
        uint64_t taken = load_long(s->its + TAKEN);
        int is_taken = taken >> 32 == s->number;
        if (is_taken) left = (size_t)load_long(s->its + UNTIL);
        if (left > pieces) left = pieces;
        if (at - (is_taken ? (uint32_t)taken : 0) < STAGE_SLOTS) {
            if (at >= left) break;
            memcpy(slot_of(s, at), s->tensor + at * STAGE_PIECE, piece_bytes(s, at));
            tell(s->own + STAGED, s->number, ++at);
            is_late = 0;
        } else if (!is_taken || is_late) {
            break;
        } else {
            futex((uint32_t *)(s->its + TAKEN), FUTEX_WAIT, (uint32_t)taken, STAGE_PATIENCE);
            is_late = load_long(s->its + TAKEN) == taken;
        }
    }
    return (ssize_t)(at - begun);
}

/* Take what is staged, and more while somebody gives. Returns the pieces that were taken of this message so far, or -1:
   the sender has left, and they may be of anything. */
static ssize_t take_staged(const Stage *s) {
    size_t at = (uint32_t)load_long(s->own + TAKEN);
    for (int is_late = 0; at < load_long(s->own + UNTIL) && !has_left(s);) {
        int is_giving = load_long(s->its + GIVING) != 0; /* first: what it staged before it left off counts */
        uint64_t staged = load_long(s->its + STAGED);
        if (staged >> 32 == s->number && (uint32_t)staged > at) {
            copy_away(s->tensor + at * STAGE_PIECE, slot_of(s, at), piece_bytes(s, at), s->bytes);
            tell(s->own + TAKEN, s->number, ++at);
            is_late = 0;
        } else if (!is_giving || is_late) {
            break;
        } else {
            futex((uint32_t *)(s->its + STAGED), FUTEX_WAIT, (uint32_t)staged, STAGE_PATIENCE);
            is_late = load_long(s->its + STAGED) == staged;
        }
    }
    return load_long(s->its_state) ? -1 : (ssize_t)at;
}

#endif
