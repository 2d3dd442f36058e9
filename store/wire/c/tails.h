/* Runs to rows of entries, lines of the log and replies, as far as a stream takes them as they are. */

/* The arguments that say which entries of a run are meant. */
static int
entries_argument(PyObject *const *args, const Run *run, Py_ssize_t *at, Py_ssize_t *most, Py_ssize_t *room)
{
    *at = position_argument(args[0], run->ob_base.ob_size);
    if (*at < 0)
        return 0;
    *most = position_argument(args[1], PY_SSIZE_T_MAX);
    if (*most < 0)
        return 0;
    *room = position_argument(args[2], PY_SSIZE_T_MAX);
    return *room >= 0;
}

/* How many entries of the stream, with this one in it, the trim of an entry removes.  -> -1 when that is not known, or
   not to be left for later. */
static int
count_trimmed(const Tail *tail, const Entry *entry)
{
    if (entry->trim == NO_TRIM)
        return 0;
    if (entry->trim == MINID)
        return is_above(entry->threshold, entry->is_approximate ? tail->node_end : tail->oldest) ? -1 : 0;
    Py_ssize_t threshold = (Py_ssize_t)entry->threshold.seq, excess = tail->length + 1 - threshold;
    if (excess <= 0)
        return 0;
    if (threshold == 0)
        return -1;
    if (entry->is_approximate)
        return excess < tail->node_live ? 0 : -1;
    return excess <= MAX_TRIMMED - tail->trimmed ? (int)excess : -1;
}

/* Whether the open node takes an entry of `size` bytes. */
static int
has_room(const Tail *tail, Py_ssize_t size)
{
    return tail->count < tail->most && size < tail->room - tail->size;
}

/* Whether the tail takes an entry as it is, with which ID, and how many entries are trimmed for it. */
static int
takes(const Tail *tail, const Entry *entry, ID now, ID *id, int *trimmed)
{
    Py_ssize_t size = entry->end - entry->fields;
    if (!has_room(tail, size) && (tail->nodes_left == 0 || size >= tail->max_bytes))
        return 0;
    *id = entry->is_auto ? now : entry->wanted;
    if (!is_above(*id, tail->last)) {
        *id = tail->last;
        if (!entry->is_auto || (++id->seq == 0 && ++id->ms == 0))
            return 0;
    }
    *trimmed = count_trimmed(tail, entry);
    return *trimmed >= 0;
}

/* (count, size, first ID, last ID) of the open node. */
static PyObject *
show_node(const Tail *tail)
{
    char first[ID_BYTES], last[ID_BYTES];
    put_id(first, tail->first);
    put_id(last, tail->count ? tail->last : tail->first);
    return Py_BuildValue("nny#y#", tail->count, tail->size, first, (Py_ssize_t)sizeof(first), last,
                         (Py_ssize_t)sizeof(last));
}

/* Close the open node, and open another.  -> 0, or -1 with an exception set. */
static int
open_node(Tail *tail)
{
    if (tail->closed == NULL)
        tail->closed = PyList_New(0);
    if (tail->closed == NULL || append_new(tail->closed, show_node(tail)))
        return -1;
    tail->most = tail->max_entries;
    tail->room = tail->max_bytes;
    tail->nodes_left--;
    tail->count = tail->size = 0;
    return 0;
}

/* Add an entry to its tail.  -> 0, or -1 with an exception set. */
static int
add_entry(Tail *tail, const Entry *entry, const char *data, ID id, const char *bulk, Py_ssize_t bulk_size)
{
    Py_ssize_t size = entry->end - entry->fields;
    if (!has_room(tail, size) && open_node(tail))
        return -1;
    char head[HEAD_BYTES];
    Py_ssize_t head_size = format_head(head, entry->word_count);
    RowHead row = {id, bulk_size + head_size + size + SEAL_BYTES};
    char *to = make_room(&tail->rows, sizeof(row) + (size_t)row.size);
    if (to == NULL)
        return -1;
    to = put_bytes(to, (const char *)&row, sizeof(row));
    to = put_row(to, tail->prefix, bulk, bulk_size, head, head_size, data, entry);
    tail->rows.size = (size_t)(to - tail->rows.data);
    tail->rows_size += KEY_BYTES + row.size;
    if (tail->count == 0)
        tail->first = id;
    tail->last = id;
    tail->count++;
    tail->length++;
    tail->size += size;
    return 0;
}

