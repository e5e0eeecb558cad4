/* shoal._native: the loops of `collectives/memory/memory_exchanger.py` that must not hold Python's lock. Optional: without it the
   same is done in Python, slower. Arguments come from our own Python code, which has checked them; that both agree on the
   layout of memory and on codes is checked when this is loaded (`LAYOUT`). */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "layout.h"
#include "operations.h"
#include "stage.h"

static const char *NAME = "shoal._native.Team";

static int interrupted(Team *t) {
    PyEval_RestoreThread(t->thread);
    int is_raised = PyErr_CheckSignals();
    t->thread = PyEval_SaveThread();
    return is_raised ? INTERRUPTED : DONE;
}

static void free_team(PyObject *capsule) {
    Team *t = PyCapsule_GetPointer(capsule, NAME);
    free(t->scratch);
    free(t->notices);
    free(t);
}

static Team *team_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, NAME); }

/* team(rank, addresses, processes, pidfds, settings) with settings = (cores, spin, reads_memory, reads_to_reduce,
   small, piece, block, stop_limit, limit) */
static PyObject *make_team(PyObject *self, PyObject *args) {
    (void)self;
    int rank, cores, reads_memory, reads_to_reduce;
    Py_ssize_t small, piece, block;
    double spin, stop_limit, limit;
    PyObject *addresses, *processes, *pidfds;
    if (!PyArg_ParseTuple(args, "iO!O!O!(idppnnndd)", &rank, &PyList_Type, &addresses, &PyList_Type, &processes,
                          &PyList_Type, &pidfds, &cores, &spin, &reads_memory, &reads_to_reduce, &small, &piece, &block, &stop_limit,
                          &limit))
        return NULL;
    Py_ssize_t size = PyList_GET_SIZE(addresses);
    if (size > MOST_RANKS || PyList_GET_SIZE(processes) != size || PyList_GET_SIZE(pidfds) != size || rank >= size)
        return PyErr_Format(PyExc_ValueError, "a team of %zd ranks cannot be made", size);
    if (small > SLOT_BYTES || piece % LINE || block % LINE || piece <= 0 || block <= 0 ||
        (!reads_to_reduce && piece * size > SLOT_BYTES))
        return PyErr_Format(PyExc_ValueError, "sizes %zd, %zd, %zd do not fit", small, piece, block);
    Team *t = calloc(1, sizeof *t);
    if (t) t->notices = calloc((size_t)size, sizeof *t->notices);
    if (!t || !t->notices || posix_memalign((void **)&t->scratch, 4096, 2 * (size_t)block)) {
        if (t) free(t->notices);
        free(t);
        return PyErr_NoMemory();
    }
    t->rank = rank, t->size = (int)size, t->cores = cores, t->spin = spin;
    t->reads_memory = reads_memory, t->reads_to_reduce = reads_to_reduce;
    t->small = (size_t)small, t->piece = (size_t)piece, t->block = (size_t)block;
    t->stop_limit = stop_limit, t->limit = limit;
    for (Py_ssize_t r = 0; r < size; r++) {
        t->base[r] = PyLong_AsVoidPtr(PyList_GET_ITEM(addresses, r));
        t->process[r] = (pid_t)PyLong_AsLong(PyList_GET_ITEM(processes, r));
        t->deaths[r] = (struct pollfd){(int)PyLong_AsLong(PyList_GET_ITEM(pidfds, r)), POLLIN, 0};
    }
    PyObject *capsule = PyErr_Occurred() ? NULL : PyCapsule_New(t, NAME, free_team);
    if (!capsule) free(t->scratch), free(t->notices), free(t);
    return capsule;
}

