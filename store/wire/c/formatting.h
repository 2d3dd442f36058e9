/* Numbers, IDs and rows as bytes, and rows as objects. */

static char *
put_number(char *to, uint64_t number)
{
    char digits[HALF_DIGITS];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count)
        *to++ = digits[--count];
    return to;
}

static char *
put_bytes(char *to, const char *from, Py_ssize_t size)
{
    memcpy(to, from, (size_t)size);
    return to + size;
}

static char *
put_big_endian(char *to, uint64_t number)
{
    for (int shift = 56; shift >= 0; shift -= 8)
        *to++ = (char)(number >> shift);
    return to;
}

/* `*n\r\n`  -> its length. */
static Py_ssize_t
format_head(char *to, Py_ssize_t count)
{
    char *at = to;
    *at++ = '*';
    at = put_number(at, (uint64_t)count);
    at = put_bytes(at, "\r\n", 2);
    return at - to;
}

/* The last ID that was formatted: the next one most likely has the same millisecond. */
typedef struct {
    uint64_t ms;
    char head[HALF_DIGITS + 1];         /* `ms-` */
    Py_ssize_t head_size;
} Millisecond;

/* An ID as a bulk string.  `ms` is zero at first.  -> its length. */
static Py_ssize_t
format_id(char *to, Millisecond *ms, ID id)
{
    if (ms->head_size == 0 || ms->ms != id.ms) {
        char *end = put_number(ms->head, id.ms);
        *end++ = '-';
        ms->head_size = end - ms->head;
        ms->ms = id.ms;
    }
    char digits[HALF_DIGITS];
    Py_ssize_t seq_size = put_number(digits, id.seq) - digits;
    char *at = to;
    *at++ = '$';
    at = put_number(at, (uint64_t)(ms->head_size + seq_size));
    at = put_bytes(at, "\r\n", 2);
    at = put_bytes(at, ms->head, ms->head_size);
    at = put_bytes(at, digits, seq_size);
    at = put_bytes(at, "\r\n", 2);
    return at - to;
}

static uint64_t
get_big_endian(const char *from)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number << 8 | (unsigned char)from[i];
    return number;
}

static ID
get_id(const char *from)
{
    return (ID){get_big_endian(from), get_big_endian(from + HALF_BYTES)};
}

static char *
put_id(char *to, ID id)
{
    return put_big_endian(put_big_endian(to, id.ms), id.seq);
}

static PyObject *
id_bytes(ID id)
{
    char bytes[ID_BYTES];
    put_id(bytes, id);
    return PyBytes_FromStringAndSize(bytes, sizeof(bytes));
}

/* The row of an entry: its ID, the head of its fields, these as they were sent, and the seal. */
static char *
put_row(char *to, const char *prefix, const char *id, Py_ssize_t id_size, const char *head, Py_ssize_t head_size,
        const char *data, const Entry *entry)
{
    char *begin = to;
    to = put_bytes(to, id, id_size);
    to = put_bytes(to, head, head_size);
    to = put_bytes(to, data + entry->fields, entry->end - entry->fields);
    return put_seal(to, add_crc(add_crc(CRC_BEGIN, prefix, PREFIX_BYTES), begin, to - begin));
}

static PyObject *
make_row(const char *prefix, const char *id, Py_ssize_t id_size, const char *data, const Entry *entry)
{
    char head[HEAD_BYTES];
    Py_ssize_t head_size = format_head(head, entry->word_count);
    Py_ssize_t size = entry->end - entry->fields;
    PyObject *row = PyBytes_FromStringAndSize(NULL, id_size + head_size + size + SEAL_BYTES);
    if (row != NULL)
        put_row(PyBytes_AsString(row), prefix, id, id_size, head, head_size, data, entry);
    return row;
}

/* Append an object, which may be NULL with an exception set, and forget it.  -> 0, or -1. */
static int
append_new(PyObject *list, PyObject *item)
{
    int failed = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

/* (key, row); takes both, which may be NULL.  -> NULL with an exception set. */
static PyObject *
make_pair(PyObject *key, PyObject *row)
{
    PyObject *pair = key == NULL || row == NULL ? NULL : PyTuple_Pack(2, key, row);
    Py_XDECREF(key);
    Py_XDECREF(row);
    return pair;
}

/* How many entries of `run` from `at` on, `most` of them, have less than `room` bytes of fields together. */
static Py_ssize_t
count_fitting(const Run *run, Py_ssize_t at, Py_ssize_t most, Py_ssize_t room, Py_ssize_t *size)
{
    Py_ssize_t left = run->ob_base.ob_size - at, made = 0;
    if (most > left)
        most = left;
    *size = 0;
    for (; made < most; made++) {
        Py_ssize_t body = run->entries[at + made].end - run->entries[at + made].fields;
        if (body >= room - *size)
            break;
        *size += body;
    }
    return made;
}
