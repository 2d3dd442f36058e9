/* Runs of pending entries. */

/* The size of a run without its checksum.  `begin` is the checksum of the keys' prefix.  -> -1 with an exception set. */
static Py_ssize_t
pending_size(uint32_t begin, const char *row, Py_ssize_t size)
{
    if (size > RUN_HEAD_BYTES && (size - RUN_HEAD_BYTES) % ID_BYTES == CHECKSUM_BYTES) {
        size -= CHECKSUM_BYTES;
        /* that without a prefix is of format version 3 */
        if (get_u32(row + size) != ~add_crc(begin, row, size) &&
            get_u32(row + size) != ~add_crc(CRC_BEGIN, row, size))
            size = 0;
    }
    if (size >= RUN_HEAD_BYTES && (size - RUN_HEAD_BYTES) % ID_BYTES == 0)
        return size;
    PyErr_SetString(PyExc_ValueError, "this is no run");
    return -1;
}

/* Append the IDs of one run, `most` of them, that are between `first` and `last`.  -> how many; -1 with an exception. */
static Py_ssize_t
show_run(Buffer *buffer, const char *row, Py_ssize_t size, const char *first, const char *last, PyObject *owner,
         long long idle_ms, Py_ssize_t most)
{
    char tail[2 * HALF_DIGITS + 8], *end = tail;
    *end++ = ':';
    if (idle_ms < 0)
        end = put_bytes(end, "-1", 2);
    else
        end = put_number(end, (uint64_t)idle_ms);
    end = put_bytes(end, "\r\n:", 3);
    end = put_number(end, get_big_endian(row + RUN_COUNT_AT));
    end = put_bytes(end, "\r\n", 2);
    const char *name = PyBytes_AsString(owner);
    Py_ssize_t name_size = PyBytes_Size(owner), shown = 0;
    Millisecond ms = {0};
    for (const char *id = row + RUN_HEAD_BYTES; id < row + size && shown < most; id += ID_BYTES) {
        if (memcmp(id, first, ID_BYTES) < 0 || memcmp(id, last, ID_BYTES) > 0)
            continue;
        char *start = make_room(buffer, (size_t)(4 + ID_BULK_BYTES + name_size + (end - tail))), *at = start;
        if (start == NULL)
            return -1;
        at = put_bytes(at, "*4\r\n", 4);
        at += format_id(at, &ms, get_id(id));
        at = put_bytes(at, name, name_size);
        at = put_bytes(at, tail, end - tail);
        buffer->size += (size_t)(at - start);
        shown++;
    }
    return shown;
}

/* The delivery time in the moment of an entry that has an owner. */
static uint64_t
time_of(uint64_t moment)
{
    return moment & (((uint64_t)1 << TURN_AT) - 1);
}

/* Append what is asked for of `rows`.  -> how many entries; -1 with an exception set. */
static Py_ssize_t
show_runs(Buffer *buffer, const char *prefix, PyObject *rows, const char *first, const char *last, PyObject *owners, long long now_ms,
          long long until_ms, Py_ssize_t most)
{
    Py_ssize_t shown = 0;
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    for (Py_ssize_t i = 0; i < PyList_Size(rows) && shown < most; i++) {
        PyObject *item = PyList_GetItem(rows, i);
        const char *row = bytes_argument(item, -1);
        Py_ssize_t size = row == NULL ? 0 : PyBytes_Size(item);
        if (row == NULL)
            return -1;
        size = pending_size(begin, row, size);
        if (size < 0)
            return -1;
        uint32_t number = get_u32(row);
        PyObject *key = PyLong_FromUnsignedLong(number);
        PyObject *owner = key == NULL ? NULL : PyDict_GetItemWithError(owners, key);
        Py_XDECREF(key);
        if (owner == NULL) {
            if (PyErr_Occurred())
                return -1;
            continue;
        }
        if (bytes_argument(owner, -1) == NULL)
            return -1;
        long long idle_ms = -1;
        if (number) {
            long long time_ms = (long long)time_of(get_big_endian(row + RUN_MOMENT_AT));
            if (time_ms > until_ms)
                continue;
            idle_ms = now_ms > time_ms ? now_ms - time_ms : 0;
        }
        Py_ssize_t more = show_run(buffer, row, size, first, last, owner, idle_ms, most - shown);
        if (more < 0)
            return -1;
        shown += more;
    }
    return shown;
}

PyDoc_STRVAR(show_pending_doc, "show_pending(prefix, rows, first, last, owners, now_ms, until_ms, most) -> (RESP, count)");

