/* The collectives of a team. Tensors lie in several pieces of memory (entries) that are taken as one run of bytes.

   A sum is made in the order of the ranks, whichever way the bytes take, so all ways give the same bits. */
#ifndef SHOAL_OPERATIONS_H
#define SHOAL_OPERATIONS_H

#include "reduce.h"
#include "stream.h"
#include "team.h"

#define TRY(call) do { int how_ = (call); if (how_ != DONE) return how_; } while (0)
#define LINE 64

typedef struct { reduce_function add, add_scaled, times; size_t width; int is_scaled; } Kernel;
typedef struct { int peer; uint32_t index; char *local; size_t bytes; } Output; /* a peer's entry and where it goes */

static size_t lesser(size_t a, size_t b) { return a < b ? a : b; }
static size_t total(const Notice *n) {
    size_t sum = 0;
    for (uint32_t i = 0; i < n->count; i++) sum += n->entries[i].bytes;
    return sum;
}

/* Visits the pieces of memory that bytes [start, stop) of a run of entries lie in. */
typedef struct { const Notice *of; uint32_t index; size_t begin, at, stop; } Walk;
static Walk walk(const Notice *of, size_t start, size_t stop) { return (Walk){of, 0, 0, start, stop}; }
static size_t next_piece(Walk *w, size_t most, uint32_t *index, size_t *offset) {
    while (w->at < w->stop) {
        size_t bytes = w->of->entries[w->index].bytes;
        if (w->at < w->begin + bytes) {
            *index = w->index;
            *offset = w->at - w->begin;
            size_t size = lesser(lesser(w->stop, w->begin + bytes) - w->at, most);
            w->at += size;
            return size;
        }
        w->begin += bytes;
        w->index++;
    }
    return 0;
}
static char *own(const Notice *n, uint32_t index, size_t offset) {
    return (char *)(uintptr_t)n->entries[index].address + offset;
}

/* out = scale * x, and out = x + scale * y. */
static void first(const Kernel *k, void *out, const void *x, size_t bytes, double scale) {
    if (k->is_scaled) k->times(out, x, NULL, bytes, scale);
    else if (out != x) memcpy(out, x, bytes);
}
static void more(const Kernel *k, void *out, const void *x, const void *y, size_t bytes, double scale) {
    (k->is_scaled ? k->add_scaled : k->add)(out, x, y, bytes, scale);
}

/* Reduce a block of memory that all ranks have, in the order of the ranks: `mine` becomes the sum. */
static int reduce_block(Team *t, const Kernel *k, char *mine, uint32_t index, size_t offset, size_t bytes) {
    char *read = t->scratch, *sum = t->rank == 0 ? mine : t->scratch + t->block;
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        const char *from = mine;
        if (r != t->rank) {
            from = r ? read : sum;
            TRY(pull(t, r, (char *)from, n->entries[index].address + offset, bytes));
        }
        if (r == 0) first(k, sum, from, bytes, n->scale);
        else {
            char *to = r == t->rank ? mine : sum; /* from here on the sum is where it belongs */
            more(k, to, sum, from, bytes, n->scale);
            sum = to;
        }
    }
    return DONE;
}

/* Part `rank` of chunk `chunk`, in bytes of the run. The last chunk is cut into smaller parts. */
static void part_of(Team *t, size_t bytes, size_t chunk, int rank, size_t *start, size_t *stop) {
    size_t size = t->piece * (size_t)t->size, base = chunk * size, left = lesser(size, bytes - base);
    size_t part = ((left + (size_t)t->size - 1) / (size_t)t->size + LINE - 1) / LINE * LINE;
    *start = base + lesser(part * (size_t)rank, left);
    *stop = base + lesser(part * (size_t)(rank + 1), left);
}

