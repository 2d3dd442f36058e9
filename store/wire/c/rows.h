/* Rows of entries: their parts, the XADDs that they become, and their seals. */

/* Where the parts of an entry's row end: its ID, and the number of its words. */
typedef struct {
    Py_ssize_t id_end, fields, count;
} Parts;

/* Take the row of an entry apart.  -> 0; -1 when we would not have written it so. */
static int
take_row(const char *data, Py_ssize_t size, Parts *parts)
{
    Py_ssize_t word, length;
    parts->id_end = take_closed_word(data, 0, size, &word, &length);
    if (parts->id_end < 0)
        return -1;
    Py_ssize_t at = parts->fields = take_head(data, parts->id_end, size, &parts->count);
    if (at < 0 || parts->count % 2)
        return -1;
    for (Py_ssize_t i = 0; i < parts->count; i++) {
        at = take_closed_word(data, at, size, &word, &length);
        if (at < 0)
            return -1;
    }
    return at == size ? 0 : -1;
}

/* The size of the row of an entry without its seal; -1 when the row is not what was written.  `crc` is that of the
   stream's number.  Rows of format version 2 have no seal, and are taken apart. */
static Py_ssize_t
unsealed_size(uint32_t crc, const char *row, Py_ssize_t size)
{
    if (size > SEAL_BYTES && row[size - 1] == SEAL_MARK) {
        size -= SEAL_BYTES;
        return get_u32(row + size) == ~add_crc(crc, row, size) ? size : -1;
    }
    Parts parts;
    return take_row(row, size, &parts) ? -1 : size;
}

/* The bytes of the fields of a row under its key; -1 when we would not have written the two so. */
static Py_ssize_t
measure_row(const char *key, Py_ssize_t key_size, const char *row, Py_ssize_t row_size)
{
    char id[ID_BULK_BYTES];
    Millisecond ms = {0};
    Parts parts;
    if (key_size != KEY_BYTES)
        return -1;
    row_size = unsealed_size(add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, row_size);
    if (row_size < 0 || take_row(row, row_size, &parts))
        return -1;
    ID of_key = get_id(key + PREFIX_BYTES);
    Py_ssize_t id_size = format_id(id, &ms, of_key);
    if (id_size != parts.id_end || memcmp(id, row, (size_t)id_size))
        return -1;
    return row_size - parts.fields;
}

PyDoc_STRVAR(measure_entries_doc,
"measure_entries(rows, prefix, most) -> (keys, sizes, odd rows)\n\n"
"Take at most `most` rows of entries out of an iterator, whose keys begin with `prefix`.");

static PyObject *
measure_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("measure_entries", count, 3))
        return NULL;
    const char *prefix = bytes_argument(args[1], PREFIX_BYTES);
    Py_ssize_t most = prefix == NULL ? -1 : position_argument(args[2], PY_SSIZE_T_MAX);
    if (most < 0)
        return NULL;
    PyObject *keys = PyList_New(0), *sizes = PyList_New(0), *odd = PyList_New(0), *item = NULL;
    if (keys == NULL || sizes == NULL || odd == NULL)
        goto failed;
    for (; most > 0 && (item = PyIter_Next(args[0])) != NULL; most--) {
        char *key, *row;
        Py_ssize_t key_size, row_size;
        if (!PyTuple_Check(item) || PyTuple_Size(item) != 2) {
            PyErr_SetString(PyExc_TypeError, "pairs are needed");
            goto failed;
        }
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(item, 0), &key, &key_size) ||
            PyBytes_AsStringAndSize(PyTuple_GetItem(item, 1), &row, &row_size))
            goto failed;
        if (key_size < PREFIX_BYTES || memcmp(key, prefix, PREFIX_BYTES)) {
            Py_CLEAR(item);
            break;
        }
        Py_ssize_t size = measure_row(key, key_size, row, row_size);
        if ((size < 0 && PyList_Append(odd, item)) || PyList_Append(keys, PyTuple_GetItem(item, 0)) ||
            append_new(sizes, PyLong_FromSsize_t(size)))
            goto failed;
        Py_CLEAR(item);
    }
    if (!PyErr_Occurred())
        return Py_BuildValue("NNN", keys, sizes, odd);

failed:
    Py_XDECREF(item);
    Py_XDECREF(keys);
    Py_XDECREF(sizes);
    Py_XDECREF(odd);
    return NULL;
}

PyDoc_STRVAR(log_entries_doc,
"log_entries(rows, last_key, head, room) -> (XADDs, count, last_key)\n\n"
"Make XADDs of the rows of entries that an iterator gives, until they have `room` bytes.");

