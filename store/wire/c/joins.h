/* XADDs of several clients as one run, and each client's reply. */

PyDoc_STRVAR(join_doc,
"join(chunks) -> run, or None\n\n"
"The XADDs that the chunks at the front are, one each; None when these are fewer than two.");

static PyObject *
join(PyObject *module, PyObject *argument)
{
    Entry entries[RUN_ENTRIES];
    const char *chunks[RUN_ENTRIES];
    Py_ssize_t count = 0, size = 0;
    if (!list_argument(argument))
        return NULL;
    for (Py_ssize_t most = PyList_Size(argument); count < most && count < RUN_ENTRIES; count++) {
        PyObject *chunk = PyList_GetItem(argument, count);
        chunks[count] = chunk == NULL ? NULL : bytes_argument(chunk, -1);
        if (chunks[count] == NULL)
            return NULL;
        Entry *entry = &entries[count];
        Py_ssize_t end = PyBytes_Size(chunk);
        if (take_xadd(chunks[count], 0, end, APPENDED, entry) != end)
            break;
        entry->start += size;
        entry->key += size;
        entry->id += size;
        entry->fields += size;
        entry->end += size;
        size += end;
    }
    if (count < 2)
        return Py_NewRef(Py_None);
    PyObject *joined = PyBytes_FromStringAndSize(NULL, size);
    if (joined == NULL)
        return NULL;
    char *data = PyBytes_AsString(joined);
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(data + entries[i].start, chunks[i], (size_t)(entries[i].end - entries[i].start));
    Run *run = make_run(PyModule_GetState(module), joined, entries, count);
    Py_DECREF(joined);
    return (PyObject *)run;
}

PyDoc_STRVAR(split_bulks_doc,
"split_bulks(bulks) -> each of them\n\n"
"Bulk strings, one behind the other, one by one.  ValueError when they are anything else.");

static PyObject *
split_bulks(PyObject *Py_UNUSED(module), PyObject *argument)
{
    const char *data = bytes_argument(argument, -1);
    if (data == NULL)
        return NULL;
    Py_ssize_t end = PyBytes_Size(argument), word, length;
    PyObject *bulks = PyList_New(0);
    for (Py_ssize_t at = 0, next; bulks != NULL && at < end; at = next) {
        PyObject *bulk = NULL;
        next = take_closed_word(data, at, end, &word, &length);
        if (next < 0)
            PyErr_SetString(PyExc_ValueError, "these are no bulk strings");
        else
            bulk = PyBytes_FromStringAndSize(data + at, next - at);
        if (bulk == NULL || PyList_Append(bulks, bulk) < 0)
            Py_CLEAR(bulks);
        Py_XDECREF(bulk);
    }
    return bulks;
}
