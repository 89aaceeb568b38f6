/* sequence.h: the tokens of one text and how far the backend has them.
 *
 * Owns the ids and the backend's handle. Main KV is right for positions [0, main_done), MTP KV for
 * [mtp_from, mtp_done). Position t of the main model needs token t; position t of the MTP layer needs the
 * main model's position t and token t + 1, hence mtp_done <= min(main_done, count - 1). What lies beyond (a
 * rejected draft) is overwritten by the next job, which always starts at main_done or mtp_done. */
#ifndef DUCKD_HOST_ENGINE_SEQUENCE_H
#define DUCKD_HOST_ENGINE_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/backend/backend.h"

struct sequence {
    struct backend *backend; // NULL: not open
    backend_seq handle;
    int32_t *ids; // (room); ids[count] may hold a draft
    uint32_t count, room;
    uint32_t main_done;
    uint32_t mtp_from, mtp_done; // may lie beyond main_done: then nothing of the MTP layer is right yet
    bool best_only;              // of the main model's rows only the largest logit's id is wanted
    bool candidates;             // of those only the largest ones
    float temperature;           // of candidates
    uint32_t hidden_from;        // the main model's rows from here on leave their hidden states
};

/* What a sequence begins with, and how far it may go. */
struct sequence_start {
    const int32_t *ids; // (count), copied
    uint32_t count;
    uint32_t room;      // tokens it may ever hold, >= count
    uint32_t positions; // KV capacity
};
int sequence_open(struct sequence *s, struct backend *b, const struct sequence_start *start,
                  struct error *err);
/* The same, beginning with the backend's positions [0, n) of another sequence, 0 < n < count or = count. What
 * of them is right *s does not know yet. */
int sequence_fork(struct sequence *s, const struct sequence *from, uint32_t n,
                  const struct sequence_start *start, struct error *err);
void sequence_close(struct sequence *s);
void sequence_push(struct sequence *s, int32_t id); // count < room

/* The next rows of the main model; rows beyond `count` take what was put at ids[count] as a draft. */
struct backend_job sequence_main_job(const struct sequence *s, uint32_t rows, uint32_t logits_from);

/* Lets the MTP layer forget what it is more than `window` positions behind with, or what has left no hidden
 * state: it goes on as if the text began there. */
void sequence_mtp_skip(struct sequence *s, uint32_t window);

/* Rows the MTP layer can catch up on, and a job for the first `rows` of them; the last of all drafts token
 * `count` if all of the main model's rows are caught up. */
uint32_t sequence_mtp_rows(const struct sequence *s);
struct backend_job sequence_mtp_job(const struct sequence *s, uint32_t rows, uint32_t logits_from);
/* The job that comes behind the first `skip` rows of one. */
struct backend_job sequence_job_behind(struct backend_job job, uint32_t skip);

#endif
