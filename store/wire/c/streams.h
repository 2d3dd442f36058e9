/* Rows of the table of streams, to values and back. */

/* A row is a mark, a checksum of the key and of what follows, and nine values as msgpack: the stream's number, nil, its
   length, how many entries were added, its deadline, seven IDs, how many groups it has, an array of four numbers, nil.
   Where the first nil is a long key, or the second one settings, Python reads it. */
enum { STREAM_NO, LENGTH, ADDED, EXPIRE_MS, GROUP_COUNT, NODE_COUNT, TAIL_TOTAL, TAIL_DEAD, TAIL_SIZE, NUMBERS };
enum { FIRST_ID, LAST_ID, LAST_LIVE_ID, MAX_DELETED_ID, FLOOR_ID, TAIL_FIRST_ID, TAIL_LAST_ID, IDS };

typedef struct {
    uint64_t numbers[NUMBERS];
    ID ids[IDS];
} StreamRow;

/* The values of a row in Python, beside the IDs and the nils; -1 for these. */
static int
number_at(int place)
{
    static const signed char numbers[STREAM_VALUES] = {
        STREAM_NO, -1, LENGTH, ADDED, EXPIRE_MS, -1, -1, -1, -1, -1, -1, -1, GROUP_COUNT, NODE_COUNT, TAIL_TOTAL, TAIL_DEAD,
        TAIL_SIZE, -1,
    };
    return numbers[place];
}

/* The one byte that must stand there.  -> the byte behind it; NULL when it does not. */
static const char *
take_byte(const char *at, const char *end, char wanted)
{
    return at != NULL && at < end && *at == wanted ? at + 1 : NULL;
}

/* So many numbers of msgpack, which are not negative.  -> the byte behind them; NULL when they are others. */
static const char *
take_numbers(const char *at, const char *end, uint64_t *numbers, int count)
{
    for (; at != NULL && count > 0; count--, numbers++) {
        if (at >= end)
            return NULL;
        unsigned char kind = (unsigned char)*at++;
        *numbers = kind;
        if (kind <= MAX_FIXINT)
            continue;
        int size = kind >= UINT8_KIND && kind < UINT8_KIND + 4 ? 1 << (kind - UINT8_KIND) : -1;
        if (size < 0 || size > end - at)
            return NULL;
        for (*numbers = 0; size > 0; size--)
            *numbers = *numbers << 8 | (unsigned char)*at++;
    }
    return at;
}

static char *
put_numbers(char *to, const uint64_t *numbers, int count)
{
    for (; count > 0; count--, numbers++) {
        if (*numbers > MAX_FIXINT) {
            int power = (*numbers > UINT8_MAX) + (*numbers > UINT16_MAX) + (*numbers > UINT32_MAX);
            *to++ = (char)(UINT8_KIND + power);
            for (int shift = 8 * ((1 << power) - 1); shift > 0; shift -= 8)
                *to++ = (char)(*numbers >> shift);
        }
        *to++ = (char)*numbers;
    }
    return to;
}

/* Take a row apart that is bound to its key.  -> 0; -1 when it is another one, or has a long key or settings. */
static int
take_stream(const char *key, Py_ssize_t key_size, const char *row, Py_ssize_t size, StreamRow *stream)
{
    if (size < ROW_HEAD_BYTES || row[0] != ROW_MARK)
        return -1;
    const char *at = row + ROW_HEAD_BYTES, *end = row + size;
    if (get_u32(row + 1) != ~add_crc(add_crc(CRC_BEGIN, key, key_size), at, end - at))
        return -1;
    at = take_numbers(take_byte(at, end, STREAM_ARRAY), end, stream->numbers, 1);
    at = take_numbers(take_byte(at, end, NIL), end, stream->numbers + LENGTH, EXPIRE_MS - LENGTH + 1);
    at = take_byte(take_byte(at, end, BIN8), end, STREAM_IDS_BYTES);
    if (at == NULL || end - at < STREAM_IDS_BYTES)
        return -1;
    for (int i = 0; i < IDS; i++, at += ID_BYTES)
        stream->ids[i] = get_id(at);
    at = take_numbers(at, end, stream->numbers + GROUP_COUNT, 1);
    at = take_numbers(take_byte(at, end, NODES_ARRAY), end, stream->numbers + NODE_COUNT, NUMBERS - NODE_COUNT);
    return take_byte(at, end, NIL) == end ? 0 : -1;
}