/* The notice of the operation that begins: statement, and entries as a flat list address, bytes, address, bytes ... */
static int write_notice(Team *t, PyObject *statement, PyObject *entries, double scale) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(statement, &text, &length) < 0) return -1;
    t->phase = load(word(t, t->rank, PHASE));
    t->operations = load(word(t, t->rank, OPERATIONS));
    t->rounds = load(word(t, t->rank, ROUNDS));
    Notice *n = notice(t, t->rank);
    Py_ssize_t count = PyList_Size(entries) / 2;
    if (length > (Py_ssize_t)sizeof n->statement || count > MOST_ENTRIES || count < 0) {
        PyErr_Format(PyExc_ValueError, "a notice cannot hold %zd bytes and %zd entries", length, count);
        return -1;
    }
    memset(n->statement, 0, sizeof n->statement);
    memcpy(n->statement, text, (size_t)length);
    n->count = (uint32_t)count;
    n->staged = n->apart = 0;
    n->scale = scale;
    for (Py_ssize_t i = 0; i < count; i++) {
        n->entries[i].address = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(entries, 2 * i));
        n->entries[i].bytes = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(entries, 2 * i + 1));
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *ended(Team *t, int how) {
    if (how == DONE) { /* after a failure the notices stay where they can be read */
        store(word(t, t->rank, OPERATIONS), t->operations + 1);
        store(word(t, t->rank, ROUNDS), t->rounds);
    }
    return how == INTERRUPTED ? NULL : PyLong_FromLong(how);
}

#define ALONE(t, how, call)                         \
    do {                                            \
        (t)->thread = PyEval_SaveThread();          \
        Arithmetic arithmetic = plain_arithmetic(); \
        how = call;                                 \
        restore_arithmetic(arithmetic);             \
        PyEval_RestoreThread((t)->thread);          \
    } while (0)

static int kernel(Kernel *k, int dtype, int reduction, double scale) {
    *k = (Kernel){reducer(dtype, reduction), scaled_reducer(dtype, reduction), scaler(dtype, reduction), 1, 0};
    if (k->add && (scale == 1.0 || k->times)) return 0;
    PyErr_Format(PyExc_ValueError, "no %sloop for dtype %d and reduction %d", k->add ? "scaling " : "", dtype, reduction);
    return -1;
}

/* all_reduce(team, statement, entries, scale, dtype, reduction) -> how it ended */
static PyObject *py_all_reduce(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *statement, *entries;
    double scale;
    int dtype, reduction, how;
    Kernel k;
    if (!PyArg_ParseTuple(args, "OOO!dii", &capsule, &statement, &PyList_Type, &entries, &scale, &dtype, &reduction))
        return NULL;
    Team *t = team_of(capsule);
    if (!t || kernel(&k, dtype, reduction, scale) < 0 || write_notice(t, statement, entries, scale) < 0) return NULL;
    ALONE(t, how, all_reduce(t, &k));
    return ended(t, how);
}

/* reduce_scatter(team, statement, entries, scale, address, bytes, dtype, reduction) -> how it ended */
static PyObject *py_reduce_scatter(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *statement, *entries;
    unsigned long long address, bytes;
    double scale;
    int dtype, reduction, how;
    Kernel k;
    if (!PyArg_ParseTuple(args, "OOO!dKKii", &capsule, &statement, &PyList_Type, &entries, &scale, &address, &bytes,
                          &dtype, &reduction))
        return NULL;
    Team *t = team_of(capsule);
    if (!t || kernel(&k, dtype, reduction, scale) < 0 || write_notice(t, statement, entries, scale) < 0) return NULL;
    ALONE(t, how, reduce_scatter(t, &k, (char *)(uintptr_t)address, (size_t)bytes));
    return ended(t, how);
}

