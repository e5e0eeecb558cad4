/* The ranks of a group on one machine: their arenas, and how they wait for each other.

   A rank writes its own arena only and maps the others' read-only. Its phase counts up when it has something for the
   others to see; they wait for it on that word. What a peer wrote about an operation is copied once, checked, and used
   from that copy alone: the peer may be broken, and may write again meanwhile. The layout is also in
   `transport/native_layout.py`, which is compared with this one when the extension is loaded. */
#ifndef SHOAL_TEAM_H
#define SHOAL_TEAM_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("" ::: "memory")
#endif

#define MOST_RANKS 256
#define MOST_ENTRIES 256
#define STATEMENT_BYTES 128
#define MOST_BYTES ((uint64_t)1 << 44) /* of an entry: no tensor of a CPU's memory is longer */
enum { PHASE = 64, WAITING = 128, STATE = 192, OPERATIONS = 200, ROUNDS = 204, NOTICES = 256, NOTICE_BYTES = 4352, SLOTS = 12288 };
enum { SLOT_BYTES = 1 << 20, RESULTS = SLOTS + 2 * SLOT_BYTES };
enum { IN = 0, FINISHED = 1, GAVE_UP = 2 }; /* states */
/* How an operation ended. */
enum { DONE, ABORTED, LOST, DISAGREE, UNREADABLE, STOPPED, LATE, GARBLED, INTERRUPTED };

typedef struct { uint64_t address, bytes; } Entry;
typedef struct {
    char statement[STATEMENT_BYTES]; /* what this rank does: compared with everybody else's */
    uint32_t count;      /* of entries */
    uint32_t staged;     /* the bytes are in the slot; otherwise they are read from their addresses */
    double scale;        /* of this rank's contribution to a sum */
    uint32_t apart;      /* number, from 1, of the entry that this rank takes itself and leaves out of the slot; 0: none */
    uint32_t unused;     /* keeps the rest aligned */
    uint64_t spare[5];
    Entry entries[MOST_ENTRIES];
} Notice;
_Static_assert(sizeof(Notice) <= NOTICE_BYTES && NOTICES + 2 * NOTICE_BYTES <= SLOTS, "notices do not fit");

typedef struct {
    int rank, size;
    char *base[MOST_RANKS];
    pid_t process[MOST_RANKS];
    struct pollfd deaths[MOST_RANKS]; /* pidfds; -1 for this rank */
    /* Kept in this rank's arena between operations. The last two are counted alike on all ranks: they choose between
       two notices and between two slots. */
    uint32_t phase, operations, rounds;
    int cores;                        /* that this process may use */
    double spin;                      /* most seconds of looking at a word before sleeping on it; 0: ranks outnumber cores */
    double looking;                   /* the same, as it has paid off so far: in vain it takes time from whom we wait for */
    int reads_memory, reads_to_reduce; /* large tensors are read where they lie: to take them, to all-reduce them */
    size_t small, piece, block;       /* bytes: largest that goes through slots; of a rank's part of a chunk; of a read */
    double stop_limit, limit;         /* seconds: a stopped peer counts as lost; no operation may wait longer; 0: any */
    double idle;                      /* seconds spent asleep, waiting */
    int culprit, error;               /* rank that made an operation fail, and errno */
    Notice *notices;                  /* of this operation, by rank: this rank's own, and checked copies of the others' */
    char *scratch;                    /* two blocks */
    void *thread;                     /* saved thread state while an operation runs without the interpreter's lock */
} Team;

