/* Bytes to requests: lists of words, runs of XADD, mixes of XADD and XACK, claims, and ranges. */

/* A line of `kind` and a canonical length.  -> the byte behind it; -1 when there is none, or not all of it. */
static Py_ssize_t
take_length(const char *data, Py_ssize_t at, Py_ssize_t end, char kind, Py_ssize_t *length)
{
    if (at >= end || data[at] != kind)
        return -1;
    Py_ssize_t first = ++at, value = 0;
    if (end - at >= 3 && data[at] >= '0' && data[at] <= '9' && data[at + 1] == '\r' && data[at + 2] == '\n') {
        *length = data[at] - '0';       /* most lengths have one digit */
        return at + 3;
    }
    while (at < end && data[at] >= '0' && data[at] <= '9') {
        if (at - first == MAX_DIGITS)
            return -1;
        value = 10 * value + (data[at++] - '0');
    }
    if (at == first || (data[first] == '0' && at - first > 1))
        return -1;
    if (end - at < 2 || data[at] != '\r' || data[at + 1] != '\n')
        return -1;
    *length = value;
    return at + 2;
}

/* One word.  -> the byte behind it and the two that end it, whatever these are; -1 when it is not all there. */
static Py_ssize_t
take_word(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *start, Py_ssize_t *length)
{
    at = take_length(data, at, end, '$', length);
    if (at < 0 || *length > end - at - 2)
        return -1;
    *start = at;
    return at + *length + 2;
}

/* As `take_word`, of a word that ends as it should. */
static Py_ssize_t
take_closed_word(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *start, Py_ssize_t *length)
{
    at = take_word(data, at, end, start, length);
    return at >= 0 && data[at - 2] == '\r' && data[at - 1] == '\n' ? at : -1;
}

/* The head of a request.  -> the byte behind it; -1 when there is none, or fewer bytes than so many words have. */
static Py_ssize_t
take_head(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *count)
{
    at = take_length(data, at, end, '*', count);
    return at >= 0 && *count > 0 && *count <= (end - at) / MIN_WORD_BYTES ? at : -1;
}

/* The canonical digits of 64 bits that stand between `start` and `end`.  -> 0, or -1 when they are none. */
static int
parse_half(const char *data, Py_ssize_t start, Py_ssize_t end, uint64_t *half)
{
    uint64_t value = 0;
    if (start == end || end - start > HALF_DIGITS || (data[start] == '0' && end - start > 1))
        return -1;
    for (Py_ssize_t at = start; at < end; at++) {
        if (data[at] < '0' || data[at] > '9')
            return -1;
        uint64_t digit = (uint64_t)(data[at] - '0');
        if (at - start == HALF_DIGITS - 1 && value > (UINT64_MAX - digit) / 10)
            return -1;          /* fewer digits always fit */
        value = 10 * value + digit;
    }
    *half = value;
    return 0;
}

/* `ms-seq`, both of them canonical, or, if `may_be_short`, `ms` for `ms-0`.  -> 0, or -1. */
static int
parse_id(const char *data, Py_ssize_t start, Py_ssize_t length, int may_be_short, ID *id)
{
    const char *dash = length > 0 ? memchr(data + start, '-', (size_t)length) : NULL;
    if (dash == NULL) {
        id->seq = 0;
        return may_be_short ? parse_half(data, start, start + length, &id->ms) : -1;
    }
    Py_ssize_t middle = dash - data;
    return parse_half(data, start, middle, &id->ms) || parse_half(data, middle + 1, start + length, &id->seq) ? -1 : 0;
}

static int
is_above(ID id, ID other)
{
    return id.ms != other.ms ? id.ms > other.ms : id.seq > other.seq;
}

/* Whether a word is `name`, which is in upper case, in upper or lower case. */
static int
is_option(const char *word, Py_ssize_t length, const char *name)
{
    for (Py_ssize_t i = 0; i < length; i++)
        if (name[i] == '\0' || (word[i] & ~0x20) != name[i])
            return 0;
    return name[length] == '\0';
}