static PyObject *
log_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("log_entries", count, 4))
        return NULL;
    const char *before = bytes_argument(args[1], KEY_BYTES);
    const char *head = before == NULL ? NULL : bytes_argument(args[2], -1);
    Py_ssize_t room = head == NULL ? -1 : position_argument(args[3], PY_SSIZE_T_MAX);
    if (room < 0)
        return NULL;
    char last[KEY_BYTES];
    memcpy(last, before, KEY_BYTES);
    ID last_id = get_id(last + PREFIX_BYTES);
    Py_ssize_t head_size = PyBytes_Size(args[2]), size = 0, held = 0, made = 0;
    uint32_t crc = add_crc(CRC_BEGIN, last, PREFIX_BYTES);
    char *log = NULL;
    PyObject *item = NULL;
    while (size < room && (item = PyIter_Next(args[0])) != NULL) {
        char *row;
        Py_ssize_t row_size;
        Parts parts;
        if (PyBytes_AsStringAndSize(item, &row, &row_size))
            goto failed;
        row_size = unsealed_size(crc, row, row_size);
        if (row_size < 0 || take_row(row, row_size, &parts)) {
            PyErr_SetString(PyExc_ValueError, "this is not the row of an entry");
            goto failed;
        }
        Py_ssize_t word, length;
        ID id;
        if (take_closed_word(row, 0, row_size, &word, &length) < 0 || parse_id(row, word, length, 0, &id) ||
            !is_above(id, last_id)) {
            PyErr_SetString(PyExc_ValueError, "the entries are not in the order of their IDs");
            goto failed;
        }
        last_id = id;
        if (head_size > PY_SSIZE_T_MAX / 4 - HEAD_BYTES - row_size - size) {
            PyErr_NoMemory();
            goto failed;
        }
        Py_ssize_t needed = size + HEAD_BYTES + head_size + row_size;
        if (needed > held) {
            char *grown = PyMem_Realloc(log, (size_t)(2 * needed));
            if (grown == NULL) {
                PyErr_NoMemory();
                goto failed;
            }
            log = grown;
            held = 2 * needed;
        }
        char *at = log + size;
        at += format_head(at, parts.count + 3);
        at = put_bytes(at, head, head_size);
        at = put_bytes(at, row, parts.id_end);
        at = put_bytes(at, row + parts.fields, row_size - parts.fields);
        size = at - log;
        made++;
        Py_CLEAR(item);
    }
    put_id(last + PREFIX_BYTES, last_id);
    PyObject *result = PyErr_Occurred() ? NULL : Py_BuildValue("y#ny#", log == NULL ? "" : log, size, made, last,
                                                               (Py_ssize_t)KEY_BYTES);
    PyMem_Free(log);
    return result;

failed:
    Py_XDECREF(item);
    PyMem_Free(log);
    return NULL;
}

PyDoc_STRVAR(seal_doc, "seal(prefix, row) -> the row of an entry of the stream with this number, with its seal");

static PyObject *
seal(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("seal", count, 2))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    const char *row = prefix == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Py_ssize_t size = PyBytes_Size(args[1]);
    PyObject *sealed = PyBytes_FromStringAndSize(NULL, size + SEAL_BYTES);
    if (sealed != NULL)
        put_seal(put_bytes(PyBytes_AsString(sealed), row, size),
                 add_crc(add_crc(CRC_BEGIN, prefix, PREFIX_BYTES), row, size));
    return sealed;
}

/* Whether the ID in the key is what the row begins with. */
static int
has_id_of(const char *key, const char *row, Py_ssize_t size, Millisecond *ms)
{
    char id[ID_BULK_BYTES];
    Py_ssize_t id_size = format_id(id, ms, get_id(key + PREFIX_BYTES));
    return id_size <= size && !memcmp(id, row, (size_t)id_size);
}

/* The row without its seal: itself, or a new object; NULL without an exception when it is damaged.

   A row that only the caller has, which LMDB has just copied, is cut in its place: a copy would take four times as
   long.  Its memory keeps its size, which is not looked at when it is freed. */
static PyObject *
cut_seal(uint32_t crc, PyObject *row, int is_shared)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(row, &data, &size))
        return NULL;
    Py_ssize_t left = unsealed_size(crc, data, size);
    if (left < 0)
        return NULL;
    if (left == size)
        return row;
    if (left < 2 || is_shared || Py_REFCNT(row) != 1)
        return PyBytes_FromStringAndSize(data, left);
    data[left] = 0;
    Py_SET_SIZE((PyVarObject *)row, left);
    return row;
}

PyDoc_STRVAR(unseal_one_doc, "unseal_one(key, row) -> the row without its seal; None when it is damaged, or has another key");

static PyObject *
unseal_one(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("unseal_one", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], KEY_BYTES);
    const char *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Millisecond ms = {0};
    Py_ssize_t size = PyBytes_Size(args[1]);
    Py_ssize_t left = unsealed_size(add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, size);
    if (left < 0 || !has_id_of(key, row, left, &ms))
        Py_RETURN_NONE;
    return left == size ? Py_NewRef(args[1]) : PyBytes_FromStringAndSize(row, left);
}