static PyObject *
show_pending(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("show_pending", count, 8) || !list_argument(args[1]))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    const char *first = prefix == NULL ? NULL : bytes_argument(args[2], ID_BYTES);
    const char *last = first == NULL ? NULL : bytes_argument(args[3], ID_BYTES);
    if (last == NULL)
        return NULL;
    if (!PyDict_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "a dict is needed");
        return NULL;
    }
    long long now_ms = PyLong_AsLongLong(args[5]);
    long long until_ms = now_ms == -1 && PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[6]);
    Py_ssize_t most = until_ms == -1 && PyErr_Occurred() ? -1 : position_argument(args[7], PY_SSIZE_T_MAX);
    if (most < 0)
        return NULL;
    Buffer buffer = {NULL, 0, 0};
    Py_ssize_t shown = show_runs(&buffer, prefix, args[1], first, last, args[4], now_ms, until_ms, most);
    PyObject *found = NULL;
    if (shown >= 0)
        found = Py_BuildValue("y#n", buffer.data == NULL ? "" : buffer.data, (Py_ssize_t)buffer.size, shown);
    PyMem_Free(buffer.data);
    return found;
}

/* What the entries of a run have in common: its owner, when they were delivered, and how often. */
typedef struct {
    uint32_t owner;
    uint64_t moment, count;
} Delivery;

/* A run: what its entries have in common, and where its IDs are in a buffer. */
typedef struct {
    Delivery delivery;
    size_t begin, size;
    const char *last;           /* the last ID of a run of the table, which is in no buffer */
} Piece;

static int
is_like(const Delivery *one, const Delivery *other)
{
    return one->owner == other->owner && one->moment == other->moment && one->count == other->count;
}

static Piece *
piece_at(const Buffer *pieces, size_t at)
{
    return (Piece *)pieces->data + at;
}

static size_t
count_pieces(const Buffer *pieces)
{
    return pieces->size / sizeof(Piece);
}

/* -> 0, or -1 with an exception set. */
static int
add_piece(Buffer *pieces, Piece piece)
{
    char *to = make_room(pieces, sizeof(piece));
    if (to == NULL)
        return -1;
    memcpy(to, &piece, sizeof(piece));
    pieces->size += sizeof(piece);
    return 0;
}

/* Have the last piece join the one before, if they differ in their IDs only; those before `first` are no neighbours. */
static void
join_last(Buffer *pieces, size_t first, Py_ssize_t most)
{
    size_t count = count_pieces(pieces);
    if (count < first + 2)
        return;
    Piece *last = piece_at(pieces, count - 1), *before = last - 1;
    if (last->delivery.owner && is_like(&before->delivery, &last->delivery) &&
        (before->size + last->size) / ID_BYTES <= (size_t)most) {
        before->size += last->size;
        pieces->size -= sizeof(Piece);
    }
}

/* (owner, moment, delivery count); None is an acknowledged entry.  -> 1, 0 for None, -1 with an exception set. */
static int
take_delivery(PyObject *item, Delivery *delivery)
{
    if (Py_IsNone(item))
        return 0;
    if (!PyTuple_Check(item) || PyTuple_Size(item) != 3) {
        PyErr_SetString(PyExc_TypeError, "a delivery is needed");
        return -1;
    }
    unsigned long long numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(item, i));
        if (numbers[i] == (unsigned long long)-1 && PyErr_Occurred())
            return -1;
    }
    if (numbers[0] > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too large for a run");
        return -1;
    }
    *delivery = (Delivery){(uint32_t)numbers[0], numbers[1], numbers[2]};
    return 1;
}

/* Cut a run whose entries change into pieces, which are appended to `new`, and itself to `old`; `at` counts the changes.
   -> 0, or -1 with an exception set. */