/* The threshold of a trim, and what may stand before it: `[= | ~] n | id`.  -> the byte behind it; -1 for anything
   else. */
static Py_ssize_t
take_threshold(const char *data, Py_ssize_t at, Py_ssize_t end, Entry *entry, Py_ssize_t *count)
{
    Py_ssize_t word, length;
    at = take_closed_word(data, at, end, &word, &length);
    if (at >= 0 && length == 1 && (data[word] == '~' || data[word] == '=')) {
        entry->is_approximate = data[word] == '~';
        at = take_closed_word(data, at, end, &word, &length);
        --*count;
    }
    --*count;
    if (at < 0)
        return -1;
    if (entry->trim == MINID)
        return parse_id(data, word, length, 1, &entry->threshold) ? -1 : at;
    return length > MAX_DIGITS || parse_half(data, word, word + length, &entry->threshold.seq) ? -1 : at;
}

/* The ID that a client asks for, and the options before it.  -> the byte behind them; -1 for anything else. */
static Py_ssize_t
take_options(const char *data, Py_ssize_t at, Py_ssize_t end, Entry *entry, Py_ssize_t *count)
{
    Py_ssize_t word, length;
    for (;;) {
        entry->id = at;
        at = take_closed_word(data, at, end, &word, &length);
        --*count;
        if (at < 0)
            return -1;
        if (length == 1 && data[word] == '*') {
            entry->is_auto = 1;
            return at;
        }
        if (is_option(data + word, length, "NOMKSTREAM"))
            continue;
        if (entry->trim != NO_TRIM)
            return parse_id(data, word, length, 1, &entry->wanted) ? -1 : at;
        if (is_option(data + word, length, "MAXLEN"))
            entry->trim = MAXLEN;
        else if (is_option(data + word, length, "MINID"))
            entry->trim = MINID;
        else
            return parse_id(data, word, length, 1, &entry->wanted) ? -1 : at;
        at = take_threshold(data, at, end, entry, count);
        if (at < 0)
            return -1;
    }
}

/* The ID of an XADD in a log, and the trim before it if there is one.  -> as `take_options`. */
static Py_ssize_t
take_logged_id(const char *data, Py_ssize_t at, Py_ssize_t end, Entry *entry, Py_ssize_t *count)
{
    static const char trim[] = "$6\r\nMAXLEN\r\n$1\r\n=\r\n";
    Py_ssize_t word, length, trim_size = (Py_ssize_t)sizeof(trim) - 1;
    if (end - at > trim_size && !memcmp(data + at, trim, (size_t)trim_size)) {
        at = take_closed_word(data, at + trim_size, end, &word, &length);
        if (at < 0 || length > MAX_DIGITS || parse_half(data, word, word + length, &entry->threshold.seq))
            return -1;
        entry->trim = MAXLEN;
        *count -= 3;
    }
    entry->id = at;
    --*count;
    at = take_closed_word(data, at, end, &word, &length);
    return at < 0 || parse_id(data, word, length, 0, &entry->wanted) ? -1 : at;
}

/* The fields and values of an XADD, `count` of them from `at` on.  -> the byte behind them; -1 for anything else. */
static Py_ssize_t
take_fields(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, Entry *entry)
{
    Py_ssize_t word, length;
    if (at < 0 || count < 2 || count % 2)
        return -1;
    entry->fields = at;
    entry->word_count = count;
    for (; count > 0; count--) {
        at = take_closed_word(data, at, end, &word, &length);
        if (at < 0)
            return -1;
    }
    entry->end = at;
    return at;
}

/* An XADD that may be of a run, from its head on.  -> the byte behind it; -1 for anything else. */
static Py_ssize_t
take_xadd(const char *data, Py_ssize_t start, Py_ssize_t end, int runs, Entry *entry)
{
    Py_ssize_t count;
    Py_ssize_t at = take_head(data, start, end, &count);
    if (at < 0 || count < MIN_XADD_WORDS || end - at < 10)
        return -1;
    if (memcmp(data + at, "$4\r\nXADD\r\n", 10) && (runs == LOGGED || memcmp(data + at, "$4\r\nxadd\r\n", 10)))
        return -1;
    memset(entry, 0, sizeof(*entry));
    at = take_closed_word(data, at + 10, end, &entry->key, &entry->key_length);
    if (at < 0)
        return -1;
    count -= 2;
    at = runs == APPENDED ? take_options(data, at, end, entry, &count) : take_logged_id(data, at, end, entry, &count);
    entry->start = start;
    return take_fields(data, at, end, count, entry);
}