/* exchange(team, statement, entries, outputs) with outputs as a flat list peer, index, address, bytes ... */
static PyObject *py_exchange(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule, *statement, *entries, *flat;
    int how;
    if (!PyArg_ParseTuple(args, "OOO!O!", &capsule, &statement, &PyList_Type, &entries, &PyList_Type, &flat)) return NULL;
    Team *t = team_of(capsule);
    if (!t || write_notice(t, statement, entries, 1.0) < 0) return NULL;
    Output outputs[MOST_RANKS];
    Py_ssize_t count = PyList_GET_SIZE(flat) / 4;
    if (count > MOST_RANKS) return PyErr_Format(PyExc_ValueError, "%zd outputs are too many", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject **item = &PyList_GET_ITEM(flat, 4 * i);
        outputs[i] = (Output){(int)PyLong_AsLong(item[0]), (uint32_t)PyLong_AsLong(item[1]), PyLong_AsVoidPtr(item[2]),
                              (size_t)PyLong_AsUnsignedLongLong(item[3])};
        if (PyErr_Occurred()) return NULL;
        if (outputs[i].peer < 0 || outputs[i].peer >= t->size)
            return PyErr_Format(PyExc_ValueError, "there is no rank %d", outputs[i].peer);
    }
    ALONE(t, how, exchange(t, outputs, (size_t)count));
    return ended(t, how);
}

/* trouble(team) -> (culprit, errno), of the last operation that failed */
static PyObject *py_trouble(PyObject *self, PyObject *capsule) {
    (void)self;
    Team *t = team_of(capsule);
    return t ? Py_BuildValue("ii", t->culprit, t->error) : NULL;
}

/* spin(team, seconds): how long to look at a word before sleeping on it, from now on */
static PyObject *py_spin(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *capsule;
    double spin;
    if (!PyArg_ParseTuple(args, "Od", &capsule, &spin)) return NULL;
    Team *t = team_of(capsule);
    if (!t) return NULL;
    t->spin = spin;
    Py_RETURN_NONE;
}

static PyObject *py_idle(PyObject *self, PyObject *capsule) {
    (void)self;
    Team *t = team_of(capsule);
    return t ? PyFloat_FromDouble(t->idle) : NULL;
}

