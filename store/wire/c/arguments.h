/* Arguments of functions, which may be anything; bytes that are appended to. */

/* Room for `more` bytes.  -> where they begin; NULL with an exception set. */
static char *
make_room(Buffer *buffer, size_t more)
{
    if (more > buffer->room - buffer->size) {
        size_t room = 2 * buffer->room + more + MIN_ROOM;
        char *data = PyMem_Realloc(buffer->data, room);
        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        buffer->data = data;
        buffer->room = room;
    }
    return buffer->data + buffer->size;
}

static int
has_count(const char *name, Py_ssize_t count, Py_ssize_t wanted)
{
    if (count == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, count);
    return 0;
}

static const Run *
run_argument(PyObject *module, PyObject *argument)
{
    State *state = PyModule_GetState(module);
    if (Py_IS_TYPE(argument, state->run_type))
        return (const Run *)argument;
    PyErr_SetString(PyExc_TypeError, "a run is needed");
    return NULL;
}

/* The bytes of an argument that must have `size` of them, any number when that is -1. */
static const char *
bytes_argument(PyObject *argument, Py_ssize_t size)
{
    if (!PyBytes_Check(argument)) {
        PyErr_SetString(PyExc_TypeError, "bytes are needed");
        return NULL;
    }
    if (size >= 0 && PyBytes_Size(argument) != size) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are needed", size);
        return NULL;
    }
    return PyBytes_AsString(argument);
}

static int
list_argument(PyObject *argument)
{
    if (PyList_Check(argument))
        return 1;
    PyErr_SetString(PyExc_TypeError, "a list is needed");
    return 0;
}

/* A position from 0 to `most`.  -> -1 with an exception set. */
static Py_ssize_t
position_argument(PyObject *argument, Py_ssize_t most)
{
    Py_ssize_t position = PyLong_AsSsize_t(argument);
    if (position == -1 && PyErr_Occurred())
        return -1;
    if (position < 0 || position > most) {
        PyErr_Format(PyExc_ValueError, "%zd is not from 0 to %zd", position, most);
        return -1;
    }
    return position;
}

static int
runs_argument(PyObject *argument, int *runs)
{
    *runs = (int)position_argument(argument, LOGGED);
    return *runs >= 0;
}