static int
cut_run(const char *row, Py_ssize_t size, PyObject *order, PyObject *changed, Py_ssize_t *at, Py_ssize_t most,
        Buffer *ids, Buffer *old, Buffer *new, size_t first)
{
    Delivery own = {get_u32(row), get_big_endian(row + RUN_MOMENT_AT), get_big_endian(row + RUN_COUNT_AT)};
    Piece *open = NULL;
    int is_own = 0;             /* the open piece keeps the delivery of the run */
    PyObject *wanted = NULL;    /* the next ID that changes */
    const char *packed = NULL;
    if (make_room(ids, (size_t)size) == NULL)
        return -1;
    for (const char *id = row + RUN_HEAD_BYTES; id < row + size; id += ID_BYTES) {
        if (packed == NULL && *at < PyList_Size(order)) {
            wanted = PyList_GetItem(order, *at);
            packed = bytes_argument(wanted, ID_BYTES);
            if (packed == NULL)
                return -1;
        }
        Delivery delivery = own;
        int stays = 1, changes = packed != NULL && !memcmp(id, packed, ID_BYTES);
        if (changes) {
            PyObject *item = PyDict_GetItemWithError(changed, wanted);
            if (item == NULL) {
                if (!PyErr_Occurred())
                    PyErr_SetObject(PyExc_KeyError, wanted);
                return -1;
            }
            stays = take_delivery(item, &delivery);
            if (stays < 0)
                return -1;
            (*at)++;
            packed = NULL;
        }
        if (!stays)
            continue;
        memcpy(ids->data + ids->size, id, ID_BYTES);
        if (open == NULL || is_own == changes || !is_like(&open->delivery, &delivery)) {
            join_last(new, first, most);
            if (add_piece(new, (Piece){delivery, ids->size, 0, NULL}))
                return -1;
            open = piece_at(new, count_pieces(new) - 1);
            is_own = !changes;
        }
        ids->size += ID_BYTES;
        open->size += ID_BYTES;
    }
    join_last(new, first, most);
    return add_piece(old, (Piece){own, 0, 0, row + size - ID_BYTES});
}

/* The rows of a run in the three tables have its last ID in their keys. */
enum { BY_ID, BY_OWNER, BY_TIME, INDEXES };

/* -> where the key ends. */
static char *
put_key(char *to, int table, const char *prefix, const Delivery *delivery, const char *last)
{
    to = put_bytes(to, prefix, PREFIX_BYTES);
    if (table == BY_OWNER)
        to = put_u32(to, delivery->owner);
    if (table != BY_TIME)
        return put_bytes(to, last, ID_BYTES);
    if (!delivery->owner)
        return put_big_endian(put_big_endian(put_big_endian(to, 0), 0), delivery->moment);
    to = put_big_endian(to, time_of(delivery->moment) + 1);
    uint64_t turn = delivery->moment >> TURN_AT;
    if (turn) {                 /* behind all IDs of the first turn, whose keys name none */
        memset(to, 0xff, ID_BYTES);
        to += ID_BYTES;
        *to++ = (char)(turn >> 8);
        *to++ = (char)turn;
    }
    return put_bytes(to, last, ID_BYTES);
}

/* Whether a row that is put under the same last ID would be the one that is there. */
static int
stays(int table, const Delivery *was, const Delivery *is)
{
    if (table == BY_OWNER)
        return was->owner == is->owner;
    return table == BY_TIME && was->moment == is->moment && !was->owner == !is->owner;
}

static PyObject *
make_key(int table, const char *prefix, const Delivery *delivery, const char *last)
{
    char key[PREFIX_BYTES + HALF_BYTES + ID_BYTES + TURN_BYTES + ID_BYTES];
    return PyBytes_FromStringAndSize(key, put_key(key, table, prefix, delivery, last) - key);
}

static PyObject *
make_value(int table, uint32_t begin, const Piece *piece, const char *ids)
{
    const Delivery *delivery = &piece->delivery;
    if (table == BY_OWNER || (table == BY_TIME && delivery->owner))
        return PyBytes_FromStringAndSize(NULL, 0);
    if (table == BY_TIME)
        return PyBytes_FromStringAndSize(ids + piece->begin + piece->size - ID_BYTES, ID_BYTES);
    Py_ssize_t size = (Py_ssize_t)piece->size;
    PyObject *row = PyBytes_FromStringAndSize(NULL, RUN_HEAD_BYTES + size + CHECKSUM_BYTES);
    if (row == NULL)
        return NULL;
    char *start = PyBytes_AsString(row), *to = start;
    to = put_u32(to, delivery->owner);
    to = put_big_endian(put_big_endian(to, delivery->moment), delivery->count);
    to = put_bytes(to, ids + piece->begin, size);
    put_u32(to, ~add_crc(begin, start, to - start));
    return row;
}

/* Where a row of an index belongs among others: by `high`, then by `low`, then by the ID, as pieces ascend. */
typedef struct {
    uint64_t high, low;
    size_t piece;
} Place;

static Place
place_in(int table, const Delivery *delivery, size_t piece)
{
    if (table == BY_ID)
        return (Place){0, 0, piece};
    if (table == BY_OWNER)
        return (Place){delivery->owner, 0, piece};
    if (!delivery->owner)
        return (Place){0, delivery->moment, piece};
    return (Place){time_of(delivery->moment) + 1, delivery->moment >> TURN_AT, piece};
}

