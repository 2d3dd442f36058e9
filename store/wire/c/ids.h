/* IDs as text and as bytes. */

PyDoc_STRVAR(packed_id_doc, "packed_id(text) -> the 16 bytes of a canonical `ms-seq`; None for anything else");

static PyObject *
packed_id(PyObject *Py_UNUSED(module), PyObject *text)
{
    const char *data = bytes_argument(text, -1);
    if (data == NULL)
        return NULL;
    ID id;
    return parse_id(data, 0, PyBytes_Size(text), 0, &id) ? Py_NewRef(Py_None) : id_bytes(id);
}

/* Where an ID begins among ascending ones of `size` bytes, -1 if it does not. */
static Py_ssize_t
place_of(const char *ids, Py_ssize_t size, const char *wanted)
{
    Py_ssize_t low = 0, high = size / ID_BYTES;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        int order = memcmp(ids + middle * ID_BYTES, wanted, ID_BYTES);
        if (order == 0)
            return middle * ID_BYTES;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

PyDoc_STRVAR(find_id_doc, "find_id(packed_ids, packed_id) -> where an ID begins among ascending ones, -1 if it does not");

static PyObject *
find_id(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("find_id", count, 2))
        return NULL;
    const char *ids = bytes_argument(args[0], -1);
    const char *wanted = ids == NULL ? NULL : bytes_argument(args[1], ID_BYTES);
    if (wanted == NULL)
        return NULL;
    return PyLong_FromSsize_t(place_of(ids, PyBytes_Size(args[0]), wanted));
}