/* An XADD of a log that begins as `before` does: with as many words, and a key of the same length.  -> the byte behind
   it; -1 for anything else, for one that trims, and for what `take_xadd` refuses. */
static Py_ssize_t
take_next_xadd(const char *data, Py_ssize_t start, Py_ssize_t end, const Entry *before, Entry *entry)
{
    Py_ssize_t head_size = before->key - before->start, word, length;
    Py_ssize_t key = start + head_size, id = key + before->key_length + 2;
    if (before->trim != NO_TRIM || id > end || memcmp(data + start, data + before->start, (size_t)head_size) ||
        data[id - 2] != '\r' || data[id - 1] != '\n')
        return -1;
    *entry = *before;
    entry->start = start;
    entry->key = key;
    entry->id = id;
    Py_ssize_t at = take_closed_word(data, id, end, &word, &length);
    if (at < 0 || parse_id(data, word, length, 0, &entry->wanted))
        return -1;
    return take_fields(data, at, end, before->word_count, entry);
}

/* The request at `start` as a list of words.  -> the byte behind it; -1 when it is not whole, or odd, or, with an
   exception set, when there is no memory for it.  In a log every word ends as it should. */
static Py_ssize_t
take_words(const char *data, Py_ssize_t start, Py_ssize_t end, int runs, PyObject **words)
{
    Py_ssize_t count, word, length;
    Py_ssize_t first = take_head(data, start, end, &count);
    Py_ssize_t at = first;
    if (first < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        at = take_word(data, at, end, &word, &length);
        if (at < 0 || (runs == LOGGED && (data[at - 2] != '\r' || data[at - 1] != '\n')))
            return -1;
    }
    *words = PyList_New(count);
    if (*words == NULL)
        return -1;
    at = first;
    for (Py_ssize_t i = 0; i < count; i++) {
        at = take_word(data, at, end, &word, &length);
        PyObject *bytes = PyBytes_FromStringAndSize(data + word, length);
        if (bytes == NULL || PyList_SetItem(*words, i, bytes) < 0) {
            Py_CLEAR(*words);
            return -1;
        }
    }
    return at;
}

static Run *
make_run(State *state, PyObject *chunk, const Entry *entries, Py_ssize_t count)
{
    Run *made = (Run *)PyType_GenericAlloc(state->run_type, count);
    if (made != NULL) {
        made->chunk = Py_NewRef(chunk);
        memcpy(made->entries, entries, (size_t)count * sizeof(Entry));
    }
    return made;
}

/* The XADD at `start` of a log and its neighbours, as a run.  -> as `take_words`. */
static Py_ssize_t
take_logged_run(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, PyObject **run)
{
    const char *data = PyBytes_AsString(chunk);
    Entry entries[RUN_ENTRIES];
    Py_ssize_t count = 1, at = take_xadd(data, start, end, LOGGED, &entries[0]);
    if (at < 0)
        return -1;
    while (count < RUN_ENTRIES && at < end) {
        Py_ssize_t found = take_next_xadd(data, at, end, &entries[count - 1], &entries[count]);
        if (found < 0)
            found = take_xadd(data, at, end, LOGGED, &entries[count]);
        if (found < 0)
            break;
        count++;
        at = found;
    }
    *run = (PyObject *)make_run(state, chunk, entries, count);
    return *run == NULL ? -1 : at;
}

/* An XACK of one entry; of the group that `mix` is of, unless it is the first.  -> the byte behind it; -1 for anything
   else. */
