/* Requests, rows and lines of the log, cut out of the bytes that came.

   What each function does, byte for byte, is said by `reference/`; this is the same in C, in parts of the same names.  It
   takes lengths apart, copies and formats.  It knows no node rule, no limit of a client, no time and no file; of IDs it
   knows that they ascend, and of trims when they remove nothing.

   Why C, and not Cython: the functions hold a few objects each, so that Cython would save little counting of references,
   and its output is many times as long and needs Cython where it is built.  This needs a C compiler alone, and only what
   Python has promised to keep (the limited API of 3.11), so that one build serves every Python from 3.11 on.

   What is kept here throughout:
     - Bytes come from strangers.  A number that is found in them has at most nine digits, so that no sum of one of them
       and a position overflows, and it is compared with the bytes that are there before anything is made or read.
     - A request is looked at to its end before the first object is made of it: what is not whole costs no memory.
     - What is not understood is left where it is, for another reader to judge. */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#define INTERFACE 27            /* raise it, here and in `interface.py`, when a function takes or returns others */

/* The compiler is given all parts as one, so that it sees through every call.  Each part uses those above it. */
#include "c/layout.h"
#include "c/checksums.h"
#include "c/arguments.h"
#include "c/requests.h"
#include "c/formatting.h"
#include "c/streams.h"
#include "c/tails.h"
#include "c/ids.h"
#include "c/pending.h"
#include "c/rows.h"
#include "c/pages.h"
#include "c/values.h"
#include "c/runs.h"
#include "c/mixes.h"
#include "c/joins.h"
#include "c/claims.h"
#include "c/ranges.h"
#include "c/tail_type.h"

static int
fill_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->run_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &run_spec, NULL);
    if (state->run_type == NULL || PyModule_AddType(module, state->run_type) < 0)
        return -1;
    state->mix_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &mix_spec, NULL);
    if (state->mix_type == NULL || PyModule_AddType(module, state->mix_type) < 0)
        return -1;
    state->claims_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &claims_spec, NULL);
    if (state->claims_type == NULL || PyModule_AddType(module, state->claims_type) < 0)
        return -1;
    state->ranges_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ranges_spec, NULL);
    if (state->ranges_type == NULL || PyModule_AddType(module, state->ranges_type) < 0)
        return -1;
    state->tail_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tail_spec, NULL);
    if (state->tail_type == NULL || PyModule_AddType(module, state->tail_type) < 0)
        return -1;
    state->rows_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &rows_spec, NULL);
    if (state->rows_type == NULL)
        return -1;
    prepare_crc();
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static int
traverse_module(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->run_type);
    Py_VISIT(state->mix_type);
    Py_VISIT(state->claims_type);
    Py_VISIT(state->ranges_type);
    Py_VISIT(state->tail_type);
    Py_VISIT(state->rows_type);
    return 0;
}

static int
clear_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->run_type);
    Py_CLEAR(state->mix_type);
    Py_CLEAR(state->claims_type);
    Py_CLEAR(state->ranges_type);
    Py_CLEAR(state->tail_type);
    Py_CLEAR(state->rows_type);
    return 0;
}

static PyMethodDef functions[] = {
    {"parse", (PyCFunction)(void (*)(void))parse, METH_FASTCALL, parse_doc},
    {"parse_front", (PyCFunction)(void (*)(void))parse_front, METH_FASTCALL, parse_front_doc},
    {"join", join, METH_O, join_doc},
    {"split_bulks", split_bulks, METH_O, split_bulks_doc},
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, append_doc},
    {"load", (PyCFunction)(void (*)(void))load, METH_FASTCALL, load_doc},
    {"open_tail", (PyCFunction)(void (*)(void))open_tail, METH_FASTCALL, open_tail_doc},
    {"open_tail_by_row", (PyCFunction)(void (*)(void))open_tail_by_row, METH_FASTCALL, open_tail_by_row_doc},
    {"unknown_keys", (PyCFunction)(void (*)(void))unknown_keys, METH_FASTCALL, unknown_keys_doc},
    {"take_tails", take_tails, METH_O, take_tails_doc},
    {"keys_in_order", keys_in_order, METH_O, keys_in_order_doc},
    {"open_stream", (PyCFunction)(void (*)(void))open_stream, METH_FASTCALL, open_stream_doc},
    {"pack_stream", (PyCFunction)(void (*)(void))pack_stream, METH_FASTCALL, pack_stream_doc},
    {"expand_one", (PyCFunction)(void (*)(void))expand_one, METH_FASTCALL, expand_one_doc},
    {"load_xadds", (PyCFunction)(void (*)(void))load_xadds, METH_FASTCALL, load_xadds_doc},
    {"measure_entries", (PyCFunction)(void (*)(void))measure_entries, METH_FASTCALL, measure_entries_doc},
    {"measure_leaf", (PyCFunction)(void (*)(void))measure_leaf, METH_FASTCALL, measure_leaf_doc},
    {"find_deliveries", (PyCFunction)(void (*)(void))find_deliveries, METH_FASTCALL, find_deliveries_doc},
    {"find_keys", (PyCFunction)(void (*)(void))find_keys, METH_FASTCALL, find_keys_doc},
    {"log_entries", (PyCFunction)(void (*)(void))log_entries, METH_FASTCALL, log_entries_doc},
    {"seal", (PyCFunction)(void (*)(void))seal, METH_FASTCALL, seal_doc},
    {"unseal", (PyCFunction)(void (*)(void))unseal, METH_FASTCALL, unseal_doc},
    {"unseal_one", (PyCFunction)(void (*)(void))unseal_one, METH_FASTCALL, unseal_one_doc},
    {"unseal_in", (PyCFunction)(void (*)(void))unseal_in, METH_FASTCALL, unseal_in_doc},
    {"unseal_pairs", unseal_pairs, METH_O, unseal_pairs_doc},
    {"find_values", (PyCFunction)(void (*)(void))find_values, METH_FASTCALL, find_values_doc},
    {"gather", (PyCFunction)(void (*)(void))gather, METH_FASTCALL, gather_doc},
    {"packed_id", packed_id, METH_O, packed_id_doc},
    {"find_id", (PyCFunction)(void (*)(void))find_id, METH_FASTCALL, find_id_doc},
    {"show_pending", (PyCFunction)(void (*)(void))show_pending, METH_FASTCALL, show_pending_doc},
    {"open_run", (PyCFunction)(void (*)(void))open_run, METH_FASTCALL, open_run_doc},
    {"find_delivery", (PyCFunction)(void (*)(void))find_delivery, METH_FASTCALL, find_delivery_doc},
    {"change_runs", (PyCFunction)(void (*)(void))change_runs, METH_FASTCALL, change_runs_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "riverbed.store.wire.native",
    .m_doc = "Requests and runs of XADD cut out of their own bytes; `reference/` says what each function does.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = module_slots,
    .m_traverse = traverse_module,
    .m_clear = clear_module,
};

PyMODINIT_FUNC
PyInit_native(void)
{
    return PyModuleDef_Init(&module_definition);
}
