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

/* Where a search has come: a page, and between which of its rows the first one is that is not below the key.  It has come
   to its end when both are the same.  No page: it is given up. */
typedef struct {
    const char *key;
    size_t key_size;
    const char *page;
    uint64_t number;
    uint64_t next;              /* of the page behind this one, if both are below the same branch; else 0 */
    size_t low, high, rows;
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
        prefetch_to_read(search->page + CACHE_LINE_BYTES);
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
    search->high = search->rows = (lower - PAGE_HEAD_BYTES) / 2;
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

/* The number of the page below a row of a branch. */
static uint64_t
number_below(const char *row)
{
    return get_u16(row) | (uint64_t)get_u16(row + 2) << 16 | (uint64_t)get_u16(row + 4) << 32;
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
descend(Search *search, const Tree *tree)
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
        if (compare_row_key(row, search->key, search->key_size) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    row = low < search->rows ? find_row(search, tree, low) : NULL;
    search->next = row == NULL ? 0 : number_below(row);
    row = low ? find_row(search, tree, low - 1) : NULL;
    if (row == NULL)
        search->page = NULL;
    else
        lead(search, tree, number_below(row));
}

/* Look at the middle one of the rows of a leaf that are left. */
static void
step(Search *search, const Tree *tree)
{
    size_t middle = (search->low + search->high) / 2;
    const char *row = find_row(search, tree, middle);
    if (row == NULL)
        search->page = NULL;
    else if (compare_row_key(row, search->key, search->key_size) < 0)
        search->low = middle + 1;
    else
        search->high = middle;
}

static int
goes_on(const Search *search)
{
    return search->page != NULL && search->low < search->high;
}

/* Bring searches to their ends, which have keys.  They go in step: where each alone would wait for memory five times, they
   wait together. */
static void
search_tree(const Tree *tree, Search *searches, int count)
{
    for (int i = 0; i < count; i++) {
        searches[i].next = 0;
        lead(&searches[i], tree, tree->root);
    }
    for (int level = 1; level < tree->levels; level++)
        for (int i = 0; i < count; i++) {
            enter(&searches[i], tree, BRANCH);
            descend(&searches[i], tree);
        }
    int left = 0;
    for (int i = 0; i < count; i++) {
        enter(&searches[i], tree, LEAF);
        if (goes_on(&searches[i])) {
            prefetch_row(&searches[i], tree);
            left++;
        }
    }
    while (left)
        for (int i = 0; i < count; i++)
            if (goes_on(&searches[i])) {
                step(&searches[i], tree);
                if (goes_on(&searches[i]))
                    prefetch_row(&searches[i], tree);
                else
                    left--;
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

/* Take what functions that search say first: the file, the commit and the table.  -> whether the table is there and has
   rows; -1 with an exception set.  Unless it is -1, the file is to be released. */
static int
tree_argument(PyObject *const *args, Py_buffer *file, Tree *tree)
{
    uint64_t commit_no = PyLong_AsUnsignedLongLong(args[1]);
    if (commit_no == (uint64_t)-1 && PyErr_Occurred())
        return -1;
    const char *name = bytes_argument(args[2], -1);
    if (name == NULL || PyObject_GetBuffer(args[0], file, PyBUF_SIMPLE))
        return -1;
    *tree = (Tree){file->buf, (size_t)file->len, 0, 0, 0};
    const char *meta = find_meta(tree, commit_no);
    return meta != NULL && find_table(tree, meta, name, (size_t)PyBytes_Size(args[2]));
}

/* A list of bytes, all of this size, any when that is -1. */
static int
all_bytes_argument(PyObject *argument, Py_ssize_t size)
{
    if (!list_argument(argument))
        return 0;
    for (Py_ssize_t i = 0; i < PyList_Size(argument); i++)
        if (bytes_argument(PyList_GetItem(argument, i), size) == NULL)
            return 0;
    return 1;
}

PyDoc_STRVAR(find_keys_doc,
"find_keys(pages, commit_no, table, keys) -> a byte for each key: 1 if the table has it as that commit has left it");

static PyObject *
find_keys(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer file;
    Tree tree;
    if (!has_count("find_keys", count, 4) || !all_bytes_argument(args[3], -1))
        return NULL;
    int is_there = tree_argument(args, &file, &tree);
    if (is_there < 0)
        return NULL;
    Py_ssize_t total = PyList_Size(args[3]);
    PyObject *found = PyBytes_FromStringAndSize(NULL, total);
    char *to = found == NULL ? NULL : PyBytes_AsString(found);
    if (found != NULL)
        memset(to, 0, (size_t)total);
    for (Py_ssize_t first = 0; found != NULL && is_there && first < total; first += SEARCHES_AT_ONCE) {
        Search searches[SEARCHES_AT_ONCE];
        int some = (int)(total - first < SEARCHES_AT_ONCE ? total - first : SEARCHES_AT_ONCE);
        for (int i = 0; i < some; i++) {
            PyObject *key = PyList_GetItem(args[3], first + i);
            searches[i].key = PyBytes_AsString(key);
            searches[i].key_size = (size_t)PyBytes_Size(key);
        }
        search_tree(&tree, searches, some);
        for (int i = 0; i < some; i++) {
            const Search *search = &searches[i];
            int has_row = search->page != NULL && search->low < search->rows;
            const char *row = has_row ? find_row(search, &tree, search->low) : NULL;
            to[first + i] = row != NULL && !compare_row_key(row, search->key, search->key_size);
        }
    }
    PyBuffer_Release(&file);
    return found;
}

/* Lead searches that found all rows of their leaves below their keys to the leaves behind. */
static void
go_to_next(const Tree *tree, Search *searches, int count)
{
    for (int i = 0; i < count; i++) {
        Search *search = &searches[i];
        if (search->page != NULL && search->low == search->rows) {
            search->page = NULL;
            if (search->next)
                lead(search, tree, search->next);
        } else
            search->next = 0;
    }
    for (int i = 0; i < count; i++)
        if (searches[i].next) {
            enter(&searches[i], tree, LEAF);
            if (searches[i].page != NULL && !searches[i].rows)
                searches[i].page = NULL;
        }
}

/* What the run says that a search has found of the entry with the key.  -> None if it does not have it, or is not sound;
   NULL with an exception set. */
static PyObject *
delivery_at(const Search *search, const Tree *tree, uint32_t begin)
{
    if (search->page == NULL)
        Py_RETURN_NONE;
    Py_ssize_t key_size, page_size = (Py_ssize_t)tree->page_size;
    Py_ssize_t row = get_u16(search->page + PAGE_HEAD_BYTES + 2 * search->low);
    Py_ssize_t at = take_leaf_row(search->page, page_size, row, PAGE_HEAD_BYTES, &key_size);
    if (at < 0 || key_size != KEY_BYTES || memcmp(search->page + at, search->key, PREFIX_BYTES))
        Py_RETURN_NONE;
    Py_ssize_t size = (Py_ssize_t)get_u16(search->page + row) | (Py_ssize_t)get_u16(search->page + row + 2) << 16;
    const char *key = search->page + at, *run = key + KEY_BYTES;
    size = pending_size(begin, run, size);
    if (size < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (size == RUN_HEAD_BYTES || memcmp(key + PREFIX_BYTES, run + size - ID_BYTES, ID_BYTES) ||
        place_of(run + RUN_HEAD_BYTES, size - RUN_HEAD_BYTES, search->key + PREFIX_BYTES) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("kKK", (unsigned long)get_u32(run), (unsigned long long)get_big_endian(run + RUN_MOMENT_AT),
                         (unsigned long long)get_big_endian(run + RUN_COUNT_AT));
}

PyDoc_STRVAR(find_deliveries_doc,
"find_deliveries(pages, commit_no, table, prefix, ids) -> (owner, moment, delivery count) of each ID, or None\n\n"
"What the runs of a group say of entries, as that commit has left them.");

static PyObject *
find_deliveries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer file;
    Tree tree;
    if (!has_count("find_deliveries", count, 5) || !all_bytes_argument(args[4], ID_BYTES))
        return NULL;
    const char *prefix = bytes_argument(args[3], PREFIX_BYTES);
    int is_there = prefix == NULL ? -1 : tree_argument(args, &file, &tree);
    if (is_there < 0)
        return NULL;
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    Py_ssize_t total = PyList_Size(args[4]);
    PyObject *found = PyList_New(total);
    for (Py_ssize_t first = 0; found != NULL && first < total; first += SEARCHES_AT_ONCE) {
        Search searches[SEARCHES_AT_ONCE];
        char keys[SEARCHES_AT_ONCE][KEY_BYTES];
        int some = (int)(total - first < SEARCHES_AT_ONCE ? total - first : SEARCHES_AT_ONCE);
        for (int i = 0; i < some; i++) {
            const char *id = PyBytes_AsString(PyList_GetItem(args[4], first + i));
            put_bytes(put_bytes(keys[i], prefix, PREFIX_BYTES), id, ID_BYTES);
            searches[i] = (Search){keys[i], KEY_BYTES, NULL, 0, 0, 0, 0, 0};
        }
        if (is_there) {
            search_tree(&tree, searches, some);
            go_to_next(&tree, searches, some);
        }
        for (int i = 0; found != NULL && i < some; i++) {
            PyObject *delivery = delivery_at(&searches[i], &tree, begin);
            if (delivery == NULL || PyList_SetItem(found, first + i, delivery))
                Py_CLEAR(found);
        }
    }
    PyBuffer_Release(&file);
    return found;
}