static Py_ssize_t
take_xack(const char *data, Py_ssize_t start, Py_ssize_t end, int is_first, Mix *mix, Ack *ack)
{
    Py_ssize_t count, key, key_length, group, group_length, word, length;
    Py_ssize_t at = take_head(data, start, end, &count);
    if (at < 0 || count != XACK_WORDS || end - at < 10)
        return -1;
    if (memcmp(data + at, "$4\r\nXACK\r\n", 10) && memcmp(data + at, "$4\r\nxack\r\n", 10))
        return -1;
    at = take_closed_word(data, at + 10, end, &key, &key_length);
    if (at >= 0)
        at = take_closed_word(data, at, end, &group, &group_length);
    if (at < 0)
        return -1;
    if (is_first) {
        mix->key = key;
        mix->key_length = key_length;
        mix->group = group;
        mix->group_length = group_length;
    } else if (key_length != mix->key_length || group_length != mix->group_length ||
               memcmp(data + key, data + mix->key, (size_t)key_length) ||
               memcmp(data + group, data + mix->group, (size_t)group_length))
        return -1;
    ack->start = start;
    ack->id_word = at;
    ack->end = take_closed_word(data, at, end, &word, &length);
    return ack->end < 0 || parse_id(data, word, length, 0, &ack->id) ? -1 : ack->end;
}

/* The XADD at `start` and its neighbours, as a run, or, if XACKs are among them, as a mix.  A single XACK is neither.
   -> as `take_words`. */
static Py_ssize_t
take_appended(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, PyObject **request)
{
    const char *data = PyBytes_AsString(chunk);
    Entry entries[RUN_ENTRIES];
    Ack acks[RUN_ENTRIES];
    Mix names;                  /* of the first XACK */
    names.key = names.key_length = names.group = names.group_length = 0;
    Py_ssize_t at = start, count = 0, acked = 0;
    while (at < end && count + acked < RUN_ENTRIES) {
        Py_ssize_t found = take_xadd(data, at, end, APPENDED, &entries[count]);
        if (found >= 0)
            count++;
        else {
            found = take_xack(data, at, end, acked == 0, &names, &acks[acked]);
            if (found < 0)
                break;
            acks[acked++].before = count;
        }
        at = found;
    }
    if (count + acked < 1 + (acked > 0))
        return -1;
    Run *adds = count > 0 ? make_run(state, chunk, entries, count) : NULL;
    if (count > 0 && adds == NULL)
        return -1;
    if (acked == 0) {
        *request = (PyObject *)adds;
        return at;
    }
    Mix *made = (Mix *)PyType_GenericAlloc(state->mix_type, acked);
    if (made == NULL) {
        Py_XDECREF((PyObject *)adds);
        return -1;
    }
    made->chunk = Py_NewRef(chunk);
    made->adds = adds;
    made->key = names.key;
    made->key_length = names.key_length;
    made->group = names.group;
    made->group_length = names.group_length;
    memcpy(made->acks, acks, (size_t)acked * sizeof(Ack));
    *request = (PyObject *)made;
    return at;
}

/* An XCLAIM with JUSTID of one entry.  -> the byte behind it; -1 for anything else. */
static Py_ssize_t
take_xclaim(const char *data, Py_ssize_t start, Py_ssize_t end, Claims *names, Claim *claim)
{
    Py_ssize_t count, word, length;
    Py_ssize_t at = take_head(data, start, end, &count);
    if (at < 0 || count != XCLAIM_WORDS || end - at < 12)
        return -1;
    if (memcmp(data + at, "$6\r\nXCLAIM\r\n", 12) && memcmp(data + at, "$6\r\nxclaim\r\n", 12))
        return -1;
    at += 12;
    for (int i = 0; i < CLAIM_NAMES; i++) {
        at = take_closed_word(data, at, end, &names->names[i], &names->lengths[i]);
        if (at < 0)
            return -1;
    }
    claim->start = start;
    claim->id_word = at;
    claim->id_end = at = take_closed_word(data, at, end, &word, &length);
    if (at < 0 || parse_id(data, word, length, 0, &claim->id))
        return -1;
    claim->end = take_closed_word(data, at, end, &word, &length);
    return claim->end < 0 || !is_option(data + word, length, "JUSTID") ? -1 : claim->end;
}