static int
is_before(const Place *one, const Place *other)
{
    if (one->high != other->high)
        return one->high < other->high;
    return one->low != other->low ? one->low < other->low : one->piece < other->piece;
}

/* Sort places; `spare` has room for as many.  -> where they are in order, which is one of the two. */
static Place *
sort_places(Place *places, Place *spare, size_t count)
{
    for (size_t width = 1; width < count; width *= 2) {
        Place *to = spare;
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            const Place *left = places + begin, *right = left + (count - begin < width ? count - begin : width);
            const Place *middle = right, *end = left + (count - begin < 2 * width ? count - begin : 2 * width);
            while (left < middle && right < end)
                *to++ = is_before(right, left) ? *right++ : *left++;
            while (left < middle)
                *to++ = *left++;
            while (right < end)
                *to++ = *right++;
        }
        spare = places;
        places = to - count;
    }
    return places;
}

/* Append the rows of these pieces to a list, ascending.  -> 0, or -1 with an exception set. */
static int
append_rows(int table, const char *prefix, const char *ids, const Buffer *new, Place *places, size_t count,
            PyObject *rows)
{
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    const Place *sorted = table == BY_ID ? places : sort_places(places, places + count, count);
    for (size_t i = 0; i < count; i++) {
        const Piece *piece = piece_at(new, sorted[i].piece);
        const char *last = ids + piece->begin + piece->size - ID_BYTES;
        if (append_new(rows, make_pair(make_key(table, prefix, &piece->delivery, last),
                                       make_value(table, begin, piece, ids))))
            return -1;
    }
    return 0;
}

/* Append to the lists of a table which keys are gone, when `new` takes the place of `old`, and which rows are to be put,
   ascending; `places` has room for twice as many as `new` has.  -> 0, or -1 with an exception set. */
static int
compare_runs(int table, const char *prefix, const char *ids, const Buffer *old, const Buffer *new, Place *places,
             PyObject *gone, PyObject *rows)
{
    size_t count = 0;
    size_t at = 0, next = 0, olds = count_pieces(old), news = count_pieces(new);
    while (at < olds || next < news) {
        const Piece *was = at < olds ? piece_at(old, at) : NULL, *is = next < news ? piece_at(new, next) : NULL;
        const char *is_last = is == NULL ? NULL : ids + is->begin + is->size - ID_BYTES;
        int order = was == NULL ? 1 : is == NULL ? -1 : memcmp(was->last, is_last, ID_BYTES);
        int is_same = order == 0 && stays(table, &was->delivery, &is->delivery);
        if (order <= 0) {
            if (!is_same && (order < 0 || table != BY_ID) &&
                append_new(gone, make_key(table, prefix, &was->delivery, was->last)))
                return -1;
            at++;
        }
        if (order >= 0) {
            if (!is_same)
                places[count++] = place_in(table, &is->delivery, next);
            next++;
        }
    }
    return append_rows(table, prefix, ids, new, places, count, rows);
}

/* Cut the runs in `rows`, pairs of key and row, or None where others may be between.  -> 0, or -1 with an exception set. */
static int
cut_runs(const char *prefix, PyObject *rows, PyObject *order, PyObject *changed, Py_ssize_t most, Buffer *ids,
         Buffer *old, Buffer *new)
{
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    const char *before = NULL;
    Py_ssize_t at = 0;
    size_t first = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *pair = PyList_GetItem(rows, i);
        if (Py_IsNone(pair)) {
            first = count_pieces(new);
            continue;
        }
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "pairs are needed");
            return -1;
        }
        const char *key = bytes_argument(PyTuple_GetItem(pair, 0), KEY_BYTES);
        const char *row = key == NULL ? NULL : bytes_argument(PyTuple_GetItem(pair, 1), -1);
        Py_ssize_t size = row == NULL ? -1 : pending_size(begin, row, PyBytes_Size(PyTuple_GetItem(pair, 1)));
        if (size < 0)
            return -1;
        if (size == RUN_HEAD_BYTES || memcmp(key, prefix, PREFIX_BYTES) ||
            memcmp(key + PREFIX_BYTES, row + size - ID_BYTES, ID_BYTES)) {
            PyErr_SetString(PyExc_ValueError, "a run under another key than its own");
            return -1;
        }
        for (const char *id = row + RUN_HEAD_BYTES; id < row + size; before = id, id += ID_BYTES)
            if (before != NULL && memcmp(before, id, ID_BYTES) >= 0) {
                PyErr_SetString(PyExc_ValueError, "the IDs of runs do not ascend");
                return -1;
            }
        if (cut_run(row, size, order, changed, &at, most, ids, old, new, first))
            return -1;
    }
    if (at == PyList_Size(order))
        return 0;
    PyErr_SetString(PyExc_ValueError, "an ID that is in none of these runs");
    return -1;
}

