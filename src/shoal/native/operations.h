/* The collectives of a team. Tensors lie in several pieces of memory (entries) that are taken as one run of bytes.

   A sum is made in the order of the ranks, whichever way the bytes take, so all ways give the same bits. */
#ifndef SHOAL_OPERATIONS_H
#define SHOAL_OPERATIONS_H

#include "reduce.h"
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

/* acc = scale * x, then acc += scale * x, ... in the order of the ranks. */
static void first(const Kernel *k, void *acc, const void *x, size_t bytes, double scale) {
    if (k->is_scaled) k->times(acc, x, bytes, scale);
    else if (acc != x) memcpy(acc, x, bytes);
}
static void more(const Kernel *k, void *acc, const void *x, size_t bytes, double scale) {
    (k->is_scaled ? k->add_scaled : k->add)(acc, x, bytes, scale);
}

/* Reduce one piece of memory that all ranks have; `mine` becomes the sum. `place` gives a peer's address of it. */
static int reduce_block(Team *t, const Kernel *k, char *mine, uint32_t index, size_t offset, size_t bytes) {
    char *read = t->scratch, *acc = t->rank < 2 ? mine : t->scratch + t->block;
    if (t->rank < 2) first(k, mine, mine, bytes, notice(t, t->rank)->scale); /* the first two may change places */
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        if (r == t->rank) {
            if (t->rank >= 2) more(k, acc, mine, bytes, n->scale);
            continue;
        }
        char *to = t->rank >= 2 && r == 0 ? acc : read;
        TRY(pull(t, r, to, n->entries[index].address + offset, bytes));
        if (to == acc) first(k, acc, acc, bytes, n->scale);
        else more(k, acc, read, bytes, n->scale);
    }
    if (acc != mine) memcpy(mine, acc, bytes);
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

/* Bytes [start, stop) of this rank's run into the slot, scaled; or the reverse, from anywhere. */
static void copy_in(Team *t, const Kernel *k, size_t start, size_t stop) {
    char *to = slot(t, t->rank);
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

/* Sum what lies at the same offset of all slots into `to`. */
static void sum_slots(Team *t, const Kernel *k, char *to, size_t offset, size_t bytes) {
    for (size_t at = 0; at < bytes; at += t->block) {
        size_t size = lesser(t->block, bytes - at);
        memcpy(to + at, slot(t, 0) + offset + at, size);
        for (int r = 1; r < t->size; r++) k->add(to + at, slot(t, r) + offset + at, size, 1.0);
    }
}

/* One phase: everybody sums everything. */
static int all_reduce_small(Team *t, const Kernel *k, size_t bytes) {
    Notice *n = notice(t, t->rank);
    size_t start = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        sum_slots(t, k, own(n, i, 0), start, n->entries[i].bytes);
        start += n->entries[i].bytes;
    }
    t->rounds++;
    (void)bytes;
    return DONE;
}

/* Through the slots, a slot full at a time: the first one is in place already when all have met. */
static int all_reduce_staged(Team *t, const Kernel *k, size_t bytes) {
    for (size_t base = 0; base < bytes; base += SLOT_BYTES) {
        size_t left = lesser(SLOT_BYTES, bytes - base);
        size_t part = ((left + (size_t)t->size - 1) / (size_t)t->size + LINE - 1) / LINE * LINE;
        size_t start = lesser(part * (size_t)t->rank, left), stop = lesser(start + part, left);
        if (base) {
            copy_in(t, k, base, base + left);
            signal_phase(t);
            TRY(await_all(t, t->phase));
        }
        sum_slots(t, k, result(t, t->rank), start, stop - start);
        signal_phase(t);
        uint32_t reduced = t->phase;
        copy_out(t, result(t, t->rank), base + start, base + stop);
        for (int i = 1; i < t->size; i++) {
            int r = (t->rank + i) % t->size;
            size_t a = lesser(part * (size_t)r, left), b = lesser(a + part, left);
            TRY(await(t, r, reduced));
            copy_out(t, result(t, r), base + a, base + b);
        }
        t->rounds++;
    }
    return DONE;
}

static int all_reduce(Team *t, const Kernel *k) {
    Notice *mine = notice(t, t->rank);
    size_t bytes = total(mine);
    int is_small = bytes <= t->small;
    mine->staged = is_small || !t->reads_memory;
    Kernel used = *k;
    if (mine->staged) {
        used.is_scaled = mine->scale != 1.0;
        copy_in(t, &used, 0, lesser(bytes, SLOT_BYTES));
    }
    TRY(meet(t));
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        used.is_scaled |= n->scale != 1.0;
        if (n->count != mine->count || n->staged != mine->staged) return failed(t, DISAGREE, r, 0);
        for (uint32_t i = 0; i < n->count; i++)
            if (n->entries[i].bytes != mine->entries[i].bytes) return failed(t, DISAGREE, r, 0);
    }
    if (!bytes) return DONE;
    if (is_small) return all_reduce_small(t, &used, bytes);
    if (!mine->staged) return all_reduce_reading(t, &used, bytes);
    used.is_scaled = mine->scale != 1.0;
    return all_reduce_staged(t, &used, bytes);
}