/* Note that the first entries are to be removed. */
static void
trim(Tail *tail, int count)
{
    tail->trimmed += count;
    tail->rows_size += TRIMMED_BYTES * count;
    tail->length -= count;
    tail->node_live = tail->node_live > count ? tail->node_live - count : 0;
}

/* The line of the log up to the ID: `*n XADD key`, and `MAXLEN = threshold` if entries are trimmed. */
static char *
put_log_head(char *to, const char *data, const Entry *entry, int trimmed)
{
    Py_ssize_t key_at = entry->key - 1;
    while (data[key_at] != '$')
        key_at--;
    to += format_head(to, entry->word_count + (trimmed ? 6 : 3));
    to = put_bytes(to, "$4\r\nXADD\r\n", 10);
    to = put_bytes(to, data + key_at, entry->key + entry->key_length + 2 - key_at);
    if (!trimmed)
        return to;
    char threshold[HALF_DIGITS];
    Py_ssize_t size = put_number(threshold, entry->threshold.seq) - threshold;
    to = put_bytes(to, "$6\r\nMAXLEN\r\n$1\r\n=\r\n$", 20);
    to = put_number(to, (uint64_t)size);
    to = put_bytes(to, "\r\n", 2);
    to = put_bytes(to, threshold, size);
    return put_bytes(to, "\r\n", 2);
}

/* The tail of an entry's stream, which is that of the entry before if they have the same key.  -> borrowed; NULL when
   there is none, or with an exception set. */
static Tail *
find_tail(State *state, const char *data, const Entry *entry, const Entry *before, Tail *found, PyObject *const *dicts)
{
    if (before != NULL && before->key_length == entry->key_length &&
        !memcmp(data + before->key, data + entry->key, (size_t)entry->key_length))
        return found;
    PyObject *key = PyBytes_FromStringAndSize(data + entry->key, entry->key_length), *tail = NULL;
    if (key == NULL)
        return NULL;
    if (PyDict_Size(dicts[1]) == 0 || PyDict_GetItemWithError(dicts[1], key) == NULL)
        tail = PyErr_Occurred() ? NULL : PyDict_GetItemWithError(dicts[0], key);
    Py_DECREF(key);
    if (tail == NULL || Py_IS_TYPE(tail, state->tail_type))
        return (Tail *)tail;
    PyErr_SetString(PyExc_TypeError, "tails are needed");
    return NULL;
}

/* The tails of entries from `at` on, up to one that has none, or the same as that before it, which is `tail`.  They are
   found a few at once, so that the processor waits for the memory of all of them together: of a thousand streams this
   takes a quarter off the time of appending.  -> how many; an exception may be set. */
static int
find_tails(State *state, const Run *run, Py_ssize_t at, Py_ssize_t first, Tail *tail, PyObject *const *dicts,
           Tail **tails)
{
    const char *data = PyBytes_AsString(run->chunk);
    int count = 0;
    for (; at < run->ob_base.ob_size && count < TAILS_AT_ONCE; at++) {
        const Entry *entry = &run->entries[at];
        Tail *before = tail;
        tail = find_tail(state, data, entry, at > first ? entry - 1 : NULL, before, dicts);
        if (tail == NULL)
            return PyErr_Occurred() ? 0 : count;
        tails[count++] = tail;
        if (tail == before)
            break;
        prefetch(tail);
    }
    for (int i = 1; i < count; i++)
        prefetch(tails[i]->rows.data + tails[i]->rows.size);
    return count;
}

/* Append entries of a run from `first` on to their tails, until one of them is not so simple.  What the log is given,
   and the replies, are put where `log` and `replies` point; these may be NULL for a run of a log, whose entries keep
   their IDs as they stand there.  -> behind the last one; an exception may be set. */
