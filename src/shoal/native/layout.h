/* Every number that this extension and Python's code must agree on, by name: where things lie in shared memory, and
   codes. `transport/native.py` compares it with `transport/native_layout.py` when the extension is loaded. */
#ifndef SHOAL_LAYOUT_H
#define SHOAL_LAYOUT_H

#include "operations.h"
#include "stage.h"

#define NUMBER(NAME) {#NAME, NAME}
#define FIELD(NAME, FIELD) {#NAME, offsetof(Notice, FIELD)}

static const struct { const char *name; long long number; } LAYOUT[] = {
    /* a team's arena */
    NUMBER(PHASE), NUMBER(WAITING), NUMBER(STATE), NUMBER(OPERATIONS), NUMBER(ROUNDS), NUMBER(NOTICES),
    NUMBER(NOTICE_BYTES), NUMBER(SLOTS), NUMBER(SLOT_BYTES), NUMBER(RESULTS), NUMBER(LINE),
    NUMBER(MOST_RANKS), NUMBER(MOST_ENTRIES), NUMBER(STATEMENT_BYTES), NUMBER(MOST_BYTES),
    /* a notice in it */
    FIELD(NOTICE_COUNT, count), FIELD(NOTICE_STAGED, staged), FIELD(NOTICE_SCALE, scale), FIELD(NOTICE_APART, apart),
    FIELD(NOTICE_ENTRIES, entries), {"ENTRY_BYTES", sizeof(Entry)}, {"ENTRY_SIZE", offsetof(Entry, bytes)},
    /* states, and how an operation ended */
    NUMBER(IN), NUMBER(FINISHED), NUMBER(GAVE_UP),
    NUMBER(DONE), NUMBER(ABORTED), NUMBER(LOST), NUMBER(DISAGREE), NUMBER(UNREADABLE), NUMBER(STOPPED), NUMBER(LATE),
    NUMBER(GARBLED),
    /* element types and reductions */
    NUMBER(INT32), NUMBER(INT64), NUMBER(FLOAT16), NUMBER(BFLOAT16), NUMBER(FLOAT32), NUMBER(FLOAT64), NUMBER(SUM), NUMBER(MAX), NUMBER(MIN),
    /* a mailbox's stage */
    NUMBER(STAGED), NUMBER(GIVING), NUMBER(TAKEN), NUMBER(UNTIL), NUMBER(STAGE_PIECE), NUMBER(STAGE_SLOTS),
};

#endif