/* An XCLAIM that differs from the one before it in its ID alone.  -> the byte behind it; -1 for anything else. */
static Py_ssize_t
take_next_xclaim(const char *data, Py_ssize_t start, Py_ssize_t end, const Claim *before, Claim *claim)
{
    Py_ssize_t head_size = before->id_word - before->start, tail_size = before->end - before->id_end, word, length;
    if (head_size > end - start || memcmp(data + start, data + before->start, (size_t)head_size))
        return -1;
    claim->start = start;
    claim->id_word = start + head_size;
    claim->id_end = take_closed_word(data, claim->id_word, end, &word, &length);
    if (claim->id_end < 0 || tail_size > end - claim->id_end ||
        memcmp(data + claim->id_end, data + before->id_end, (size_t)tail_size))
        return -1;
    claim->end = claim->id_end + tail_size;
    return parse_id(data, word, length, 0, &claim->id) ? -1 : claim->end;
}

static PyObject *
make_claims(State *state, const Claims *names, PyObject *chunk, const Claim *claims, Py_ssize_t count)
{
    Claims *made = (Claims *)PyType_GenericAlloc(state->claims_type, count);
    if (made != NULL) {
        made->chunk = Py_NewRef(chunk);
        memcpy(made->names, names->names, sizeof(made->names));
        memcpy(made->lengths, names->lengths, sizeof(made->lengths));
        memcpy(made->claims, claims, (size_t)count * sizeof(Claim));
    }
    return (PyObject *)made;
}

/* The XCLAIMs from `start` on that differ in their IDs alone.  A single one is none.  -> as `take_words`. */
static Py_ssize_t
take_claims(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, PyObject **request)
{
    const char *data = PyBytes_AsString(chunk);
    Claim claims[MOST_CLAIMS];
    Claims names;               /* of the first XCLAIM */
    Py_ssize_t count = 1, at = take_xclaim(data, start, end, &names, &claims[0]), found;
    if (at < 0)
        return -1;
    while (count < MOST_CLAIMS && (found = take_next_xclaim(data, at, end, &claims[count - 1], &claims[count])) >= 0) {
        count++;
        at = found;
    }
    if (count == 1)
        return -1;
    *request = make_claims(state, &names, chunk, claims, count);
    return *request == NULL ? -1 : at;
}

/* The word of an ID at an end of a range: `edge`, or an ID without whose half `seq` is meant.  -> the byte behind it; -1
   for anything else. */
static Py_ssize_t
take_bound(const char *data, Py_ssize_t at, Py_ssize_t end, char edge, uint64_t half, ID *id)
{
    Py_ssize_t word, length;
    at = take_closed_word(data, at, end, &word, &length);
    if (at < 0)
        return -1;
    if (length == 1 && data[word] == edge) {
        id->ms = id->seq = half;
        return at;
    }
    if (parse_id(data, word, length, 1, id))
        return -1;
    if (memchr(data + word, '-', (size_t)length) == NULL)
        id->seq = half;
    return at;
}

/* An XRANGE of one entry.  -> the byte behind it; -1 for anything else. */
static Py_ssize_t
take_xrange(const char *data, Py_ssize_t start, Py_ssize_t end, Range *range)
{
    Py_ssize_t count, word, length;
    Py_ssize_t at = take_head(data, start, end, &count);
    if (at < 0 || count != XRANGE_WORDS || end - at < 12)
        return -1;
    if (memcmp(data + at, "$6\r\nXRANGE\r\n", 12) && memcmp(data + at, "$6\r\nxrange\r\n", 12))
        return -1;
    range->start = start;
    at = take_closed_word(data, at + 12, end, &range->key, &range->key_length);
    if (at >= 0)
        at = take_bound(data, at, end, '-', 0, &range->low);
    if (at >= 0)
        at = take_bound(data, at, end, '+', UINT64_MAX, &range->high);
    if (at >= 0)
        at = take_closed_word(data, at, end, &word, &length);
    if (at < 0 || !is_option(data + word, length, "COUNT"))
        return -1;
    range->end = take_closed_word(data, at, end, &word, &length);
    return range->end < 0 || length != 1 || data[word] != '1' ? -1 : range->end;
}