PyDoc_STRVAR(unseal_doc, "unseal(prefix, rows) -> the index of the first damaged row, -1 without; changes `rows`");

static PyObject *
unseal(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("unseal", count, 2))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    if (prefix == NULL || !list_argument(args[1]))
        return NULL;
    uint32_t crc = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    for (Py_ssize_t at = 0, size = PyList_Size(args[1]); at < size; at++) {
        PyObject *row = PyList_GetItem(args[1], at), *cut = cut_seal(crc, row, 0);
        if (cut == NULL)
            return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
        if (cut != row)
            PyList_SetItem(args[1], at, cut);
    }
    return PyLong_FromLong(-1);
}

PyDoc_STRVAR(unseal_pairs_doc,
"unseal_pairs(pairs) -> the index of the first damaged row, -1 without; `pairs` are (key, row), and change");

static PyObject *
unseal_pairs(PyObject *Py_UNUSED(module), PyObject *pairs)
{
    if (!list_argument(pairs))
        return NULL;
    char prefix[PREFIX_BYTES];
    uint32_t crc = 0;
    Millisecond ms = {0};
    for (Py_ssize_t at = 0, size = PyList_Size(pairs); at < size; at++) {
        PyObject *pair = PyList_GetItem(pairs, at);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "pairs are needed");
            return NULL;
        }
        const char *key = bytes_argument(PyTuple_GetItem(pair, 0), KEY_BYTES);
        if (key == NULL)
            return NULL;
        if (at == 0 || memcmp(prefix, key, PREFIX_BYTES)) {
            memcpy(prefix, key, PREFIX_BYTES);
            crc = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
        }
        PyObject *row = PyTuple_GetItem(pair, 1);
        const char *data = bytes_argument(row, -1);
        if (data == NULL)
            return NULL;
        if (!has_id_of(key, data, PyBytes_Size(row), &ms))
            return PyLong_FromSsize_t(at);
        PyObject *cut = cut_seal(crc, row, Py_REFCNT(pair) != 1);
        if (cut == NULL)
            return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
        if (cut != row) {
            PyObject *changed = PyTuple_Pack(2, PyTuple_GetItem(pair, 0), cut);
            Py_DECREF(cut);
            if (changed == NULL)
                return NULL;
            PyList_SetItem(pairs, at, changed);
        }
    }
    return PyLong_FromLong(-1);
}

/* A buffer of `count` numbers of 64 bits, of as many as there are when it is negative.  -> 0, or -1 with an exception set. */
static int
numbers_argument(PyObject *argument, int flags, Py_ssize_t count, Py_buffer *numbers)
{
    if (PyObject_GetBuffer(argument, numbers, flags))
        return -1;
    if (numbers->len % 8 == 0 && (count < 0 || numbers->len / 8 == count))
        return 0;
    PyBuffer_Release(numbers);
    PyErr_SetString(PyExc_ValueError, "not as many numbers of 64 bits");
    return -1;
}

static Py_ssize_t
unseal_places(const Py_buffer *rows, const int64_t *starts, int64_t *ends, const uint64_t *stream_nos, Py_ssize_t count)
{
    char prefix[PREFIX_BYTES];
    uint32_t crc = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (at == 0 || stream_nos[at] != stream_nos[at - 1]) {
            put_big_endian(prefix, stream_nos[at]);
            crc = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
        }
        if (starts[at] < 0 || ends[at] < starts[at] || ends[at] > rows->len)
            return at;
        Py_ssize_t size = unsealed_size(crc, (const char *)rows->buf + starts[at], (Py_ssize_t)(ends[at] - starts[at]));
        if (size < 0)
            return at;
        ends[at] = starts[at] + size;
    }
    return -1;
}

PyDoc_STRVAR(unseal_in_doc,
"unseal_in(buffer, starts, ends, stream_nos) -> the index of the first damaged row, -1 without; changes `ends`");

static PyObject *
unseal_in(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer rows, starts, ends, stream_nos;
    PyObject *result = NULL;
    if (!has_count("unseal_in", count, 4) || PyObject_GetBuffer(args[0], &rows, PyBUF_SIMPLE))
        return NULL;
    if (!numbers_argument(args[1], PyBUF_SIMPLE, -1, &starts)) {
        Py_ssize_t many = starts.len / 8;
        if (!numbers_argument(args[2], PyBUF_WRITABLE, many, &ends)) {
            if (!numbers_argument(args[3], PyBUF_SIMPLE, many, &stream_nos)) {
                result = PyLong_FromSsize_t(unseal_places(&rows, starts.buf, ends.buf, stream_nos.buf, many));
                PyBuffer_Release(&stream_nos);
            }
            PyBuffer_Release(&ends);
        }
        PyBuffer_Release(&starts);
    }
    PyBuffer_Release(&rows);
    return result;
}
