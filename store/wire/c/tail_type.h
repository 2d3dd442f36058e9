/* The types of tails, and of the rows that leave them. */

static PyObject *
rows_next(PyObject *self)
{
    Rows *rows = (Rows *)self;
    RowHead row;
    char key[KEY_BYTES];
    while (rows->stream < rows->ob_base.ob_size && rows->at == rows->streams[rows->stream].rows.size) {
        rows->stream++;
        rows->at = 0;
    }
    if (rows->stream == rows->ob_base.ob_size)
        return NULL;
    const StreamRows *stream = &rows->streams[rows->stream];
    const char *from = stream->rows.data + rows->at;
    memcpy(&row, from, sizeof(row));
    memcpy(key, stream->prefix, PREFIX_BYTES);
    put_id(key + PREFIX_BYTES, row.id);
    rows->at += sizeof(row) + (size_t)row.size;
    return make_pair(PyBytes_FromStringAndSize(key, KEY_BYTES),
                     PyBytes_FromStringAndSize(from + sizeof(row), row.size));
}

static void
rows_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Rows *rows = (Rows *)self;
    for (Py_ssize_t i = 0; i < rows->ob_base.ob_size; i++)
        PyMem_Free(rows->streams[i].rows.data);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "Rows of the table of entries, which were taken from a tail."},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, rows_next},
    {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "riverbed.store.wire.native.Rows",
    .basicsize = offsetof(Rows, streams),
    .itemsize = sizeof(StreamRows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rows_slots,
};

/* Give the rows that wait in `tail` away. */
static void
move_rows(Tail *tail, StreamRows *to)
{
    memcpy(to->prefix, tail->prefix, PREFIX_BYTES);
    to->rows = tail->rows;
    tail->rows = (Buffer){NULL, 0, 0};
    tail->rows_size = tail->trimmed * TRIMMED_BYTES;
}

PyDoc_STRVAR(take_rows_doc, "take_rows() -> an iterator of the rows that were appended since the last call");

static PyObject *
tail_take_rows(PyObject *self, PyTypeObject *type, PyObject *const *Py_UNUSED(args), Py_ssize_t count,
               PyObject *Py_UNUSED(names))
{
    Tail *tail = (Tail *)self;
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !has_count("take_rows", count, 0))
        return NULL;
    Rows *rows = (Rows *)PyType_GenericAlloc(state->rows_type, 1);
    if (rows != NULL)
        move_rows(tail, rows->streams);
    return (PyObject *)rows;
}

PyDoc_STRVAR(nodes_doc, "nodes() -> [(count, size, first ID, last ID), ...], the node that was open at first in front");

static PyObject *
tail_nodes(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Tail *tail = (const Tail *)self;
    PyObject *nodes = tail->closed == NULL ? PyList_New(0) : PyList_GetSlice(tail->closed, 0, PY_SSIZE_T_MAX);
    PyObject *node = nodes == NULL ? NULL : show_node(tail);
    if (node == NULL || PyList_Append(nodes, node) < 0)
        Py_CLEAR(nodes);
    Py_XDECREF(node);
    return nodes;
}

PyDoc_STRVAR(stream_row_doc, "stream_row() -> the (key, row) of the stream with what was appended, or None");

static PyObject *
tail_stream_row(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Tail *tail = (const Tail *)self;
    StreamRow stream;
    if (tail->row == NULL || tail->closed != NULL || tail->trimmed > 0)
        return Py_NewRef(Py_None);
    const char *key = PyBytes_AsString(tail->key);
    if (take_stream(key, PyBytes_Size(tail->key), PyBytes_AsString(tail->row), PyBytes_Size(tail->row), &stream))
        return Py_NewRef(Py_None);
    if (tail->count > 0) {
        if (stream.numbers[LENGTH] == 0)
            stream.ids[FIRST_ID] = tail->first;
        stream.numbers[LENGTH] += (uint64_t)tail->count;
        stream.numbers[ADDED] += (uint64_t)tail->count;
        stream.numbers[TAIL_TOTAL] += (uint64_t)tail->count;
        stream.numbers[TAIL_SIZE] += (uint64_t)tail->size;
        stream.ids[LAST_ID] = stream.ids[LAST_LIVE_ID] = stream.ids[TAIL_LAST_ID] = tail->last;
    }
    return make_pair(Py_NewRef(tail->key), make_stream_row(key, PyBytes_Size(tail->key), &stream));
}

static int
order_by_stream(const void *one, const void *other)
{
    return memcmp(((const StreamRows *)one)->prefix, ((const StreamRows *)other)->prefix, PREFIX_BYTES);
}

static void
fetch(const void *data, size_t size)
{
    for (size_t at = 0; at < size; at += CACHE_LINE_BYTES)
        prefetch((const char *)data + at);
}

/* Have the processor fetch all that these tails consist of: of very many none is in its cache, and it would wait for one
   piece after the other. */
static void
fetch_tails(PyObject *tails)
{
    Py_ssize_t count = PyList_Size(tails);
    for (Py_ssize_t i = 0; i < count; i++)
        fetch(PyList_GetItem(tails, i), sizeof(Tail));
    for (Py_ssize_t i = 0; i < count; i++) {
        const Tail *tail = (const Tail *)PyList_GetItem(tails, i);
        fetch(tail->rows.data, tail->rows.size < MOST_FETCHED ? tail->rows.size : MOST_FETCHED);
        if (tail->row != NULL) {
            fetch(tail->row, STREAM_OBJECT_BYTES);
            fetch(tail->key, CACHE_LINE_BYTES);
        }
    }
}