static Py_ssize_t
append_entries(State *state, const Run *run, Py_ssize_t first, PyObject *const *dicts, ID now, char **log,
               char **replies, Py_ssize_t *size)
{
    const char *data = PyBytes_AsString(run->chunk);
    Py_ssize_t at = first;
    Tail *tails[TAILS_AT_ONCE], *tail = NULL;
    int used = 0, found = 0;
    Millisecond ms = {0};
    ID id;
    int trimmed;
    for (;; at++) {
        if (used == found) {
            found = find_tails(state, run, at, first, tail, dicts, tails);
            used = 0;
            if (found == 0)
                break;
        }
        const Entry *entry = &run->entries[at];
        tail = tails[used++];
        if (!takes(tail, entry, now, &id, &trimmed))
            break;
        const char *bulk = log == NULL ? data + entry->id : *replies;
        Py_ssize_t bulk_size = log == NULL ? entry->fields - entry->id : format_id(*replies, &ms, id);
        Py_ssize_t before = tail->rows_size;
        if (add_entry(tail, entry, data, id, bulk, bulk_size))
            break;
        trim(tail, trimmed);
        *size += tail->rows_size - before;
        if (log != NULL) {
            *log = put_log_head(*log, data, entry, trimmed);
            *log = put_bytes(*log, bulk, bulk_size);
            *log = put_bytes(*log, data + entry->fields, entry->end - entry->fields);
            *replies += bulk_size;
        }
    }
    return at;
}

/* The arguments that say from which entry on a run is appended, and to what. */
static int
tails_argument(PyObject *const *args, const Run *run, Py_ssize_t *first)
{
    *first = run == NULL ? -1 : position_argument(args[0], run->ob_base.ob_size);
    if (*first < 0)
        return 0;
    if (PyDict_Check(args[1]) && PyDict_Check(args[2]))
        return 1;
    PyErr_SetString(PyExc_TypeError, "dicts are needed");
    return 0;
}

PyDoc_STRVAR(append_doc,
"append(run, at, tails, watched, now_ms) -> (count, size, log, replies)\n\n"
"Append the entries of `run` from `at` on to the tails of their keys, up to the first one that is not so simple.");

static PyObject *
append(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("append", count, 5))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    Py_ssize_t first, size = 0;
    Py_ssize_t now_ms = tails_argument(args + 1, run, &first) ? position_argument(args[4], PY_SSIZE_T_MAX) : -1;
    if (now_ms < 0)
        return NULL;
    Py_ssize_t left = run->ob_base.ob_size - first;
    if (left == 0)
        return Py_BuildValue("nny#y#", left, size, "", (Py_ssize_t)0, "", (Py_ssize_t)0);
    /* No line of the log is longer than the request, an ID, `=`, and a digit for the number of words. */
    char replies[RUN_ENTRIES * ID_BULK_BYTES], *reply_to = replies;
    Py_ssize_t most_log = run->entries[first + left - 1].end - run->entries[first].start + left * MORE_LOG_BYTES;
    char *log = PyMem_Malloc((size_t)most_log), *log_to = log;
    if (log == NULL)
        return PyErr_NoMemory();
    ID now = {(uint64_t)now_ms, 0};
    Py_ssize_t at = append_entries(PyModule_GetState(module), run, first, args + 2, now, &log_to, &reply_to, &size);
    PyObject *result = NULL;
    if (!PyErr_Occurred())
        result = Py_BuildValue("nny#y#", at - first, size, log, log_to - log, replies, reply_to - replies);
    PyMem_Free(log);
    return result;
}

PyDoc_STRVAR(load_doc,
"load(run, at, tails, watched) -> (count, size)\n\n"
"As `append`, for a run out of a log.");

static PyObject *
load(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("load", count, 4))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    Py_ssize_t first, size = 0;
    if (!tails_argument(args + 1, run, &first))
        return NULL;
    ID now = {0, 0};
    Py_ssize_t at = append_entries(PyModule_GetState(module), run, first, args + 2, now, NULL, NULL, &size);
    return PyErr_Occurred() ? NULL : Py_BuildValue("nn", at - first, size);
}

/* A tail that nothing was appended to; `limits` are those of the open node, then those of further ones.  -> NULL with an
   exception set. */
static Tail *
new_tail(PyObject *module, const char *prefix, ID last, Py_ssize_t length, const Py_ssize_t *limits)
{
    State *state = PyModule_GetState(module);
    Tail *tail = (Tail *)PyType_GenericAlloc(state->tail_type, 0);
    if (tail == NULL)
        return NULL;
    memcpy(tail->prefix, prefix, PREFIX_BYTES);
    tail->last = last;
    tail->length = length;
    tail->most = limits[0];
    tail->room = limits[1];
    tail->max_entries = limits[2];
    tail->max_bytes = limits[3];
    tail->nodes_left = limits[4];
    return tail;
}