static inline uint32_t *word(Team *t, int rank, int offset) { return (uint32_t *)(t->base[rank] + offset); }
static inline uint32_t load(uint32_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
static inline void store(uint32_t *at, uint32_t value) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
static inline Notice *notice(Team *t, int rank) { return &t->notices[rank]; }
static inline char *published(Team *t, int rank) { /* a rank's notice in its arena */
    return t->base[rank] + NOTICES + (t->operations & 1) * NOTICE_BYTES;
}
static inline char *slot(Team *t, int rank) { return t->base[rank] + SLOTS + (size_t)(t->rounds & 1) * SLOT_BYTES; }
static inline char *result(Team *t, int rank) { return t->base[rank] + RESULTS + (size_t)(t->rounds & 1) * SLOT_BYTES; }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static long futex(uint32_t *at, int what, uint32_t value, double timeout) {
    struct timespec limit = {(time_t)timeout, (long)((timeout - (double)(time_t)timeout) * 1e9)};
    return syscall(SYS_futex, at, what, value, &limit, NULL, 0);
}

static int failed(Team *t, int how, int culprit, int error) {
    t->culprit = culprit;
    t->error = error;
    return how;
}

static void signal_phase(Team *t) {
    store(word(t, t->rank, PHASE), ++t->phase);
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && load(word(t, r, WAITING))) {
            futex(word(t, t->rank, PHASE), FUTEX_WAKE, INT_MAX, 0);
            return;
        }
}

/* A dead process lets go of its memory first; its pidfd tells only when that memory is freed, 0.2 s for each GB. */
static int is_gone(pid_t process) {
    char byte;
    struct iovec here = {&byte, 1}, there = {NULL, 1}; /* nobody has anything at 0: it is never read */
    return process_vm_readv(process, &here, 1, &there, 1, 0) < 0 && errno == ESRCH;
}

/* Whether somebody has given up or died. What was read from a peer's memory counts only if it is still there. */
static int look(Team *t) {
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && load(word(t, r, STATE)) == GAVE_UP) return failed(t, LOST, r, 0);
    poll(t->deaths, (nfds_t)t->size, 0);
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && (t->deaths[r].revents || is_gone(t->process[r])) && load(word(t, r, STATE)) != FINISHED)
            return failed(t, LOST, r, 0);
    return load(word(t, t->rank, STATE)) ? ABORTED : DONE;
}

static int is_stopped(pid_t process) {
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = 0;
    char *end = strrchr(text, ')'); /* a program's name may hold anything */
    return end && (end[2] == 'T' || end[2] == 't');
}

static int interrupted(Team *t); /* in module.c: lets Python handle a signal */

static int sleep_until(Team *t, int peer, uint32_t target) {
    uint32_t *phase = word(t, peer, PHASE), seen;
    double started = seconds(), stopped = started, looked = started;
    int how = DONE;
    store(word(t, t->rank, WAITING), 1);
    while ((int32_t)((seen = load(phase)) - target) < 0) {
        if (load(word(t, t->rank, STATE))) { how = ABORTED; break; }
        if (load(word(t, peer, STATE))) { /* it may have finished just now */
            if ((int32_t)(load(phase) - target) < 0) how = failed(t, LOST, peer, 0);
            break;
        }
        futex(phase, FUTEX_WAIT, seen, 0.02);
        double now = seconds();
        if (now - looked < 0.015) continue;
        looked = now;
        if ((how = look(t)) == LOST && (int32_t)(load(phase) - target) >= 0) how = DONE; /* the next wait will see it */
        if (how != DONE || (how = interrupted(t)) != DONE) break;
        if (now - started > 0.5 && !is_stopped(t->process[peer])) stopped = now;
        if (now - stopped > t->stop_limit) { how = failed(t, STOPPED, peer, 0); break; }
        if (t->limit > 0 && now - started > t->limit) { how = failed(t, LATE, peer, 0); break; }
    }
    store(word(t, t->rank, WAITING), 0);
    t->idle += seconds() - started;
    return how;
}

static int await(Team *t, int peer, uint32_t target) {
    uint32_t *phase = word(t, peer, PHASE);
    double until = 0;
    if ((int32_t)(__atomic_load_n(phase, __ATOMIC_ACQUIRE) - target) >= 0) return DONE;
    for (unsigned i = 0; t->spin > 0; i++) {
        if ((int32_t)(__atomic_load_n(phase, __ATOMIC_ACQUIRE) - target) >= 0) {
            t->looking = t->looking * 2 < t->spin ? t->looking * 2 : t->spin;
            return DONE;
        }
        if (i % 64 == 63) { /* asking for the time takes as long as some looks */
            if (!until) until = seconds() + t->looking;
            else if (seconds() > until) break;
        }
        PAUSE();
    }
    t->looking = t->looking / 2 > 10e-6 ? t->looking / 2 : 10e-6;
    return sleep_until(t, peer, target);
}