static int pull_chunk(Team *t, size_t bytes, size_t chunk, uint32_t phase) {
    for (int k = 1; k < t->size; k++) {
        int owner = (t->rank + k) % t->size;
        size_t start, stop, size, offset;
        uint32_t index;
        TRY(await(t, owner, phase));
        part_of(t, bytes, chunk, owner, &start, &stop);
        Walk w = walk(notice(t, t->rank), start, stop);
        while ((size = next_piece(&w, SIZE_MAX, &index, &offset)))
            TRY(pull(t, owner, own(notice(t, t->rank), index, offset),
                     notice(t, owner)->entries[index].address + offset, size));
    }
    return DONE;
}

/* Every rank owns a part of each chunk: it reads that part from the others, adds, and they read the sum. */
static int all_reduce_reading(Team *t, const Kernel *k, size_t bytes) {
    size_t size = t->piece * (size_t)t->size, chunks = (bytes + size - 1) / size;
    uint32_t base = t->phase;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        size_t start, stop, got, offset;
        uint32_t index;
        part_of(t, bytes, chunk, t->rank, &start, &stop);
        Walk w = walk(notice(t, t->rank), start, stop);
        while ((got = next_piece(&w, t->block, &index, &offset)))
            TRY(reduce_block(t, k, own(notice(t, t->rank), index, offset), index, offset, got));
        signal_phase(t);
        if (chunk) TRY(pull_chunk(t, bytes, chunk - 1, base + (uint32_t)chunk));
    }
    TRY(pull_chunk(t, bytes, chunks - 1, base + (uint32_t)chunks));
    TRY(look(t)); /* what was read was still there */
    signal_phase(t);
    return await_all(t, t->phase);
}

/* Bytes [start, stop) of this rank's run into its slot, scaled; and from anywhere into the run. */
static void copy_in(Team *t, const Kernel *k, char *to, size_t start, size_t stop) {
    size_t size, offset;
    uint32_t index;
    Notice *n = notice(t, t->rank);
    Walk w = walk(n, start, stop);
    while ((size = next_piece(&w, SIZE_MAX, &index, &offset))) {
        first(k, to, own(n, index, offset), size, n->scale);
        to += size;
    }
}
static void copy_out(Team *t, const char *from, size_t start, size_t stop) {
    size_t size, offset;
    uint32_t index;
    Notice *n = notice(t, t->rank);
    Walk w = walk(n, start, stop);
    while ((size = next_piece(&w, SIZE_MAX, &index, &offset))) {
        memcpy(own(n, index, offset), from, size);
        from += size;
    }
}

/* One phase: everybody sums what lies in all slots, in the order of the ranks. The first two ranks can take their own
   values from where they lie, unless those in the slot were scaled. */
static int all_reduce_small(Team *t, const Kernel *k) {
    Notice *n = notice(t, t->rank);
    size_t start = 0;
    for (uint32_t i = 0; i < n->count; start += n->entries[i++].bytes)
        for (size_t at = 0; at < n->entries[i].bytes; at += t->block) {
            size_t size = lesser(t->block, n->entries[i].bytes - at), place = start + at;
            char *to = own(n, i, at);
            int mine = k->is_scaled ? -1 : t->rank;
            k->add(to, mine == 0 ? to : slot(t, 0) + place, mine == 1 ? to : slot(t, 1) + place, size, 1.0);
            for (int r = 2; r < t->size; r++) k->add(to, to, slot(t, r) + place, size, 1.0);
        }
    t->rounds++;
    return DONE;
}