/* Every entry has an equal share of the slot. */
static size_t share(const Notice *n) { return n->count ? SLOT_BYTES / n->count / LINE * LINE : SLOT_BYTES; }
static void stage_entries(Team *t, size_t round) {
    Notice *n = notice(t, t->rank);
    size_t part = share(n);
    for (uint32_t i = 0; i < n->count; i++)
        if (n->entries[i].bytes > round * part)
            memcpy(slot(t, t->rank) + i * part, own(n, i, round * part), lesser(part, n->entries[i].bytes - round * part));
}
static size_t rounds_of(Team *t, int *anybody_reads) {
    size_t most = 0;
    *anybody_reads = 0;
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        if (!n->staged) *anybody_reads = 1;
        size_t longest = 0;
        for (uint32_t i = 0; n->staged && i < n->count; i++)
            if (n->entries[i].bytes > longest) longest = n->entries[i].bytes;
        size_t needed = (longest + share(n) - 1) / share(n);
        if (needed > most) most = needed;
    }
    return most ? most : 1;
}

/* Begin: entries that fit go into the slot with the notice, large ones stay where they are. */
static int meet_with_entries(Team *t) {
    Notice *mine = notice(t, t->rank);
    size_t longest = 0;
    for (uint32_t i = 0; i < mine->count; i++)
        if (mine->entries[i].bytes > longest) longest = mine->entries[i].bytes;
    mine->staged = !t->reads_memory || (longest <= share(mine) && total(mine) <= t->small);
    if (mine->staged) stage_entries(t, 0);
    return meet(t);
}
static int end_of_reading(Team *t, int anybody_reads) {
    if (!anybody_reads) return DONE;
    TRY(look(t)); /* what was read was still there */
    signal_phase(t);
    return await_all(t, t->phase);
}
static int next_round(Team *t, size_t round, size_t rounds) {
    t->rounds++;
    if (round + 1 >= rounds) return DONE;
    if (notice(t, t->rank)->staged) stage_entries(t, round + 1);
    signal_phase(t);
    return await_all(t, t->phase);
}

/* Take entries of peers as they are. */
static int exchange(Team *t, const Output *outputs, size_t count) {
    int anybody_reads;
    TRY(meet_with_entries(t));
    for (size_t i = 0; i < count; i++) {
        Notice *n = notice(t, outputs[i].peer);
        if (outputs[i].index >= n->count || n->entries[outputs[i].index].bytes != outputs[i].bytes)
            return failed(t, DISAGREE, outputs[i].peer, (int)outputs[i].index + 1);
    }
    size_t rounds = rounds_of(t, &anybody_reads);
    for (size_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < count; i++) {
            const Output *o = &outputs[i];
            Notice *n = notice(t, o->peer);
            size_t part = share(n), at = round * part;
            if (o->peer == t->rank) {
                if (!round) memmove(o->local, own(n, o->index, 0), o->bytes);
            } else if (!n->staged) {
                if (!round) TRY(pull(t, o->peer, o->local, n->entries[o->index].address, o->bytes));
            } else if (o->bytes > at)
                memcpy(o->local + at, slot(t, o->peer) + o->index * part, lesser(part, o->bytes - at));
        }
        TRY(next_round(t, round, rounds));
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
        else if (n->staged) from = slot(t, r) + index * share(n) + (at - round * share(n));
        else TRY(pull(t, r, r ? t->scratch : acc, n->entries[index].address + at, bytes));
        if (r) k->add(acc, from, bytes, 1.0);
        else if (r == t->rank || n->staged) memcpy(acc, from, bytes);
    }
    memcpy(to + at, acc, bytes);
    return DONE;
}

/* The sum of every rank's entry for this rank. */
static int reduce_scatter(Team *t, const Kernel *k, char *to, size_t bytes) {
    int anybody_reads;
    TRY(meet_with_entries(t));
    for (int r = 0; r < t->size; r++) {
        Notice *n = notice(t, r);
        if (n->count != (uint32_t)t->size || n->entries[t->rank].bytes != bytes)
            return failed(t, DISAGREE, r, t->rank + 1);
    }
    size_t rounds = rounds_of(t, &anybody_reads), part = share(notice(t, t->rank));
    for (size_t round = 0; round < rounds; round++) {
        /* With somebody's entries in slots the shares set the pace; read from memory all of it is there at once. */
        size_t start = rounds == 1 ? 0 : round * part, stop = rounds == 1 ? bytes : lesser(bytes, start + part);
        for (size_t at = start; at < stop; at += t->block)
            TRY(reduce_entry(t, k, to, at, lesser(t->block, stop - at), round));
        TRY(next_round(t, round, rounds));
    }
    return end_of_reading(t, anybody_reads);
}

#endif
