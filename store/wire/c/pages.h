/* Pages of LMDB's tables: measured, and searched without LMDB. */

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

/* The file of LMDB 0.9, and one of its tables as a commit has left it. */
typedef struct {
    const char *data;
    size_t size, page_size;
    uint64_t root;
    int levels;
} Tree;

/* Where a search has come: a page, and which of its rows are left to be looked at.  No page: it is given up, or ended. */
typedef struct {
    const char *page;
    uint64_t number;
    size_t low, high;
} Search;

static uint64_t
get_u64(const char *from)
{
    uint64_t number;            /* as LMDB writes it: in the order of the machine */
    memcpy(&number, from, sizeof(number));
    return number;
}

/* Lead the search to the page with this number, whose head the processor fetches meanwhile. */
static void
lead(Search *search, const Tree *tree, uint64_t number)
{
    search->number = number;
    search->page = number < tree->size / tree->page_size ? tree->data + number * tree->page_size : NULL;
    if (search->page != NULL) {
        prefetch_to_read(search->page);
        prefetch_to_read(search->page + LINE_BYTES);
    }
}

/* Have the search look at all rows of its page, if it is of this kind. */
static void
enter(Search *search, const Tree *tree, int kind)
{
    const char *page = search->page;
    if (page == NULL)
        return;
    size_t lower = get_u16(page + PAGE_HEAD_BYTES - 4);
    if (get_u64(page) != search->number || get_u16(page + 10) != kind || lower < PAGE_HEAD_BYTES ||
        lower > tree->page_size) {
        search->page = NULL;
        return;
    }
    search->low = 0;
    search->high = (lower - PAGE_HEAD_BYTES) / 2;
}

/* Where row number `row` of the page begins.  -> NULL when its key is not all there. */
static const char *
find_row(const Search *search, const Tree *tree, size_t row)
{
    size_t at = get_u16(search->page + PAGE_HEAD_BYTES + 2 * row);
    if (at > tree->page_size - NODE_HEAD_BYTES ||
        get_u16(search->page + at + 6) > tree->page_size - NODE_HEAD_BYTES - at)
        return NULL;
    return search->page + at;
}

static int
compare_row_key(const char *row, const char *key, size_t size)
{
    size_t own = get_u16(row + 6);
    int order = memcmp(row + NODE_HEAD_BYTES, key, own < size ? own : size);
    return order ? order : (own > size) - (own < size);
}

/* Have the processor fetch the row that the search looks at next. */
static void
prefetch_row(const Search *search, const Tree *tree)
{
    size_t at = get_u16(search->page + PAGE_HEAD_BYTES + 2 * ((search->low + search->high) / 2));
    if (at < tree->page_size)
        prefetch_to_read(search->page + at);
}