static int await_all(Team *t, uint32_t target) {
    int how = DONE;
    for (int k = 1; k < t->size && how == DONE; k++) how = await(t, (t->rank + k) % t->size, target);
    return how;
}

/* Read from another process's memory. 0, or an errno. */
static int read_process(pid_t process, char *local, uint64_t remote, size_t bytes) {
    while (bytes) {
        struct iovec here = {local, bytes}, there = {(void *)(uintptr_t)remote, bytes};
        ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (got <= 0) return got < 0 ? errno : EFAULT;
        local += got, remote += (uint64_t)got, bytes -= (size_t)got;
    }
    return 0;
}
static int unreadable(Team *t, int peer, int error) {
    int how = look(t);
    return how == DONE ? failed(t, UNREADABLE, peer, error) : how;
}
static int pull(Team *t, int peer, void *local, uint64_t remote, size_t bytes) {
    int error = read_process(t->process[peer], local, remote, bytes);
    return error ? unreadable(t, peer, error) : DONE;
}

/* Everything that the second thread uses: the team is the first one's. */
typedef struct { pid_t process; char *local; uint64_t remote; size_t bytes; int error; } Half;
static void *pull_half(void *given) {
    Half *half = given;
    half->error = read_process(half->process, half->local, half->remote, half->bytes);
    return NULL;
}
/* The same by two threads, where a core would be idle otherwise: one alone does not fill the memory's bandwidth. */
static int pull_fast(Team *t, int peer, void *local, uint64_t remote, size_t bytes, int readers) {
    pthread_t thread;
    size_t first = bytes / 2 / 4096 * 4096;
    Half half = {t->process[peer], (char *)local + first, remote + first, bytes - first, 0};
    if (t->cores < 2 * readers || bytes < (2 << 20) || pthread_create(&thread, NULL, pull_half, &half))
        return pull(t, peer, local, remote, bytes);
    int error = read_process(t->process[peer], local, remote, first);
    pthread_join(thread, NULL);
    if (!error) error = half.error;
    return error ? unreadable(t, peer, error) : DONE;
}

/* Whether a notice can be what that rank says: whatever passes is safe to compute with. */
static int is_sound(const Team *t, int rank, const Notice *n) {
    if (n->count > MOST_ENTRIES || n->staged > 1) return 0;
    if (n->apart && (n->apart != (uint32_t)rank + 1 || n->count != (uint32_t)t->size)) return 0;
    for (uint32_t i = 0; i < n->count; i++)
        if (n->entries[i].bytes > MOST_BYTES || n->entries[i].address > UINT64_MAX - MOST_BYTES) return 0;
    return 1;
}

/* Take a copy of a peer's notice, compare what it says with this rank's, and check the rest. */
static int hear(Team *t, int peer) {
    Notice *heard = notice(t, peer);
    const char *said = published(t, peer);
    const size_t head = offsetof(Notice, entries);
    memcpy(heard, said, head);
    __asm__ volatile("" ::: "memory"); /* it is not read again */
    if (memcmp(notice(t, t->rank)->statement, heard->statement, STATEMENT_BYTES)) return failed(t, DISAGREE, peer, 0);
    if (heard->count <= MOST_ENTRIES) memcpy(heard->entries, said + head, heard->count * sizeof(Entry));
    __asm__ volatile("" ::: "memory");
    return is_sound(t, peer, heard) ? DONE : failed(t, GARBLED, peer, 0);
}

/* Say what this rank does, wait until all have, and compare. */
static int meet(Team *t) {
    const Notice *mine = notice(t, t->rank);
    memcpy(published(t, t->rank), mine, offsetof(Notice, entries) + mine->count * sizeof(Entry));
    signal_phase(t);
    int how = await_all(t, t->phase);
    for (int r = 0; r < t->size && how == DONE; r++)
        if (r != t->rank) how = hear(t, r);
    return how;
}

#endif
