/* Values of fields in rows, for columns. */

/* The number that is written from `at` on, with CR LF behind it, in front of `end`; `at` is behind that then.  -> -1 for none. */
static int64_t
announced_length(const char *data, int64_t *at, int64_t end)
{
    int64_t length = 0, here = *at;
    for (; here < end && here - *at < MAX_DIGITS && data[here] >= '0' && data[here] <= '9'; here++)
        length = 10 * length + (data[here] - '0');
    if (here == *at || end - here < 2 || data[here] != '\r' || data[here + 1] != '\n')
        return -1;
    *at = here + 2;
    return length;
}

/* Where the values of one row are, for each head: begin and end, `stride` numbers apart.  -> whether it has these heads. */
static int
find_in_row(const char *data, int64_t at, int64_t end, const Py_buffer *heads, Py_ssize_t count, int64_t *places,
            Py_ssize_t stride)
{
    for (Py_ssize_t k = 0; k < count; k++, places += 2 * stride) {
        if (heads[k].len > end - at || memcmp(data + at, heads[k].buf, (size_t)heads[k].len))
            return 0;
        at += heads[k].len;
        int64_t length = announced_length(data, &at, end);
        if (length < 0 || length > end - at)
            return 0;
        places[0] = at;
        places[stride] = at += length;
    }
    return 1;
}

PyDoc_STRVAR(find_values_doc,
"find_values(buffer, starts, ends, heads, tail, places, found) -> how many rows have the heads, and end with the tail");

static PyObject *
find_values(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer all[6] = {{0}}, *heads = NULL;        /* buffer, starts, ends, tail, places, found */
    static const int is_numbers[] = {0, 1, 1, 0, 1, 0}, from[] = {0, 1, 2, 4, 5, 6};
    Py_ssize_t held = 0, head_count = 0, taken = 0, matching = 0;
    PyObject *result = NULL;
    if (!has_count("find_values", count, 7) || !list_argument(args[3]))
        return NULL;
    head_count = PyList_Size(args[3]);
    heads = PyMem_Calloc((size_t)head_count + 1, sizeof(Py_buffer));
    if (heads == NULL)
        return PyErr_NoMemory();
    for (; held < 6; held++) {
        Py_ssize_t many = held == 2 ? all[1].len / 8 : held == 4 ? 2 * head_count * (all[1].len / 8) : -1;
        int flags = held < 4 ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (is_numbers[held] ? numbers_argument(args[from[held]], flags, many, &all[held])
                             : PyObject_GetBuffer(args[from[held]], &all[held], flags))
            goto done;
    }
    for (; taken < head_count; taken++) {
        PyObject *head = PyList_GetItem(args[3], taken);
        if (head == NULL || PyObject_GetBuffer(head, &heads[taken], PyBUF_SIMPLE))
            goto done;
    }
    Py_ssize_t rows = all[1].len / 8;
    if (all[5].len != rows) {
        PyErr_SetString(PyExc_ValueError, "not as many flags as rows");
        goto done;
    }
    const char *data = all[0].buf;
    const int64_t *starts = all[1].buf, *ends = all[2].buf;
    char *found = all[5].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t at = starts[row], end = ends[row], *places = (int64_t *)all[4].buf + row;
        int is_there = at >= 0 && at <= end && end <= all[0].len &&
                       find_in_row(data, at, end, heads, head_count, places, rows);
        if (is_there && head_count)
            at = places[(2 * head_count - 1) * rows];
        is_there = is_there && end - at == all[3].len && !memcmp(data + at, all[3].buf, (size_t)all[3].len);
        found[row] = (char)is_there;
        matching += is_there;
    }
    Py_END_ALLOW_THREADS
    result = PyLong_FromSsize_t(matching);
done:
    while (taken > 0)
        PyBuffer_Release(&heads[--taken]);
    while (held > 0)
        PyBuffer_Release(&all[--held]);
    PyMem_Free(heads);
    return result;
}

/* Put pieces of a buffer one behind the other.  -> whether all of them are ASCII, or -1 for places that are none. */
static int
gather_pieces(const Py_buffer *buffer, const int64_t *starts, const int64_t *ends, Py_ssize_t count, int32_t *offsets,
              const Py_buffer *pieces)
{
    uint64_t seen = 0;
    Py_ssize_t size = 0;
    offsets[0] = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (starts[at] < 0 || ends[at] < starts[at] || ends[at] > buffer->len || ends[at] - starts[at] > pieces->len - size)
            return -1;
        const char *from = (const char *)buffer->buf + starts[at];
        Py_ssize_t left = (Py_ssize_t)(ends[at] - starts[at]);
        memcpy((char *)pieces->buf + size, from, (size_t)left);
        size += left;
        for (; left > 0; from += 8, left -= 8) {
            uint64_t word = 0;
            memcpy(&word, from, left < 8 ? (size_t)left : 8);
            seen |= word;
        }
        offsets[at + 1] = (int32_t)size;
    }
    return size == pieces->len ? !(seen & UINT64_C(0x8080808080808080)) : -1;
}

PyDoc_STRVAR(gather_doc,
"gather(buffer, starts, ends, offsets, pieces) -> whether all pieces are ASCII; fills `offsets` and `pieces`");

static PyObject *
gather(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer all[5];
    Py_ssize_t held = 0;
    int is_ascii = -1;
    if (!has_count("gather", count, 5))
        return NULL;
    for (; held < 5; held++) {
        int flags = held < 3 ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (held == 1 || held == 2 ? numbers_argument(args[held], flags, held == 2 ? all[1].len / 8 : -1, &all[held])
                                   : PyObject_GetBuffer(args[held], &all[held], flags))
            goto done;
    }
    Py_ssize_t rows = all[1].len / 8;
    if (all[3].len != 4 * (rows + 1) || all[4].len > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "not as many offsets as pieces, or too many bytes for them");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    is_ascii = gather_pieces(&all[0], all[1].buf, all[2].buf, rows, all[3].buf, &all[4]);
    Py_END_ALLOW_THREADS
    if (is_ascii < 0)
        PyErr_SetString(PyExc_ValueError, "the pieces are not in the buffer, or not as long as the room for them");
done:
    while (held > 0)
        PyBuffer_Release(&all[--held]);
    return is_ascii < 0 ? NULL : PyBool_FromLong(is_ascii);
}
