/* The type of mixes. */

static Py_ssize_t
add_count(const Mix *mix)
{
    return mix->adds == NULL ? 0 : mix->adds->ob_base.ob_size;
}

/* Append the requests of a mix from number `first` to `last` to `requests`, if that is not NULL.  -> the last of them;
   NULL with an exception set. */
static PyObject *
mix_words(const Mix *mix, Py_ssize_t first, Py_ssize_t last, PyObject *requests)
{
    Py_ssize_t added = 0, acked = 0;
    PyObject *words = NULL;
    for (Py_ssize_t at = 0; at <= last; at++) {
        Py_ssize_t start, end;
        if (acked < mix->ob_base.ob_size && mix->acks[acked].before <= added) {
            start = mix->acks[acked].start;
            end = mix->acks[acked++].end;
        } else {
            start = mix->adds->entries[added].start;
            end = mix->adds->entries[added++].end;
        }
        if (at < first)
            continue;
        Py_CLEAR(words);
        if (take_words(PyBytes_AsString(mix->chunk), start, end, NO_RUNS, &words) < 0 ||
            (requests != NULL && PyList_Append(requests, words))) {
            Py_XDECREF(words);
            return NULL;
        }
    }
    return words;
}

PyDoc_STRVAR(mix_requests_doc, "requests(first=0) -> the requests from number `first` on, as lists of words, in order");

static PyObject *
mix_requests(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Mix *mix = (const Mix *)self;
    Py_ssize_t last = add_count(mix) + mix->ob_base.ob_size - 1, first = 0;
    if (count > 0) {
        if (!has_count("requests", count, 1))
            return NULL;
        first = position_argument(args[0], last);
        if (first < 0)
            return NULL;
    }
    PyObject *requests = PyList_New(0);
    if (requests == NULL)
        return NULL;
    PyObject *words = mix_words(mix, first, last, requests);
    if (words == NULL)
        Py_CLEAR(requests);
    Py_XDECREF(words);
    return requests;
}

PyDoc_STRVAR(mix_request_doc, "request(at) -> request number `at`, which there is, as a list of words");

static PyObject *
mix_request(PyObject *self, PyObject *argument)
{
    const Mix *mix = (const Mix *)self;
    Py_ssize_t at = position_argument(argument, add_count(mix) + mix->ob_base.ob_size - 1);
    return at < 0 ? NULL : mix_words(mix, at, at, NULL);
}

PyDoc_STRVAR(mix_acks_before_doc, "acks_before(added) -> how many XACKs there are in front of XADD number `added`, or of the end");

static PyObject *
mix_acks_before(PyObject *self, PyObject *argument)
{
    const Mix *mix = (const Mix *)self;
    Py_ssize_t added = position_argument(argument, add_count(mix));
    if (added < 0)
        return NULL;
    Py_ssize_t acked = 0;
    while (acked < mix->ob_base.ob_size && mix->acks[acked].before <= added)
        acked++;
    return PyLong_FromSsize_t(acked);
}

PyDoc_STRVAR(mix_acks_doc, "acks(count) -> (packed IDs, the same as bulk strings) of the first XACKs");

static PyObject *
mix_acks(PyObject *self, PyObject *argument)
{
    const Mix *mix = (const Mix *)self;
    Py_ssize_t count = position_argument(argument, mix->ob_base.ob_size);
    if (count < 0)
        return NULL;
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        size += mix->acks[i].end - mix->acks[i].id_word;
    PyObject *packed = PyList_New(count);
    PyObject *bulks = PyBytes_FromStringAndSize(NULL, size);
    if (packed == NULL || bulks == NULL)
        goto failed;
    char *to = PyBytes_AsString(bulks);
    for (Py_ssize_t i = 0; i < count; i++) {
        const Ack *ack = &mix->acks[i];
        PyObject *id = id_bytes(ack->id);
        if (id == NULL || PyList_SetItem(packed, i, id))
            goto failed;
        to = put_bytes(to, PyBytes_AsString(mix->chunk) + ack->id_word, ack->end - ack->id_word);
    }
    return Py_BuildValue("NN", packed, bulks);
failed:
    Py_XDECREF(packed);
    Py_XDECREF(bulks);
    return NULL;
}

PyDoc_STRVAR(mix_replies_doc,
"replies(ids, acked) -> the replies in the order of the requests\n\n"
"`ids` are the bulk strings that answer the first XADDs, `acked` has a byte for each of the first XACKs.");

