/* The type of runs. */

PyDoc_STRVAR(requests_doc, "requests() -> the requests one by one, as lists of words");

static PyObject *
run_requests(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Run *run = (const Run *)self;
    const char *data = PyBytes_AsString(run->chunk);
    PyObject *requests = PyList_New(run->ob_base.ob_size);
    for (Py_ssize_t i = 0; requests != NULL && i < run->ob_base.ob_size; i++) {
        PyObject *words = NULL;
        if (take_words(data, run->entries[i].start, run->entries[i].end, NO_RUNS, &words) < 0 ||
            PyList_SetItem(requests, i, words) < 0)
            Py_CLEAR(requests);
    }
    return requests;
}

PyDoc_STRVAR(request_doc, "request(at) -> the request of entry `at`, which there is, as a list of words");

static PyObject *
run_request(PyObject *self, PyObject *argument)
{
    const Run *run = (const Run *)self;
    Py_ssize_t at = position_argument(argument, run->ob_base.ob_size - 1);
    PyObject *words = NULL;
    if (at < 0)
        return NULL;
    const Entry *entry = &run->entries[at];
    at = take_words(PyBytes_AsString(run->chunk), entry->start, entry->end, NO_RUNS, &words);
    return at < 0 ? NULL : words;
}

PyDoc_STRVAR(entry_doc, "entry(at) -> (key, bytes of fields, whether it trims) of entry `at`, which there is");

static PyObject *
run_entry(PyObject *self, PyObject *argument)
{
    const Run *run = (const Run *)self;
    Py_ssize_t at = position_argument(argument, run->ob_base.ob_size - 1);
    if (at < 0)
        return NULL;
    const Entry *entry = &run->entries[at];
    return Py_BuildValue("y#nO", PyBytes_AsString(run->chunk) + entry->key, entry->key_length,
                         entry->end - entry->fields, entry->trim == NO_TRIM ? Py_False : Py_True);
}

PyDoc_STRVAR(rest_doc, "rest(at) -> the run from entry `at` on, which there is");

static PyObject *
run_rest(PyObject *self, PyObject *argument)
{
    const Run *run = (const Run *)self;
    Py_ssize_t at = position_argument(argument, run->ob_base.ob_size - 1);
    if (at < 0)
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    return (PyObject *)make_run(state, run->chunk, run->entries + at, run->ob_base.ob_size - at);
}

static Py_ssize_t
run_length(PyObject *self)
{
    return ((const Run *)self)->ob_base.ob_size;
}

static PyObject *
run_item(PyObject *self, Py_ssize_t index)
{
    if (index == 0)
        return Py_NewRef((PyObject *)Py_TYPE(self));
    PyErr_SetString(PyExc_IndexError, "a run has no words");
    return NULL;
}

static PyObject *
run_chunk(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((const Run *)self)->chunk);
}

static PyObject *
run_size(PyObject *self, void *Py_UNUSED(closure))
{
    const Run *run = (const Run *)self;
    return PyLong_FromSsize_t(run->entries[run->ob_base.ob_size - 1].end - run->entries[0].start);
}

static void
run_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Run *)self)->chunk);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef run_methods[] = {
    {"requests", run_requests, METH_NOARGS, requests_doc},
    {"request", run_request, METH_O, request_doc},
    {"entry", run_entry, METH_O, entry_doc},
    {"rest", run_rest, METH_O, rest_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *
run_key(PyObject *self, void *Py_UNUSED(closure))
{
    const Run *run = (const Run *)self;
    return PyBytes_FromStringAndSize(PyBytes_AsString(run->chunk) + run->entries[0].key, run->entries[0].key_length);
}

static PyObject *
run_word_count(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((const Run *)self)->entries[0].word_count);
}

static PyObject *
run_is_plain(PyObject *self, void *Py_UNUSED(closure))
{
    const Entry *entry = &((const Run *)self)->entries[0];
    return PyBool_FromLong(entry->is_auto && entry->trim == NO_TRIM);
}

static PyGetSetDef run_getters[] = {
    {"key", run_key, NULL, "of the first entry", NULL},
    {"word_count", run_word_count, NULL, "fields and values of the first entry", NULL},
    {"is_plain", run_is_plain, NULL, "whether the first entry has the ID `*` and no trim", NULL},
    {"size", run_size, NULL, "bytes of the requests", NULL},
    {"chunk", run_chunk, NULL, "the bytes that it is a part of, and keeps in memory", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot run_slots[] = {
    {Py_tp_doc, "XADDs that are neighbours in a chunk."},
    {Py_tp_dealloc, run_dealloc},
    {Py_tp_methods, run_methods},
    {Py_tp_getset, run_getters},
    {Py_sq_length, run_length},
    {Py_sq_item, run_item},
    {0, NULL},
};

static PyType_Spec run_spec = {
    .name = "riverbed.store.wire.native.Run",
    .basicsize = offsetof(Run, entries),
    .itemsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = run_slots,
};