PyDoc_STRVAR(take_tails_doc,
"take_tails(tails) -> (rows, stream_rows)\n\n"
"`take_rows` of all these tails, which are of different streams, in order, and `stream_row` of each.");

static PyObject *
take_tails(PyObject *module, PyObject *tails)
{
    State *state = PyModule_GetState(module);
    if (!list_argument(tails))
        return NULL;
    Py_ssize_t count = PyList_Size(tails);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!Py_IS_TYPE(PyList_GetItem(tails, i), state->tail_type)) {
            PyErr_SetString(PyExc_TypeError, "tails are needed");
            return NULL;
        }
    fetch_tails(tails);
    Rows *rows = (Rows *)PyType_GenericAlloc(state->rows_type, count);
    PyObject *changed = rows == NULL ? NULL : PyList_New(count);
    for (Py_ssize_t i = 0; changed != NULL && i < count; i++) {
        PyObject *row = tail_stream_row(PyList_GetItem(tails, i), NULL);
        if (row == NULL || PyList_SetItem(changed, i, row))
            Py_CLEAR(changed);
    }
    if (changed == NULL) {
        Py_XDECREF((PyObject *)rows);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        move_rows((Tail *)PyList_GetItem(tails, i), &rows->streams[i]);
    qsort(rows->streams, (size_t)count, sizeof(StreamRows), order_by_stream);
    return make_pair((PyObject *)rows, changed);
}

/* The key of a stream, and the number that its rows begin with. */
typedef struct {
    uint64_t number;
    PyObject *key, *tail;
} StreamKey;

static int
order_by_number(const void *one, const void *other)
{
    uint64_t number = ((const StreamKey *)one)->number, after = ((const StreamKey *)other)->number;
    return (number > after) - (number < after);
}

PyDoc_STRVAR(keys_in_order_doc,
"keys_in_order(tails) -> keys\n\n"
"The keys of a dict of tails, which are of different streams, in the order of the rows of these streams.");

static PyObject *
keys_in_order(PyObject *module, PyObject *tails)
{
    State *state = PyModule_GetState(module);
    if (!PyDict_Check(tails)) {
        PyErr_SetString(PyExc_TypeError, "a dict is needed");
        return NULL;
    }
    Py_ssize_t size = PyDict_Size(tails), at = 0, count = 0;
    PyObject *keys = PyList_New(size);  /* first: it may collect garbage, and that may change the dict */
    StreamKey *streams = PyMem_Malloc((size_t)size * sizeof(StreamKey) + 1);
    if (keys == NULL || streams == NULL) {
        Py_XDECREF(keys);
        PyMem_Free(streams);
        return PyErr_NoMemory();
    }
    size = PyList_Size(keys);
    while (count < size && PyDict_Next(tails, &at, &streams[count].key, &streams[count].tail))
        count++;
    int is_sound = count == size && PyDict_Size(tails) == size;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i + FETCHED_AHEAD < count)
            prefetch(&((const Tail *)streams[i + FETCHED_AHEAD].tail)->prefix);
        is_sound = is_sound && Py_IS_TYPE(streams[i].tail, state->tail_type);
        if (is_sound)
            streams[i].number = get_big_endian(((const Tail *)streams[i].tail)->prefix);
    }
    if (is_sound) {
        qsort(streams, (size_t)count, sizeof(StreamKey), order_by_number);
        for (Py_ssize_t i = 0; i < count; i++)
            PyList_SetItem(keys, i, Py_NewRef(streams[i].key));
    } else {
        PyErr_SetString(PyExc_TypeError, "tails are needed");
        Py_CLEAR(keys);
    }
    PyMem_Free(streams);
    return keys;
}

static PyObject *
tail_last(PyObject *self, void *Py_UNUSED(closure))
{
    return id_bytes(((const Tail *)self)->last);
}

static void
tail_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((Tail *)self)->rows.data);
    Py_XDECREF(((Tail *)self)->closed);
    Py_XDECREF(((Tail *)self)->key);
    Py_XDECREF(((Tail *)self)->row);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMemberDef tail_members[] = {
    {"size", T_PYSSIZET, offsetof(Tail, rows_size), READONLY, "bytes of the rows that were not taken, and for trims"},
    {"trimmed", T_PYSSIZET, offsetof(Tail, trimmed), READONLY, "entries to be removed from the front"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef tail_methods[] = {
    {"nodes", tail_nodes, METH_NOARGS, nodes_doc},
    {"stream_row", tail_stream_row, METH_NOARGS, stream_row_doc},
    {"take_rows", (PyCFunction)(void (*)(void))tail_take_rows, METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     take_rows_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tail_getters[] = {
    {"last_id", tail_last, NULL, "the packed last ID of the stream", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tail_slots[] = {
    {Py_tp_doc, "What may be appended to a stream, and what was."},
    {Py_tp_dealloc, tail_dealloc},
    {Py_tp_methods, tail_methods},
    {Py_tp_members, tail_members},
    {Py_tp_getset, tail_getters},
    {0, NULL},
};

static PyType_Spec tail_spec = {
    .name = "riverbed.store.wire.native.Tail",
    .basicsize = sizeof(Tail),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = tail_slots,
};
