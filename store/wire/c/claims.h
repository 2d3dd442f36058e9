/* The type of claims. */

PyDoc_STRVAR(claims_requests_doc, "requests() -> the requests one by one, as lists of words");

static PyObject *
claims_requests(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Claims *claims = (const Claims *)self;
    const char *data = PyBytes_AsString(claims->chunk);
    PyObject *requests = PyList_New(claims->ob_base.ob_size);
    for (Py_ssize_t i = 0; requests != NULL && i < claims->ob_base.ob_size; i++) {
        PyObject *words = NULL;
        if (take_words(data, claims->claims[i].start, claims->claims[i].end, NO_RUNS, &words) < 0 ||
            PyList_SetItem(requests, i, words) < 0)
            Py_CLEAR(requests);
    }
    return requests;
}

PyDoc_STRVAR(claims_request_doc, "request(at) -> request number `at`, which there is, as a list of words");

static PyObject *
claims_request(PyObject *self, PyObject *argument)
{
    const Claims *claims = (const Claims *)self;
    Py_ssize_t at = position_argument(argument, claims->ob_base.ob_size - 1);
    PyObject *words = NULL;
    if (at < 0)
        return NULL;
    const Claim *claim = &claims->claims[at];
    return take_words(PyBytes_AsString(claims->chunk), claim->start, claim->end, NO_RUNS, &words) < 0 ? NULL : words;
}

PyDoc_STRVAR(claims_rest_doc, "rest(at) -> the claims from number `at` on, which there is");

static PyObject *
claims_rest(PyObject *self, PyObject *argument)
{
    const Claims *claims = (const Claims *)self;
    Py_ssize_t at = position_argument(argument, claims->ob_base.ob_size - 1);
    if (at < 0)
        return NULL;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    return make_claims(state, claims, claims->chunk, claims->claims + at, claims->ob_base.ob_size - at);
}

PyDoc_STRVAR(claims_ids_doc, "ids() -> (packed IDs, the same as bulk strings) of the claims, in order");

static PyObject *
claims_ids(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const Claims *claims = (const Claims *)self;
    const char *data = PyBytes_AsString(claims->chunk);
    Py_ssize_t count = claims->ob_base.ob_size;
    PyObject *packed = PyList_New(count), *bulks = PyList_New(count);
    for (Py_ssize_t i = 0; packed != NULL && bulks != NULL && i < count; i++) {
        const Claim *claim = &claims->claims[i];
        PyObject *id = id_bytes(claim->id);
        PyObject *bulk = PyBytes_FromStringAndSize(data + claim->id_word, claim->id_end - claim->id_word);
        if (id == NULL || bulk == NULL) {
            Py_XDECREF(id);
            Py_XDECREF(bulk);
            Py_CLEAR(packed);
        } else {
            PyList_SetItem(packed, i, id);
            PyList_SetItem(bulks, i, bulk);
        }
    }
    if (packed != NULL && bulks != NULL)
        return Py_BuildValue("NN", packed, bulks);
    Py_XDECREF(packed);
    Py_XDECREF(bulks);
    return NULL;
}

PyDoc_STRVAR(claims_replies_doc,
"replies(claimed) -> the replies to the first claims, for each of which `claimed` has a byte");

static PyObject *
claims_replies(PyObject *self, PyObject *argument)
{
    const Claims *claims = (const Claims *)self;
    const char *claimed = bytes_argument(argument, -1);
    if (claimed == NULL)
        return NULL;
    Py_ssize_t count = PyBytes_Size(argument), size = CLAIMED_HEAD_BYTES * count;
    if (count > claims->ob_base.ob_size) {
        PyErr_SetString(PyExc_ValueError, "more answers than claims");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (claimed[i])
            size += claims->claims[i].id_end - claims->claims[i].id_word;
    PyObject *replies = PyBytes_FromStringAndSize(NULL, size);
    if (replies == NULL)
        return NULL;
    char *to = PyBytes_AsString(replies);
    const char *data = PyBytes_AsString(claims->chunk);
    for (Py_ssize_t i = 0; i < count; i++) {
        const Claim *claim = &claims->claims[i];
        to = put_bytes(to, claimed[i] ? "*1\r\n" : "*0\r\n", CLAIMED_HEAD_BYTES);
        if (claimed[i])
            to = put_bytes(to, data + claim->id_word, claim->id_end - claim->id_word);
    }
    return replies;
}

static Py_ssize_t
claims_length(PyObject *self)
{
    return ((const Claims *)self)->ob_base.ob_size;
}

static void
claims_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Claims *)self)->chunk);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef claims_methods[] = {
    {"requests", claims_requests, METH_NOARGS, claims_requests_doc},
    {"request", claims_request, METH_O, claims_request_doc},
    {"rest", claims_rest, METH_O, claims_rest_doc},
    {"ids", claims_ids, METH_NOARGS, claims_ids_doc},
    {"replies", claims_replies, METH_O, claims_replies_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *
claims_names(PyObject *self, void *Py_UNUSED(closure))
{
    const Claims *claims = (const Claims *)self;
    const char *data = PyBytes_AsString(claims->chunk);
    return Py_BuildValue("y#y#y#y#", data + claims->names[0], claims->lengths[0], data + claims->names[1],
                         claims->lengths[1], data + claims->names[2], claims->lengths[2], data + claims->names[3],
                         claims->lengths[3]);
}

static PyObject *
claims_size(PyObject *self, void *Py_UNUSED(closure))
{
    const Claims *claims = (const Claims *)self;
    return PyLong_FromSsize_t(claims->claims[claims->ob_base.ob_size - 1].end - claims->claims[0].start);
}

static PyGetSetDef claims_getters[] = {
    {"names", claims_names, NULL, "the words that all have: key, group, consumer, min-idle-time", NULL},
    {"size", claims_size, NULL, "bytes of the requests", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot claims_slots[] = {
    {Py_tp_doc, "XCLAIMs with JUSTID of one entry each that differ in their IDs alone, and are neighbours in a chunk."},
    {Py_tp_dealloc, claims_dealloc},
    {Py_tp_methods, claims_methods},
    {Py_tp_getset, claims_getters},
    {Py_sq_length, claims_length},
    {Py_sq_item, run_item},
    {0, NULL},
};

static PyType_Spec claims_spec = {
    .name = "riverbed.store.wire.native.Claims",
    .basicsize = offsetof(Claims, claims),
    .itemsize = sizeof(Claim),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = claims_slots,
};