PyDoc_STRVAR(open_run_doc, "open_run(key, row) -> (owner, moment, delivery count, IDs)");

static PyObject *
open_run(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_run", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], KEY_BYTES);
    const char *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Py_ssize_t size = pending_size(add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, PyBytes_Size(args[1]));
    if (size < 0)
        return NULL;
    return Py_BuildValue("kKKy#", (unsigned long)get_u32(row), (unsigned long long)get_big_endian(row + RUN_MOMENT_AT),
                         (unsigned long long)get_big_endian(row + RUN_COUNT_AT), row + RUN_HEAD_BYTES,
                         (Py_ssize_t)(size - RUN_HEAD_BYTES));
}

PyDoc_STRVAR(find_delivery_doc,
"find_delivery(key, row, wanted) -> (owner, moment, delivery count)\n\n"
"What a run says of the entry with the last ID in the key `wanted`, None when it does not have it.");

static PyObject *
find_delivery(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("find_delivery", count, 3))
        return NULL;
    int is_known = Py_IsNone(args[0]);
    const char *key = is_known ? "" : bytes_argument(args[0], KEY_BYTES);
    const char *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    const char *wanted = row == NULL ? NULL : bytes_argument(args[2], KEY_BYTES);
    if (wanted == NULL)
        return NULL;
    Py_ssize_t size = PyBytes_Size(args[1]);
    if (is_known && size > RUN_HEAD_BYTES)
        size -= (size - RUN_HEAD_BYTES) % ID_BYTES;
    else
        size = pending_size(is_known ? 0 : add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, size);
    if (size < 0)
        return NULL;
    if (!is_known && (size == RUN_HEAD_BYTES || memcmp(key + PREFIX_BYTES, row + size - ID_BYTES, ID_BYTES))) {
        PyErr_SetString(PyExc_ValueError, "a run under another key than its own");
        return NULL;
    }
    if ((!is_known && memcmp(key, wanted, PREFIX_BYTES)) ||
        place_of(row + RUN_HEAD_BYTES, size - RUN_HEAD_BYTES, wanted + PREFIX_BYTES) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("kKK", (unsigned long)get_u32(row), (unsigned long long)get_big_endian(row + RUN_MOMENT_AT),
                         (unsigned long long)get_big_endian(row + RUN_COUNT_AT));
}

PyDoc_STRVAR(change_runs_doc,
"change_runs(prefix, rows, order, changed, most) -> (keys that are gone, rows to be put) for each of three tables\n\n"
"What becomes of runs when entries of theirs change.");

static PyObject *
change_runs(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("change_runs", count, 5) || !list_argument(args[1]) || !list_argument(args[2]))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    if (prefix == NULL)
        return NULL;
    if (!PyDict_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "a dict is needed");
        return NULL;
    }
    Py_ssize_t most = position_argument(args[4], PY_SSIZE_T_MAX);
    if (most < 0)
        return NULL;
    Buffer ids = {NULL, 0, 0}, old = {NULL, 0, 0}, new = {NULL, 0, 0};
    PyObject *tables = PyTuple_New(INDEXES);
    Place *places = NULL;
    if (tables != NULL && cut_runs(prefix, args[1], args[2], args[3], most, &ids, &old, &new))
        Py_CLEAR(tables);
    if (tables != NULL && (places = PyMem_Malloc(2 * count_pieces(&new) * sizeof(Place) + 1)) == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(tables);
    }
    for (int table = 0; tables != NULL && table < INDEXES; table++) {
        PyObject *gone = PyList_New(0), *rows = PyList_New(0), *pair = NULL;
        if (gone != NULL && rows != NULL && !compare_runs(table, prefix, ids.data, &old, &new, places, gone, rows))
            pair = PyTuple_Pack(2, gone, rows);
        Py_XDECREF(gone);
        Py_XDECREF(rows);
        if (pair == NULL || PyTuple_SetItem(tables, table, pair))
            Py_CLEAR(tables);
    }
    PyMem_Free(ids.data);
    PyMem_Free(old.data);
    PyMem_Free(new.data);
    PyMem_Free(places);
    return tables;
}