static PyObject *
mix_replies(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    const Mix *mix = (const Mix *)self;
    if (!has_count("replies", count, 2))
        return NULL;
    const char *ids = bytes_argument(args[0], -1), *acked = bytes_argument(args[1], -1);
    if (ids == NULL || acked == NULL)
        return NULL;
    Py_ssize_t size = PyBytes_Size(args[0]), acks = PyBytes_Size(args[1]);
    if (acks > mix->ob_base.ob_size) {
        PyErr_SetString(PyExc_ValueError, "more answers than XACKs");
        return NULL;
    }
    PyObject *replies = PyBytes_FromStringAndSize(NULL, size + acks * ACK_REPLY_BYTES);
    if (replies == NULL)
        return NULL;
    char *to = PyBytes_AsString(replies);
    Py_ssize_t at = 0, added = 0, word, length;
    for (Py_ssize_t i = 0; i <= acks; i++) {
        Py_ssize_t until = i < acks ? mix->acks[i].before : add_count(mix), from = at;
        for (; added < until && at < size; added++) {
            at = take_word(ids, at, size, &word, &length);
            if (at < 0) {
                Py_DECREF(replies);
                PyErr_SetString(PyExc_ValueError, "not the bulk strings of IDs");
                return NULL;
            }
        }
        to = put_bytes(to, ids + from, at - from);
        if (i < acks)
            to = put_bytes(to, acked[i] ? ":1\r\n" : ":0\r\n", ACK_REPLY_BYTES);
    }
    if (at < size) {
        Py_DECREF(replies);
        PyErr_SetString(PyExc_ValueError, "more answers than XADDs");
        return NULL;
    }
    return replies;
}

static Py_ssize_t
mix_length(PyObject *self)
{
    const Mix *mix = (const Mix *)self;
    return add_count(mix) + mix->ob_base.ob_size;
}

static void
mix_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Mix *)self)->chunk);
    Py_XDECREF((PyObject *)((Mix *)self)->adds);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef mix_methods[] = {
    {"requests", (PyCFunction)(void (*)(void))mix_requests, METH_FASTCALL, mix_requests_doc},
    {"request", mix_request, METH_O, mix_request_doc},
    {"acks_before", mix_acks_before, METH_O, mix_acks_before_doc},
    {"acks", mix_acks, METH_O, mix_acks_doc},
    {"replies", (PyCFunction)(void (*)(void))mix_replies, METH_FASTCALL, mix_replies_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *
mix_adds(PyObject *self, void *Py_UNUSED(closure))
{
    Run *adds = ((const Mix *)self)->adds;
    return Py_NewRef(adds == NULL ? Py_None : (PyObject *)adds);
}

static PyObject *
mix_key(PyObject *self, void *Py_UNUSED(closure))
{
    const Mix *mix = (const Mix *)self;
    return PyBytes_FromStringAndSize(PyBytes_AsString(mix->chunk) + mix->key, mix->key_length);
}

static PyObject *
mix_group(PyObject *self, void *Py_UNUSED(closure))
{
    const Mix *mix = (const Mix *)self;
    return PyBytes_FromStringAndSize(PyBytes_AsString(mix->chunk) + mix->group, mix->group_length);
}

static PyObject *
mix_chunk(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((const Mix *)self)->chunk);
}

static PyObject *
mix_size(PyObject *self, void *Py_UNUSED(closure))
{
    const Mix *mix = (const Mix *)self;
    const Ack *last = &mix->acks[mix->ob_base.ob_size - 1];
    Py_ssize_t start = mix->acks[0].start, end = last->end;
    if (mix->adds != NULL) {
        start = Py_MIN(start, mix->adds->entries[0].start);
        end = Py_MAX(end, mix->adds->entries[add_count(mix) - 1].end);
    }
    return PyLong_FromSsize_t(end - start);
}

static PyGetSetDef mix_getters[] = {
    {"adds", mix_adds, NULL, "the XADDs, None when there is none", NULL},
    {"key", mix_key, NULL, "of the XACKs", NULL},
    {"group", mix_group, NULL, "of the XACKs", NULL},
    {"size", mix_size, NULL, "bytes of the requests", NULL},
    {"chunk", mix_chunk, NULL, "the bytes that it is a part of, and keeps in memory", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot mix_slots[] = {
    {Py_tp_doc, "XADDs, and XACKs of one group, that are neighbours in a chunk."},
    {Py_tp_dealloc, mix_dealloc},
    {Py_tp_methods, mix_methods},
    {Py_tp_getset, mix_getters},
    {Py_sq_length, mix_length},
    {Py_sq_item, run_item},
    {0, NULL},
};

static PyType_Spec mix_spec = {
    .name = "riverbed.store.wire.native.Mix",
    .basicsize = offsetof(Mix, acks),
    .itemsize = sizeof(Ack),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = mix_slots,
};