static PyObject *
make_stream_row(const char *key, Py_ssize_t key_size, const StreamRow *stream)
{
    char row[MAX_STREAM_BYTES], *to = row + ROW_HEAD_BYTES;
    *to++ = STREAM_ARRAY;
    to = put_numbers(to, stream->numbers, 1);
    *to++ = NIL;
    to = put_numbers(to, stream->numbers + LENGTH, EXPIRE_MS - LENGTH + 1);
    *to++ = BIN8;
    *to++ = STREAM_IDS_BYTES;
    for (int i = 0; i < IDS; i++)
        to = put_id(to, stream->ids[i]);
    to = put_numbers(to, stream->numbers + GROUP_COUNT, 1);
    *to++ = NODES_ARRAY;
    to = put_numbers(to, stream->numbers + NODE_COUNT, NUMBERS - NODE_COUNT);
    *to++ = NIL;
    const char *begin = row + ROW_HEAD_BYTES;
    row[0] = ROW_MARK;
    put_u32(row + 1, ~add_crc(add_crc(CRC_BEGIN, key, key_size), begin, to - begin));
    return PyBytes_FromStringAndSize(row, to - row);
}

/* An ID as a number of Python. */
static PyObject *
id_number(ID id)
{
    PyObject *low = PyLong_FromUnsignedLongLong(id.seq);
    if (id.ms == 0 || low == NULL)
        return low;
    PyObject *high = PyLong_FromUnsignedLongLong(id.ms), *bits = PyLong_FromLong(8 * HALF_BYTES), *number = NULL;
    PyObject *shifted = high == NULL || bits == NULL ? NULL : PyNumber_Lshift(high, bits);
    if (shifted != NULL)
        number = PyNumber_Or(shifted, low);
    Py_XDECREF(shifted);
    Py_XDECREF(bits);
    Py_XDECREF(high);
    Py_DECREF(low);
    return number;
}

/* -> 0, or -1 with an exception set. */
static int
get_id_number(PyObject *number, ID *id)
{
    id->seq = PyLong_AsUnsignedLongLongMask(number);
    if (id->seq == UINT64_MAX && PyErr_Occurred())
        return -1;
    PyObject *bits = PyLong_FromLong(8 * HALF_BYTES), *high = bits == NULL ? NULL : PyNumber_Rshift(number, bits);
    Py_XDECREF(bits);
    id->ms = high == NULL ? 0 : PyLong_AsUnsignedLongLong(high);
    Py_XDECREF(high);
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(open_stream_doc,
"open_stream(key, row) -> (stream_no, None, length, ...), or None\n\n"
"The values of a stream's row; None when it is not bound to its key, or has a long key or settings.");

static PyObject *
open_stream(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_stream", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], -1), *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    StreamRow stream;
    if (take_stream(key, PyBytes_Size(args[0]), row, PyBytes_Size(args[1]), &stream))
        return Py_NewRef(Py_None);
    PyObject *values = PyTuple_New(STREAM_VALUES);
    for (int i = 0; values != NULL && i < STREAM_VALUES; i++) {
        int number = number_at(i), id = i - FIRST_ID_AT;
        PyObject *value;
        if (number >= 0)
            value = PyLong_FromUnsignedLongLong(stream.numbers[number]);
        else if (id < 0 || id >= IDS)
            value = Py_NewRef(Py_None);
        else {
            int same = 0;       /* most IDs of a stream are those of its first and its last entry */
            while (stream.ids[same].seq != stream.ids[id].seq || stream.ids[same].ms != stream.ids[id].ms)
                same++;
            value = same == id ? id_number(stream.ids[id]) : Py_NewRef(PyTuple_GetItem(values, FIRST_ID_AT + same));
        }
        if (value == NULL || PyTuple_SetItem(values, i, value))
            Py_CLEAR(values);
    }
    return values;
}

PyDoc_STRVAR(pack_stream_doc,
"pack_stream(key, values) -> row, or None\n\n"
"The row under `key` with the values that `open_stream` returns; None when there is a long key or settings.");

static PyObject *
pack_stream(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("pack_stream", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], -1);
    if (key == NULL)
        return NULL;
    if (!PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != STREAM_VALUES) {
        PyErr_SetString(PyExc_TypeError, "the values of a stream's row are needed");
        return NULL;
    }
    StreamRow stream;
    for (int i = 0; i < STREAM_VALUES; i++) {
        PyObject *value = PyTuple_GetItem(args[1], i);
        int number = number_at(i), id = i - FIRST_ID_AT;
        if (number < 0 && (id < 0 || id >= IDS)) {
            if (value != Py_None)
                return Py_NewRef(Py_None);
            continue;
        }
        if (!PyLong_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "a number is needed");
            return NULL;
        }
        if (number >= 0)
            stream.numbers[number] = PyLong_AsUnsignedLongLong(value);
        else if (id > 0 && value == PyTuple_GetItem(args[1], i - 1))
            stream.ids[id] = stream.ids[id - 1];
        else if (get_id_number(value, &stream.ids[id]))
            return NULL;
        if (PyErr_Occurred())
            return NULL;
    }
    return make_stream_row(key, PyBytes_Size(args[0]), &stream);
}