/* This rank's part of a chunk that lies in the slots: into the tensor and into the result, for the others to take. */
static void reduce_slots(Team *t, const Kernel *k, size_t chunk, size_t bytes) {
    Notice *n = notice(t, t->rank);
    size_t start, stop, size, offset, base = chunk * t->piece * (size_t)t->size;
    uint32_t index;
    part_of(t, bytes, chunk, t->rank, &start, &stop);
    char *to = result(t, t->rank);
    size_t at = start - base;
    Walk w = walk(n, start, stop);
    while ((size = next_piece(&w, t->block, &index, &offset))) {
        char *mine = own(n, index, offset);
        if (k->is_scaled) k->times(mine, mine, NULL, size, n->scale);
        const char *with = t->rank == 0 ? mine : slot(t, 0) + at;
        for (int r = 1; r < t->size; r++, with = to) k->add(to, with, r == t->rank ? mine : slot(t, r) + at, size, 1.0);
        memcpy(mine, to, size);
        to += size;
        at += size;
    }
}
static void take_results(Team *t, size_t chunk, size_t bytes) {
    for (int i = 1; i < t->size; i++) {
        int r = (t->rank + i) % t->size;
        size_t start, stop;
        part_of(t, bytes, chunk, r, &start, &stop);
        copy_out(t, result(t, r), start, stop);
    }
}
/* What the others will add up goes into the slot, at its place in the chunk. */
static void offer_chunk(Team *t, const Kernel *k, size_t chunk, size_t bytes) {
    size_t base = chunk * t->piece * (size_t)t->size;
    for (int r = 0; r < t->size; r++) {
        size_t start, stop;
        if (r == t->rank) continue;
        part_of(t, bytes, chunk, r, &start, &stop);
        copy_in(t, k, slot(t, t->rank) + (start - base), start, stop);
    }
}

/* Through the slots, chunk by chunk; the first one is in place when all have met. One wait for each chunk: behind it
   lie the others' parts of this chunk and their results of the last one. */
static int all_reduce_staged(Team *t, const Kernel *k, size_t bytes) {
    size_t size = t->piece * (size_t)t->size, chunks = (bytes + size - 1) / size;
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        if (chunk) TRY(await_all(t, t->phase));
        reduce_slots(t, k, chunk, bytes);
        t->rounds++;
        if (chunk) take_results(t, chunk - 1, bytes); /* the other slot's results */
        if (chunk + 1 < chunks) offer_chunk(t, k, chunk + 1, bytes);
        signal_phase(t);
    }
    TRY(await_all(t, t->phase));
    t->rounds++;
    take_results(t, chunks - 1, bytes);
    return DONE;
}

/* A sum that is scaled needs loops for that, whoever wants it. */
static int check_scale(Team *t, const Kernel *k, int rank) {
    return notice(t, rank)->scale == 1.0 || k->times ? DONE : failed(t, GARBLED, rank, 0);
}

static int all_reduce(Team *t, const Kernel *k) {
    Notice *mine = notice(t, t->rank);
    size_t bytes = total(mine);
    int is_small = bytes <= t->small;
    mine->staged = is_small || !t->reads_to_reduce;
    Kernel used = *k;
    used.is_scaled = mine->scale != 1.0;
    if (is_small) copy_in(t, &used, slot(t, t->rank), 0, bytes);
    else if (mine->staged) offer_chunk(t, &used, 0, bytes);
    TRY(meet(t));
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        TRY(check_scale(t, k, r));
        if (!mine->staged) used.is_scaled |= n->scale != 1.0;
        if (n->count != mine->count || n->staged != mine->staged) return failed(t, DISAGREE, r, 0);
        for (uint32_t i = 0; i < n->count; i++)
            if (n->entries[i].bytes != mine->entries[i].bytes) return failed(t, DISAGREE, r, 0);
    }
    if (!bytes) return DONE;
    if (is_small) return all_reduce_small(t, &used);
    return mine->staged ? all_reduce_staged(t, &used, bytes) : all_reduce_reading(t, &used, bytes);
}

