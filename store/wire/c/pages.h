/* Pages of LMDB's tables, measured before rows are put there. */

static uint16_t
get_u16(const char *from)
{
    uint16_t number;            /* as LMDB writes it: in the order of the machine */
    memcpy(&number, from, sizeof(number));
    return number;
}

/* One row of a leaf at `at`, which is not before `least`.  -> where its key begins; -1 when it is not all there, or
   no plain row. */
static Py_ssize_t
take_leaf_row(const char *page, Py_ssize_t size, Py_ssize_t at, Py_ssize_t least, Py_ssize_t *key_size)
{
    if (at < least || size - at < NODE_HEAD_BYTES || get_u16(page + at + 4) != 0)
        return -1;
    *key_size = get_u16(page + at + 6);
    Py_ssize_t value_size = (Py_ssize_t)get_u16(page + at) | (Py_ssize_t)get_u16(page + at + 2) << 16;
    at += NODE_HEAD_BYTES;
    return *key_size <= size - at && value_size <= size - at - *key_size ? at : -1;
}

PyDoc_STRVAR(measure_leaf_doc,
"measure_leaf(page, last_key) -> (count, last_key); None when it is not a sound page of plain rows\n\n"
"The rows of a leaf of LMDB 0.9, whose keys ascend from above `last_key` on, which is None before the first leaf.");

static PyObject *
measure_leaf(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("measure_leaf", count, 2))
        return NULL;
    const char *page = bytes_argument(args[0], -1);
    if (page == NULL || (args[1] != Py_None && bytes_argument(args[1], -1) == NULL))
        return NULL;
    const char *last = args[1] == Py_None ? NULL : PyBytes_AsString(args[1]);
    Py_ssize_t size = PyBytes_Size(args[0]), last_size = last == NULL ? 0 : PyBytes_Size(args[1]);
    if (size < PAGE_HEAD_BYTES)
        return Py_NewRef(Py_None);
    Py_ssize_t lower = get_u16(page + PAGE_HEAD_BYTES - 4), upper = get_u16(page + PAGE_HEAD_BYTES - 2);
    if (lower < PAGE_HEAD_BYTES || lower > upper || upper > size)
        return Py_NewRef(Py_None);
    Py_ssize_t rows = (lower - PAGE_HEAD_BYTES) / 2;
    for (Py_ssize_t i = 0; i < rows; i++) {
        Py_ssize_t key_size, key = take_leaf_row(page, size, get_u16(page + PAGE_HEAD_BYTES + 2 * i), upper, &key_size);
        if (key < 0)
            return Py_NewRef(Py_None);
        int order = last == NULL ? 1 : memcmp(page + key, last, (size_t)(key_size < last_size ? key_size : last_size));
        if (order < 0 || (order == 0 && key_size <= last_size))
            return Py_NewRef(Py_None);
        last = page + key;
        last_size = key_size;
    }
    if (rows == 0)
        return Py_BuildValue("nO", rows, args[1]);
    return Py_BuildValue("ny#", rows, last, last_size);
}