PyDoc_STRVAR(open_tail_doc,
"open_tail(last_key, oldest, node_end, length, node_live, most, room, max_entries, max_bytes, nodes) -> Tail\n\n"
"What may be appended to a stream, as `reference/` says.");

static PyObject *
open_tail(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_tail", count, 10))
        return NULL;
    const char *last = bytes_argument(args[0], KEY_BYTES);
    const char *oldest = last == NULL ? NULL : bytes_argument(args[1], ID_BYTES);
    const char *node_end = oldest == NULL ? NULL : bytes_argument(args[2], ID_BYTES);
    if (node_end == NULL)
        return NULL;
    Py_ssize_t numbers[7];
    for (int i = 0; i < 7; i++) {
        numbers[i] = position_argument(args[3 + i], PY_SSIZE_T_MAX / (i == 0 ? 2 : 1));
        if (numbers[i] < 0)
            return NULL;
    }
    Tail *tail = new_tail(module, last, get_id(last + PREFIX_BYTES), numbers[0], numbers + 2);
    if (tail != NULL) {
        tail->oldest = get_id(oldest);
        tail->node_end = get_id(node_end);
        tail->node_live = numbers[1];
    }
    return (PyObject *)tail;
}

PyDoc_STRVAR(open_tail_by_row_doc,
"open_tail_by_row(key, row, max_entries, max_bytes, nodes) -> Tail, or None\n\n"
"What may be appended to the stream of a row, as `reference/` says.");

static PyObject *
open_tail_by_row(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_tail_by_row", count, 5))
        return NULL;
    const char *key = bytes_argument(args[0], -1), *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Py_ssize_t limits[5] = {0};         /* of the open node, and of the further ones */
    for (int i = 2; i < 5; i++) {
        limits[i] = position_argument(args[i], PY_SSIZE_T_MAX);
        if (limits[i] < 0)
            return NULL;
    }
    StreamRow stream;
    if (take_stream(key, PyBytes_Size(args[0]), row, PyBytes_Size(args[1]), &stream) || stream.numbers[EXPIRE_MS])
        return Py_NewRef(Py_None);
    for (int i = 0; i < NUMBERS; i++)
        if (i != STREAM_NO && stream.numbers[i] > MAX_COUNT)
            return Py_NewRef(Py_None);
    Py_ssize_t total = (Py_ssize_t)stream.numbers[TAIL_TOTAL], size = (Py_ssize_t)stream.numbers[TAIL_SIZE];
    if (total > 0) {
        limits[0] = total < limits[2] ? limits[2] - total : 0;
        limits[1] = size < limits[3] ? limits[3] - size : 0;
    }
    char prefix[PREFIX_BYTES];
    put_big_endian(prefix, stream.numbers[STREAM_NO]);
    Tail *tail = new_tail(module, prefix, stream.ids[LAST_ID], (Py_ssize_t)stream.numbers[LENGTH], limits);
    if (tail != NULL) {
        tail->key = Py_NewRef(args[0]);
        tail->row = Py_NewRef(args[1]);
    }
    return (PyObject *)tail;
}

/* Whether one of the dicts has this key.  -> -1 with an exception set. */
static int
has_key(PyObject *const *dicts, Py_ssize_t count, PyObject *key)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyDict_Size(dicts[i]) > 0) {
            int found = PyDict_Contains(dicts[i], key);
            if (found)
                return found;
        }
    return 0;
}

PyDoc_STRVAR(unknown_keys_doc,
"unknown_keys(run, at, max_bytes, *dicts) -> keys\n\n"
"The keys of entries of `run` from `at` on that trim nothing, have less than `max_bytes`, and are in no dict.");