/* Every entry in the slot has an equal share of it. */
static int is_in_slot(const Notice *n, uint32_t i) { return n->entries[i].bytes && n->apart != i + 1; }
static size_t share(const Notice *n) {
    uint32_t count = n->count - (n->apart > 0);
    return count ? SLOT_BYTES / count / LINE * LINE : SLOT_BYTES;
}
static size_t place(const Notice *n, uint32_t i) { return (i - (n->apart > 0 && i >= n->apart)) * share(n); }
static void stage_entries(Team *t, size_t round) {
    Notice *n = notice(t, t->rank);
    size_t part = share(n), at = round * part;
    for (uint32_t i = 0; i < n->count; i++)
        if (is_in_slot(n, i) && n->entries[i].bytes > at)
            memcpy(slot(t, t->rank) + place(n, i), own(n, i, at), lesser(part, n->entries[i].bytes - at));
}
static size_t rounds_of(Team *t, int *anybody_reads) {
    size_t most = 0;
    *anybody_reads = 0;
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        size_t longest = 0;
        for (uint32_t i = 0; i < n->count; i++)
            if (is_in_slot(n, i) && n->entries[i].bytes > longest) longest = n->entries[i].bytes;
        if (!n->staged && longest) *anybody_reads = 1;
        if (!n->staged) continue;
        size_t needed = (longest + share(n) - 1) / share(n);
        if (needed > most) most = needed;
    }
    return most ? most : 1;
}

/* Begin: entries that fit go into the slot with the notice, large ones stay where they are if they are to be read.
   `apart` of this rank's notice is set. */
static int meet_with_entries(Team *t, int reads) {
    Notice *mine = notice(t, t->rank);
    size_t longest = 0;
    for (uint32_t i = 0; i < mine->count; i++)
        if (mine->entries[i].bytes > longest) longest = mine->entries[i].bytes;
    mine->staged = !reads || (longest <= share(mine) && total(mine) <= t->small);
    if (mine->staged) stage_entries(t, 0);
    return meet(t);
}
static int end_of_reading(Team *t, int anybody_reads) {
    if (!anybody_reads) return DONE;
    TRY(look(t)); /* what was read was still there */
    signal_phase(t);
    return await_all(t, t->phase);
}
static void fill_next_round(Team *t, size_t round, size_t rounds) {
    t->rounds++;
    if (round + 1 >= rounds) return;
    if (notice(t, t->rank)->staged) stage_entries(t, round + 1);
    signal_phase(t);
}
/* Who has nothing in its slot need not wait for others of its kind. */
static int fills_slot(const Notice *n) {
    for (uint32_t i = 0; n->staged && i < n->count; i++)
        if (is_in_slot(n, i)) return 1;
    return 0;
}
static int await_next_round(Team *t, size_t round, size_t rounds) {
    int is_read = fills_slot(notice(t, t->rank));
    for (int k = 1; k < t->size && round + 1 < rounds; k++) {
        int peer = (t->rank + k) % t->size;
        if (is_read || fills_slot(notice(t, peer))) TRY(await(t, peer, t->phase));
    }
    return DONE;
}

/* How many ranks take something from another one. An entry for each rank says for whom; one alone is for everybody. */
static int readers_of(Team *t) {
    int readers = 0;
    for (int r = 0; r < t->size; r++)
        for (int from = 0; from < t->size; from++) {
            Notice *n = notice(t, from);
            uint32_t index = n->count == (uint32_t)t->size ? (uint32_t)r : 0;
            if (from != r && n->count > index && n->entries[index].bytes) {
                readers++;
                break;
            }
        }
    return readers;
}

/* Whether this rank takes something from others. If not, it would only wait while they read its memory, so it puts
   what it gives into its slot: two copies in user space take less time than the kernel's one, which looks up every
   page (8 MB: 1.1 ms against 1.8). */
static int takes(Team *t, const Output *outputs, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (outputs[i].peer != t->rank && outputs[i].bytes) return 1;
    return 0;
}

/* One round's part of an output whose bytes are in a slot, or are this rank's own, which it copies while others are
   busy as well. */
static void take(Team *t, const Output *o, size_t round, size_t rounds) {
    Notice *n = notice(t, o->peer);
    int is_own = o->peer == t->rank;
    size_t part = is_own ? (o->bytes / rounds + LINE) / LINE * LINE : share(n), at = round * part;
    const char *from = is_own ? own(n, o->index, 0) : slot(t, o->peer) + place(n, o->index);
    if (is_own && from < o->local + o->bytes && o->local < from + o->bytes) { /* the same memory, perhaps shifted */
        if (!round) memmove(o->local, from, o->bytes);
    } else if (o->bytes > at)
        copy_away(o->local + at, is_own ? from + at : from, lesser(part, o->bytes - at), o->bytes);
}