static PyObject *
make_ranges(State *state, PyObject *chunk, const Range *ranges, Py_ssize_t count)
{
    Ranges *made = (Ranges *)PyType_GenericAlloc(state->ranges_type, count);
    if (made != NULL) {
        made->chunk = Py_NewRef(chunk);
        memcpy(made->ranges, ranges, (size_t)count * sizeof(Range));
    }
    return (PyObject *)made;
}

/* The XRANGEs of one entry each from `start` on.  A single one is none.  -> as `take_words`. */
static Py_ssize_t
take_ranges(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, PyObject **request)
{
    const char *data = PyBytes_AsString(chunk);
    Range ranges[MOST_RANGES];
    Py_ssize_t count = 0, at = start, found;
    while (count < MOST_RANGES && (found = take_xrange(data, at, end, &ranges[count])) >= 0) {
        count++;
        at = found;
    }
    if (count < 2)
        return -1;
    *request = make_ranges(state, chunk, ranges, count);
    return *request == NULL ? -1 : at;
}

/* Append the requests between `start` and `end` to `requests`.  -> the byte behind them; -1 with an exception set. */
static Py_ssize_t
take_requests(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, int runs, PyObject *requests)
{
    const char *data = PyBytes_AsString(chunk);
    Py_ssize_t at = start;
    while (at < end) {
        PyObject *request = NULL;
        Py_ssize_t next = -1;
        if (runs != NO_RUNS)
            next = runs == APPENDED ? take_appended(state, chunk, at, end, &request)
                                    : take_logged_run(state, chunk, at, end, &request);
        if (next < 0 && runs == APPENDED && !PyErr_Occurred())
            next = take_claims(state, chunk, at, end, &request);
        if (next < 0 && runs == APPENDED && !PyErr_Occurred())
            next = take_ranges(state, chunk, at, end, &request);
        if (next < 0 && !PyErr_Occurred())
            next = take_words(data, at, end, runs, &request);
        if (next < 0)
            return PyErr_Occurred() ? -1 : at;
        int failed = PyList_Append(requests, request);
        Py_DECREF(request);
        if (failed)
            return -1;
        at = next;
    }
    return at;
}

PyDoc_STRVAR(parse_doc,
"parse(runs, chunk, start=0, end=len(chunk)) -> requests, or None\n\n"
"The requests between two bytes of `chunk`; None when there is anything but whole plain requests.");

static PyObject *
parse(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int runs;
    if (!has_count("parse", count, count == 2 ? 2 : 4) || !runs_argument(args[0], &runs) ||
        bytes_argument(args[1], -1) == NULL)
        return NULL;
    PyObject *chunk = args[1];
    Py_ssize_t start = 0, end = PyBytes_Size(chunk);
    if (count == 4) {
        end = position_argument(args[3], end);
        if (end < 0)
            return NULL;
        start = position_argument(args[2], end);
        if (start < 0)
            return NULL;
    }
    PyObject *requests = PyList_New(0);
    if (requests == NULL)
        return NULL;
    Py_ssize_t at = take_requests(PyModule_GetState(module), chunk, start, end, runs, requests);
    if (at == end && end > start)
        return requests;
    Py_DECREF(requests);
    return at < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(parse_front_doc,
"parse_front(runs, chunk, requests) -> where they end\n\n"
"Append the whole plain requests at the front of `chunk` to `requests`.");

static PyObject *
parse_front(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int runs;
    if (!has_count("parse_front", count, 3) || !runs_argument(args[0], &runs) || bytes_argument(args[1], -1) == NULL ||
        !list_argument(args[2]))
        return NULL;
    Py_ssize_t at = take_requests(PyModule_GetState(module), args[1], 0, PyBytes_Size(args[1]), runs, args[2]);
    return at < 0 ? NULL : PyLong_FromSsize_t(at);
}
