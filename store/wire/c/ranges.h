/* The type of ranges. */

PyDoc_STRVAR(ranges_requests_doc, "requests() -> the requests one by one, as lists of words");

static PyObject *
ranges_requests(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Ranges *ranges = (const Ranges *)self;
    const char *data = PyBytes_AsString(ranges->chunk);
    PyObject *requests = PyList_New(ranges->ob_base.ob_size);
    for (Py_ssize_t i = 0; requests != NULL && i < ranges->ob_base.ob_size; i++) {
        PyObject *words = NULL;
        if (take_words(data, ranges->ranges[i].start, ranges->ranges[i].end, NO_RUNS, &words) < 0 ||
            PyList_SetItem(requests, i, words) < 0)
            Py_CLEAR(requests);
    }
    return requests;
}

PyDoc_STRVAR(ranges_request_doc, "request(at) -> request number `at`, which there is, as a list of words");

static PyObject *
ranges_request(PyObject *self, PyObject *argument)
{
    const Ranges *ranges = (const Ranges *)self;
    Py_ssize_t at = position_argument(argument, ranges->ob_base.ob_size - 1);
    PyObject *words = NULL;
    if (at < 0)
        return NULL;
    const Range *range = &ranges->ranges[at];
    return take_words(PyBytes_AsString(ranges->chunk), range->start, range->end, NO_RUNS, &words) < 0 ? NULL : words;
}

PyDoc_STRVAR(ranges_rest_doc, "rest(at) -> the ranges from number `at` on, which there is");

static PyObject *
ranges_rest(PyObject *self, PyObject *argument)
{
    const Ranges *ranges = (const Ranges *)self;
    Py_ssize_t at = position_argument(argument, ranges->ob_base.ob_size - 1);
    if (at < 0)
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    return make_ranges(state, ranges->chunk, ranges->ranges + at, ranges->ob_base.ob_size - at);
}

PyDoc_STRVAR(ranges_bounds_doc,
"bounds() -> [(key, first packed ID, last packed ID), ...]; equal neighbours share the key");

static PyObject *
ranges_bounds(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Ranges *ranges = (const Ranges *)self;
    const char *data = PyBytes_AsString(ranges->chunk);
    PyObject *bounds = PyList_New(ranges->ob_base.ob_size), *key = NULL;        /* the key before, borrowed */
    for (Py_ssize_t i = 0; bounds != NULL && i < ranges->ob_base.ob_size; i++) {
        const Range *range = &ranges->ranges[i];
        if (i > 0 && range->key_length == range[-1].key_length &&
            !memcmp(data + range->key, data + range[-1].key, (size_t)range->key_length))
            Py_INCREF(key);
        else
            key = PyBytes_FromStringAndSize(data + range->key, range->key_length);
        PyObject *low = id_bytes(range->low), *high = id_bytes(range->high), *bound = PyTuple_New(3);
        if (key == NULL || low == NULL || high == NULL || bound == NULL) {
            Py_XDECREF(key);
            Py_XDECREF(low);
            Py_XDECREF(high);
            Py_XDECREF(bound);
            Py_CLEAR(bounds);
        } else {
            PyTuple_SetItem(bound, 0, key);
            PyTuple_SetItem(bound, 1, low);
            PyTuple_SetItem(bound, 2, high);
            PyList_SetItem(bounds, i, bound);
        }
    }
    return bounds;
}

static Py_ssize_t
ranges_length(PyObject *self)
{
    return ((const Ranges *)self)->ob_base.ob_size;
}

static void
ranges_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Ranges *)self)->chunk);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef ranges_methods[] = {
    {"requests", ranges_requests, METH_NOARGS, ranges_requests_doc},
    {"request", ranges_request, METH_O, ranges_request_doc},
    {"rest", ranges_rest, METH_O, ranges_rest_doc},
    {"bounds", ranges_bounds, METH_NOARGS, ranges_bounds_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *
ranges_size(PyObject *self, void *Py_UNUSED(closure))
{
    const Ranges *ranges = (const Ranges *)self;
    return PyLong_FromSsize_t(ranges->ranges[ranges->ob_base.ob_size - 1].end - ranges->ranges[0].start);
}

static PyGetSetDef ranges_getters[] = {
    {"size", ranges_size, NULL, "bytes of the requests", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot ranges_slots[] = {
    {Py_tp_doc, "XRANGEs of one entry each, of any keys, that are neighbours in a chunk."},
    {Py_tp_dealloc, ranges_dealloc},
    {Py_tp_methods, ranges_methods},
    {Py_tp_getset, ranges_getters},
    {Py_sq_length, ranges_length},
    {Py_sq_item, run_item},
    {0, NULL},
};

static PyType_Spec ranges_spec = {
    .name = "riverbed.store.wire.native.Ranges",
    .basicsize = offsetof(Ranges, ranges),
    .itemsize = sizeof(Range),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ranges_slots,
};