/* Take entries of peers as they are. */
static int exchange(Team *t, const Output *outputs, size_t count) {
    int anybody_reads;
    Notice *mine = notice(t, t->rank);
    mine->apart = 0;
    for (size_t i = 0; i < count; i++) /* an entry for each rank, this one too; otherwise all are for everybody */
        if (outputs[i].peer == t->rank && mine->count == (uint32_t)t->size) mine->apart = (uint32_t)t->rank + 1;
    TRY(meet_with_entries(t, t->reads_memory && takes(t, outputs, count)));
    int readers = readers_of(t);
    for (size_t i = 0; i < count; i++) {
        Notice *n = notice(t, outputs[i].peer);
        if (outputs[i].index >= n->count || n->entries[outputs[i].index].bytes != outputs[i].bytes)
            return failed(t, DISAGREE, outputs[i].peer, (int)outputs[i].index + 1);
        if (outputs[i].peer != t->rank && n->apart == outputs[i].index + 1) return failed(t, GARBLED, outputs[i].peer, 0);
    }
    size_t rounds = rounds_of(t, &anybody_reads);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) {
            const Output *o = &outputs[i];
            Notice *n = notice(t, o->peer);
            if (o->peer == t->rank) continue;
            if (n->staged) take(t, o, round, rounds);
            else if (!round) TRY(pull_fast(t, o->peer, o->local, n->entries[o->index].address, o->bytes, readers));
        }
        fill_next_round(t, round, rounds);
        for (size_t i = 0; i < count; i++)
            if (outputs[i].peer == t->rank) take(t, &outputs[i], round, rounds);
        TRY(await_next_round(t, round, rounds));
    }
    return end_of_reading(t, anybody_reads);
}

/* One block of every rank's entry for this rank, summed in the order of the ranks. */
static int reduce_entry(Team *t, const Kernel *k, char *to, size_t at, size_t bytes, size_t round) {
    char *acc = t->scratch + t->block;
    uint32_t index = (uint32_t)t->rank;
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        const char *from = t->scratch;
        if (r == t->rank) from = own(n, index, at);
        else if (n->staged) from = slot(t, r) + place(n, index) + (at - round * share(n));
        else TRY(pull(t, r, r ? t->scratch : acc, n->entries[index].address + at, bytes));
        if (r) more(k, acc, acc, from, bytes, n->scale);
        else first(k, acc, r == t->rank || n->staged ? from : acc, bytes, n->scale);
    }
    memcpy(to + at, acc, bytes);
    return DONE;
}

/* The sum of every rank's entry for this rank. */
static int reduce_scatter(Team *t, const Kernel *k, char *to, size_t bytes) {
    int anybody_reads;
    Kernel used = *k;
    notice(t, t->rank)->apart = 0;
    TRY(meet_with_entries(t, t->reads_to_reduce));
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        TRY(check_scale(t, k, r));
        used.is_scaled |= n->scale != 1.0;
        if (n->count != (uint32_t)t->size || n->entries[t->rank].bytes != bytes)
            return failed(t, DISAGREE, r, t->rank + 1);
        if (n->apart) return failed(t, GARBLED, r, 0);
    }
    size_t rounds = rounds_of(t, &anybody_reads), part = share(notice(t, t->rank));
    for (size_t round = 0; round < rounds; round++) {
        /* With somebody's entries in slots the shares set the pace; read from memory all of it is there at once. */
        size_t start = rounds == 1 ? 0 : round * part, stop = rounds == 1 ? bytes : lesser(bytes, start + part);
        for (size_t at = start; at < stop; at += t->block)
            TRY(reduce_entry(t, &used, to, at, lesser(t->block, stop - at), round));
        fill_next_round(t, round, rounds);
        TRY(await_next_round(t, round, rounds));
    }
    return end_of_reading(t, anybody_reads);
}

#endif