/* wait(address, expected, spin, seconds): until the word differs, or the time is over */
static PyObject *py_wait(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long address;
    unsigned int expected;
    int spin;
    double timeout;
    if (!PyArg_ParseTuple(args, "KIid", &address, &expected, &spin, &timeout)) return NULL;
    uint32_t *at = (uint32_t *)(uintptr_t)address;
    Py_BEGIN_ALLOW_THREADS
    int looks = 0;
    while (load(at) == expected && looks++ < spin) PAUSE();
    if (load(at) == expected && timeout > 0) futex(at, FUTEX_WAIT, expected, timeout);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* read(process, remote, local, bytes): from another process's memory; OSError where it cannot be */
static PyObject *py_read(PyObject *self, PyObject *args) {
    (void)self;
    int process, error = 0;
    unsigned long long remote, local, bytes;
    if (!PyArg_ParseTuple(args, "iKKK", &process, &remote, &local, &bytes)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    while (bytes && !error) {
        struct iovec here = {(void *)(uintptr_t)local, bytes}, there = {(void *)(uintptr_t)remote, bytes};
        ssize_t got = process_vm_readv(process, &here, 1, &there, 1, 0);
        if (got <= 0) error = got < 0 ? errno : EFAULT;
        else local += (unsigned long long)got, remote += (unsigned long long)got, bytes -= (unsigned long long)got;
    }
    Py_END_ALLOW_THREADS
    if (!error) Py_RETURN_NONE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* give(stage, tensor, bytes, number) -> pieces staged now; take(...) -> pieces taken so far, or -1. With stage = (own line, its
   line, own state, its state, slots) as addresses */
static PyObject *on_stage(PyObject *args, ssize_t (*function)(const Stage *)) {
    unsigned long long own, its, own_state, its_state, slots, tensor, bytes, number;
    if (!PyArg_ParseTuple(args, "(KKKKK)KKK", &own, &its, &own_state, &its_state, &slots, &tensor, &bytes, &number))
        return NULL;
    Stage s = {(uint64_t *)(uintptr_t)own,       (uint64_t *)(uintptr_t)its, (uint64_t *)(uintptr_t)own_state,
               (uint64_t *)(uintptr_t)its_state, (char *)(uintptr_t)slots,   (char *)(uintptr_t)tensor,
               (size_t)bytes,                    number};
    ssize_t pieces;
    Py_BEGIN_ALLOW_THREADS
    pieces = function(&s);
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(pieces);
}
static PyObject *py_give(PyObject *self, PyObject *args) { return (void)self, on_stage(args, give); }
static PyObject *py_take(PyObject *self, PyObject *args) { return (void)self, on_stage(args, take_staged); }

/* copy(to, from, bytes): of a tensor that is too large for the cache; they do not overlap */
static PyObject *py_copy(PyObject *self, PyObject *args) {
    (void)self;
    unsigned long long to, from, bytes;
    if (!PyArg_ParseTuple(args, "KKK", &to, &from, &bytes)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    copy_away((char *)(uintptr_t)to, (const char *)(uintptr_t)from, bytes, STREAM_FROM);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* reduce(out, x, y, dtype, reduction): of three buffers of one size; out may be x or y, and overlaps nothing else */
static PyObject *py_reduce(PyObject *self, PyObject *args) {
    (void)self;
    Py_buffer out, x, y;
    int dtype, reduction;
    Kernel k;
    if (!PyArg_ParseTuple(args, "w*y*y*ii", &out, &x, &y, &dtype, &reduction)) return NULL;
    int is_fine = kernel(&k, dtype, reduction, 1.0) == 0;
    if (is_fine && (x.len != out.len || y.len != out.len)) {
        PyErr_Format(PyExc_ValueError, "runs of %zd, %zd and %zd bytes cannot be reduced", out.len, x.len, y.len);
        is_fine = 0;
    }
    if (is_fine) {
        Py_BEGIN_ALLOW_THREADS
        Arithmetic arithmetic = plain_arithmetic();
        k.add(out.buf, x.buf, y.buf, (size_t)out.len, 1.0);
        restore_arithmetic(arithmetic);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&x);
    PyBuffer_Release(&y);
    if (!is_fine) return NULL;
    Py_RETURN_NONE;
}

/* fence(): what this thread wrote before can be seen by everybody before what it writes and reads afterwards */
static PyObject *py_fence(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"team", make_team, METH_VARARGS, "A team of ranks."},
    {"all_reduce", py_all_reduce, METH_VARARGS, "The tensors become the reduction over all ranks."},
    {"reduce_scatter", py_reduce_scatter, METH_VARARGS, "The reduction of every rank's entry for this rank."},
    {"exchange", py_exchange, METH_VARARGS, "Take entries of peers as they are."},
    {"trouble", py_trouble, METH_O, "Rank and errno of the last failure."},
    {"spin", py_spin, METH_VARARGS, "Seconds of looking before sleeping."},
    {"idle", py_idle, METH_O, "Seconds spent waiting."},
    {"wait", py_wait, METH_VARARGS, "Wait until a word changes."},
    {"give", py_give, METH_VARARGS, "Stage pieces of a message for a receiver."},
    {"take", py_take, METH_VARARGS, "Take pieces that a sender stages."},
    {"read", py_read, METH_VARARGS, "Read another process's memory."},
    {"copy", py_copy, METH_VARARGS, "Copy past the cache."},
    {"reduce", py_reduce, METH_VARARGS, "Reduce two runs of elements."},
    {"fence", py_fence, METH_NOARGS, "Keep the order of memory."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "shoal._native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *made = PyModule_Create(&module), *layout = made ? PyDict_New() : NULL;
    for (size_t i = 0; layout && i < sizeof LAYOUT / sizeof *LAYOUT; i++) {
        PyObject *number = PyLong_FromLongLong(LAYOUT[i].number);
        if (!number || PyDict_SetItemString(layout, LAYOUT[i].name, number) < 0) Py_CLEAR(layout);
        Py_XDECREF(number);
    }
    if (!layout || PyModule_AddObjectRef(made, "LAYOUT", layout) < 0) Py_CLEAR(made);
    Py_XDECREF(layout);
    return made;
}