static PyObject *
unknown_keys(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (count < 3) {
        has_count("unknown_keys", count, 3);
        return NULL;
    }
    const Run *run = run_argument(module, args[0]);
    Py_ssize_t at = run == NULL ? -1 : position_argument(args[1], run->ob_base.ob_size);
    Py_ssize_t max_bytes = at < 0 ? -1 : position_argument(args[2], PY_SSIZE_T_MAX);
    if (max_bytes < 0)
        return NULL;
    for (Py_ssize_t i = 3; i < count; i++)
        if (!PyDict_Check(args[i])) {
            PyErr_SetString(PyExc_TypeError, "dicts are needed");
            return NULL;
        }
    const char *data = PyBytes_AsString(run->chunk);
    PyObject *keys = PyList_New(0);
    for (; keys != NULL && at < run->ob_base.ob_size; at++) {
        const Entry *entry = &run->entries[at];
        if (entry->trim != NO_TRIM || entry->end - entry->fields >= max_bytes)
            continue;
        PyObject *key = PyBytes_FromStringAndSize(data + entry->key, entry->key_length);
        int known = key == NULL ? -1 : has_key(args + 3, count - 3, key);
        if (known < 0 || (!known && PyList_Append(keys, key)))
            Py_CLEAR(keys);
        Py_XDECREF(key);
    }
    return keys;
}

PyDoc_STRVAR(expand_one_doc,
"expand_one(run, key, log_head) -> (row, size, log, reply)\n\n"
"The first entry of `run` with the ID in `key`, whatever it asks for.");

static PyObject *
expand_one(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("expand_one", count, 3))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    const char *key = run == NULL ? NULL : bytes_argument(args[1], KEY_BYTES);
    const char *log_head = key == NULL ? NULL : bytes_argument(args[2], -1);
    if (log_head == NULL)
        return NULL;

    const char *data = PyBytes_AsString(run->chunk);
    const Entry *entry = &run->entries[0];
    Py_ssize_t log_head_size = PyBytes_Size(args[2]), size = entry->end - entry->fields;
    char id[ID_BULK_BYTES];
    Millisecond ms = {0};
    Py_ssize_t id_size = format_id(id, &ms, get_id(key + PREFIX_BYTES));
    if (log_head_size > PY_SSIZE_T_MAX - id_size - size)
        return PyErr_NoMemory();
    PyObject *log = PyBytes_FromStringAndSize(NULL, log_head_size + id_size + size);
    PyObject *reply = PyBytes_FromStringAndSize(id, id_size);
    PyObject *row = make_row(key, id, id_size, data, entry);
    if (log == NULL || reply == NULL || row == NULL) {
        Py_XDECREF(log);
        Py_XDECREF(reply);
        Py_XDECREF(row);
        return NULL;
    }
    char *to = put_bytes(put_bytes(PyBytes_AsString(log), log_head, log_head_size), id, id_size);
    put_bytes(to, data + entry->fields, size);
    return Py_BuildValue("NnNN", row, size, log, reply);
}

PyDoc_STRVAR(load_xadds_doc,
"load_xadds(run, at, most, room, last_key, rows) -> (count, size, last_key)\n\n"
"The rows of a run out of a log, with the IDs that stand there, as long as they ascend and nothing is trimmed.");

static PyObject *
load_xadds(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t at, most, room;
    if (!has_count("load_xadds", count, 6))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    if (run == NULL || !entries_argument(args + 1, run, &at, &most, &room))
        return NULL;
    const char *before = bytes_argument(args[4], KEY_BYTES);
    if (before == NULL || !list_argument(args[5]))
        return NULL;

    const char *data = PyBytes_AsString(run->chunk);
    char last[KEY_BYTES], key[KEY_BYTES];
    Py_ssize_t size, made = 0, loaded = 0, fitting = count_fitting(run, at, most, room, &size);
    memcpy(last, before, KEY_BYTES);
    memcpy(key, before, KEY_BYTES);
    for (; made < fitting; made++) {
        const Entry *entry = &run->entries[at + made];
        put_id(key + PREFIX_BYTES, entry->wanted);
        if (memcmp(key, last, KEY_BYTES) <= 0 || entry->trim != NO_TRIM ||
            entry->key_length != run->entries[0].key_length ||
            memcmp(data + entry->key, data + run->entries[0].key, (size_t)entry->key_length))
            break;
        PyObject *row = make_row(key, data + entry->id, entry->fields - entry->id, data, entry);
        if (append_new(args[5], make_pair(PyBytes_FromStringAndSize(key, KEY_BYTES), row)))
            return NULL;
        memcpy(last, key, KEY_BYTES);
        loaded += entry->end - entry->fields;
    }
    return Py_BuildValue("nny#", made, loaded, last, (Py_ssize_t)KEY_BYTES);
}