/* Lead the search from a branch, all of whose rows are to be looked at, to the page below that the key belongs to. */
static void
descend(Search *search, const Tree *tree, const char *key, size_t size)
{
    if (search->page == NULL)
        return;
    const char *row;
    size_t low = search->high ? 1 : 0, high = search->high;     /* the first row has no key: it is below all others */
    while (low < high) {
        size_t middle = (low + high) / 2;
        row = find_row(search, tree, middle);
        if (row == NULL) {
            search->page = NULL;
            return;
        }
        if (compare_row_key(row, key, size) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    row = low ? find_row(search, tree, low - 1) : NULL;
    if (row == NULL) {
        search->page = NULL;
        return;
    }
    lead(search, tree, get_u16(row) | (uint64_t)get_u16(row + 2) << 16 | (uint64_t)get_u16(row + 4) << 32);
}

/* Look at the middle one of the rows of a leaf.  -> whether it has the key. */
static int
step(Search *search, const Tree *tree, const char *key, size_t size)
{
    size_t middle = (search->low + search->high) / 2;
    const char *row = find_row(search, tree, middle);
    int order = row == NULL ? 0 : compare_row_key(row, key, size);
    if (order < 0)
        search->low = middle + 1;
    else
        search->high = middle;
    if (order == 0 || search->low == search->high)
        search->page = NULL;
    return row != NULL && order == 0;
}

/* Note for each of the keys whether the tree has it.  The keys are looked for in step: where each alone would wait for
   memory five times, they wait together. */
static void
search_tree(const Tree *tree, PyObject *keys, Py_ssize_t first, int count, char *found)
{
    Search searches[SEARCHES_AT_ONCE];
    const char *data[SEARCHES_AT_ONCE];
    size_t sizes[SEARCHES_AT_ONCE];
    for (int i = 0; i < count; i++) {
        PyObject *key = PyList_GetItem(keys, first + i);
        data[i] = PyBytes_AsString(key);
        sizes[i] = (size_t)PyBytes_Size(key);
        lead(&searches[i], tree, tree->root);
    }
    for (int level = 1; level < tree->levels; level++)
        for (int i = 0; i < count; i++) {
            enter(&searches[i], tree, BRANCH);
            descend(&searches[i], tree, data[i], sizes[i]);
        }
    int left = 0;
    for (int i = 0; i < count; i++) {
        enter(&searches[i], tree, LEAF);
        if (searches[i].page != NULL && searches[i].low < searches[i].high) {
            prefetch_row(&searches[i], tree);
            left++;
        } else
            searches[i].page = NULL;
    }
    while (left)
        for (int i = 0; i < count; i++)
            if (searches[i].page != NULL) {
                found[i] = (char)step(&searches[i], tree, data[i], sizes[i]);
                if (searches[i].page == NULL)
                    left--;
                else
                    prefetch_row(&searches[i], tree);
            }
}

/* -> the page of the meta data of this commit; NULL when it is not one of the last two, or of no file that we know. */
static const char *
find_meta(Tree *tree, uint64_t commit_no)
{
    if (tree->size < META_BYTES)
        return NULL;
    const char *meta = tree->data;
    uint32_t magic, version, page_size;
    memcpy(&page_size, meta + META_TABLES_AT, sizeof(page_size));
    if (page_size < MIN_PAGE_BYTES || page_size > MAX_PAGE_BYTES || page_size > tree->size / 2)
        return NULL;
    tree->page_size = page_size;
    for (int i = 0; i < 2; i++, meta += page_size) {
        memcpy(&magic, meta + META_AT, sizeof(magic));
        memcpy(&version, meta + META_AT + 4, sizeof(version));
        if (magic == META_MAGIC && version == META_VERSION && get_u64(meta + META_BYTES - 8) == commit_no)
            return meta;
    }
    return NULL;
}

static void
take_table(Tree *tree, const char *head)
{
    tree->levels = get_u16(head + 6);
    tree->root = get_u64(head + TABLE_BYTES - 8);
}

/* Find a table in the main one, which is a leaf.  -> whether it is there and has rows. */
static int
find_table(Tree *tree, const char *meta, const char *name, size_t name_size)
{
    Search search;
    take_table(tree, meta + META_TABLES_AT + TABLE_BYTES);
    if (tree->levels != 1)
        return 0;
    lead(&search, tree, tree->root);
    enter(&search, tree, LEAF);
    for (size_t i = 0; search.page != NULL && i < search.high; i++) {
        const char *row = find_row(&search, tree, i);
        if (row == NULL)
            return 0;
        size_t end = (size_t)(row - search.page) + NODE_HEAD_BYTES + name_size + TABLE_BYTES;
        if (compare_row_key(row, name, name_size) || get_u16(row + 4) != TABLE || end > tree->page_size)
            continue;
        take_table(tree, row + NODE_HEAD_BYTES + name_size);
        return tree->levels >= 1 && tree->levels <= MOST_LEVELS;
    }
    return 0;
}

PyDoc_STRVAR(find_keys_doc,
"find_keys(pages, commit_no, table, keys) -> a byte for each key: 1 if the table has it as that commit has left it");

static PyObject *
find_keys(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("find_keys", count, 4) || !list_argument(args[3]))
        return NULL;
    uint64_t commit_no = PyLong_AsUnsignedLongLong(args[1]);
    if (commit_no == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    const char *name = bytes_argument(args[2], -1);
    if (name == NULL)
        return NULL;
    Py_ssize_t total = PyList_Size(args[3]);
    for (Py_ssize_t i = 0; i < total; i++)
        if (bytes_argument(PyList_GetItem(args[3], i), -1) == NULL)
            return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE))
        return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, total);
    if (found != NULL) {
        char *to = PyBytes_AsString(found);
        memset(to, 0, (size_t)total);
        Tree tree = {view.buf, (size_t)view.len, 0, 0, 0};
        const char *meta = find_meta(&tree, commit_no);
        if (meta != NULL && find_table(&tree, meta, name, (size_t)PyBytes_Size(args[2])))
            for (Py_ssize_t i = 0; i < total; i += SEARCHES_AT_ONCE) {
                int some = (int)(total - i < SEARCHES_AT_ONCE ? total - i : SEARCHES_AT_ONCE);
                search_tree(&tree, args[3], i, some, to + i);
            }
    }
    PyBuffer_Release(&view);
    return found;
}
