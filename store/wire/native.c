/* Requests and runs of XADD, cut out of their own bytes.

   What each function does, byte for byte, is said by `reference/`; this is the same in C.  It takes lengths apart,
   copies and formats.  It knows no node rule, no limit of a client, no time and no file; of IDs it knows that they
   ascend, and of trims when they remove nothing.

   Why C, and not Cython: there are six functions that hold a few objects each, so that Cython would save little
   counting of references, and its output is 10,000 lines that need Cython where they are built.  This needs a C
   compiler alone, and only what Python has promised to keep (the limited API of 3.11), so that one build serves every
   Python from 3.11 on.

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
#include <string.h>
#include <structmember.h>

#define INTERFACE 19            /* raise it, here and in `interface.py`, when a function takes or returns others */
#define MAX_DIGITS 9           /* of a length */
#define MIN_WORD_BYTES 6      /* "$0\r\n\r\n" */
#define MIN_XADD_WORDS 5      /* XADD key id field value */
#define XACK_WORDS 4            /* XACK key group id */
#define ACK_REPLY_BYTES 4       /* ":1\r\n" */
#define MAX_TRIMMED 256         /* by one tail: to delete their rows takes a quarter of a millisecond */
#define TRIMMED_BYTES 64        /* that an entry to be removed counts as */
#define RUN_ENTRIES 256         /* as many make one run at most; they are noted on the stack first */
#define TAILS_AT_ONCE 8         /* that are looked for, also when the first of them ends the appending */
#define HALF_DIGITS 20          /* of 64 bits */
#define ID_TEXT_BYTES (2 * HALF_DIGITS + 1)
#define ID_BULK_BYTES (ID_TEXT_BYTES + 7)       /* "$41\r\n" and "\r\n" */
#define MORE_LOG_BYTES (ID_BULK_BYTES + 8)      /* that a line of the log has more than its request at most */
#define HEAD_BYTES 32           /* "*", a Py_ssize_t, "\r\n" */
#define PREFIX_BYTES 8          /* of the key of a row: the stream's number, then both halves of the ID */
#define HALF_BYTES 8
#define ID_BYTES (2 * HALF_BYTES)
#define KEY_BYTES (PREFIX_BYTES + ID_BYTES)
#define MIN_ROOM 512            /* of a buffer */
#define RUN_MOMENT_AT 4         /* a run of pending entries: consumer_no:u32 moment:u64 delivery_count:u64 */
#define RUN_COUNT_AT 12
#define RUN_HEAD_BYTES 20       /* then the IDs */
#define TURN_AT 48              /* in a moment: the turn, over the delivery time; without an owner it is a release_no */
#define TURN_BYTES 2
#define CHECKSUM_BYTES 4        /* behind a run; those of format version 2 have none */
#define SEAL_BYTES 5            /* behind the row of an entry: CRC-32C of the stream's number and the row, and the mark */
#define SEAL_MARK '\1'
#define ROW_MARK '\xc1'          /* in front of the row of a stream, then CRC-32C of its key and what follows: msgpack */
#define ROW_HEAD_BYTES 5
#define STREAM_ARRAY '\x99'      /* msgpack: of nine values, of four; nil, bytes, the largest number without a kind */
#define NODES_ARRAY '\x94'
#define NIL '\xc0'
#define BIN8 '\xc4'
#define UINT8_KIND 0xcc         /* then the kinds of numbers with two, four and eight bytes */
#define MAX_FIXINT 0x7f
#define MAX_COUNT (PY_SSIZE_T_MAX / 2)  /* of what a stream has; as many can be added */
#define STREAM_IDS_BYTES 112    /* seven IDs */
#define MAX_STREAM_BYTES 204    /* of a row: nine numbers of nine bytes, the IDs and eleven bytes */
#define STREAM_VALUES 18        /* of a row in Python; the IDs begin there */
#define FIRST_ID_AT 5
#define PAGE_HEAD_BYTES 16      /* of LMDB 0.9: pgno:u64 pad:u16 flags:u16 lower:u16 upper:u16, then where rows begin */
#define NODE_HEAD_BYTES 8       /* before a row: its size:u32 flags:u16 size of its key:u16 */

/* What may become a run. */
/* `XADD key [options] *|id ...`, from clients; `XADD key [MAXLEN = n] id ...`, out of a log */
enum { NO_RUNS, APPENDED, LOGGED };

/* What an XADD trims by. */
enum { NO_TRIM, MAXLEN, MINID };

typedef struct {
    uint64_t ms, seq;
} ID;

/* One XADD: where its head, key, ID, first field and the byte behind its last value stand in the chunk; its options. */
typedef struct {
    Py_ssize_t start, key, key_length, id, fields, end;
    Py_ssize_t word_count;      /* fields and values */
    ID wanted;                  /* unless `is_auto` */
    ID threshold;               /* of the trim; MAXLEN's is `seq` */
    char is_auto, trim, is_approximate;
} Entry;

typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of entries */
    PyObject *chunk;
    Entry entries[1];
} Run;

/* One XACK of one entry: where it and the word of its ID stand in the chunk; the XADDs before it. */
typedef struct {
    Py_ssize_t start, id_word, end;
    Py_ssize_t before;
    ID id;
} Ack;

/* XADDs, and XACKs of one group of one stream. */
typedef struct {
    PyObject_VAR_HEAD           /* the size is the number of XACKs */
    PyObject *chunk;
    Run *adds;                  /* NULL when there is none */
    Py_ssize_t key, key_length, group, group_length;
    Ack acks[1];
} Mix;

/* Bytes that are appended to; they grow as needed. */
typedef struct {
    char *data;
    size_t size, room;
} Buffer;

/* A row of the table of entries in a buffer; the bytes of the row follow.  As Python objects waiting rows would take
   three times the memory, which has left the processor's cache when they are put into the table. */
typedef struct {
    ID id;
    Py_ssize_t size;
} RowHead;

/* Rows that leave a buffer one by one. */
typedef struct {
    PyObject_HEAD
    Buffer rows;
    size_t at;
    char prefix[PREFIX_BYTES];
} Rows;

/* What may be appended to a stream, and what was: `reference/` says more. */
typedef struct {
    PyObject_HEAD
    Buffer rows;                /* that were not taken */
    char prefix[PREFIX_BYTES];
    ID first;                   /* of the open node */
    ID last;                    /* of the stream */
    ID oldest, node_end;        /* an exact trim by MINID, and an approximate one, removes nothing up to here */
    Py_ssize_t length;          /* of the stream */
    Py_ssize_t node_live;       /* entries that an approximate trim by MAXLEN removes at least */
    Py_ssize_t most, room;      /* entries and bytes that the open node takes */
    Py_ssize_t max_entries, max_bytes, nodes_left;      /* of further nodes */
    Py_ssize_t count, size;     /* entries and bytes that the open node has taken */
    Py_ssize_t rows_size;       /* bytes of the rows that were not taken, with their keys */
    Py_ssize_t trimmed;         /* entries to be removed from the front */
    PyObject *closed;           /* (count, size, first ID, last ID) of the nodes before, NULL for none */
    PyObject *key, *row;        /* of the stream, when it was opened by its row; else NULL */
} Tail;

typedef struct {
    PyTypeObject *run_type, *mix_type, *tail_type, *rows_type;
} State;

/* -- checksums ---------------------------------------------------------------------------------------------------- */

#ifdef __GNUC__
#define prefetch(address) __builtin_prefetch(address, 1)
#else
#define prefetch(address) ((void)(address))
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_CRC_INSTRUCTION __builtin_cpu_supports("sse4.2")

__attribute__((target("sse4.2"))) static uint32_t
crc_by_instruction(uint32_t crc, const unsigned char *data, size_t size)
{
    uint64_t sum = crc, word;
    uint32_t half;
    for (; size >= sizeof(word); size -= sizeof(word), data += sizeof(word)) {
        memcpy(&word, data, sizeof(word));
        sum = __builtin_ia32_crc32di(sum, word);
    }
    crc = (uint32_t)sum;
    if (size >= sizeof(half)) {
        memcpy(&half, data, sizeof(half));
        crc = __builtin_ia32_crc32si(crc, half);
        data += sizeof(half);
        size -= sizeof(half);
    }
    for (; size > 0; size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#else
#define HAS_CRC_INSTRUCTION 0
#define crc_by_instruction crc_by_table
#endif

static uint32_t crc_table[256];
static int has_crc_instruction;

static void
prepare_crc(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        crc_table[i] = crc;
    }
    has_crc_instruction = HAS_CRC_INSTRUCTION;
}

static uint32_t
crc_by_table(uint32_t crc, const unsigned char *data, size_t size)
{
    for (; size > 0; size--)
        crc = crc_table[(crc ^ *data++) & 0xff] ^ crc >> 8;
    return crc;
}

/* CRC-32C before its last inversion, so that it can be continued; it begins with `CRC_BEGIN`. */
#define CRC_BEGIN 0xffffffffu

static uint32_t
add_crc(uint32_t crc, const char *data, Py_ssize_t size)
{
    if (has_crc_instruction)
        return crc_by_instruction(crc, (const unsigned char *)data, (size_t)size);
    return crc_by_table(crc, (const unsigned char *)data, (size_t)size);
}

static char *
put_u32(char *to, uint32_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *to++ = (char)(number >> shift);
    return to;
}

static char *
put_seal(char *to, uint32_t crc)
{
    to = put_u32(to, ~crc);
    *to++ = SEAL_MARK;
    return to;
}

static uint32_t
get_u32(const char *from)
{
    const unsigned char *at = (const unsigned char *)from;
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Where the parts of an entry's row end: its ID, and the number of its words. */
typedef struct {
    Py_ssize_t id_end, fields, count;
} Parts;

static int take_row(const char *data, Py_ssize_t size, Parts *parts);

/* The size of the row of an entry without its seal; -1 when the row is not what was written.  `crc` is that of the
   stream's number.  Rows of format version 2 have no seal, and are taken apart. */
static Py_ssize_t
unsealed_size(uint32_t crc, const char *row, Py_ssize_t size)
{
    if (size > SEAL_BYTES && row[size - 1] == SEAL_MARK) {
        size -= SEAL_BYTES;
        return get_u32(row + size) == ~add_crc(crc, row, size) ? size : -1;
    }
    Parts parts;
    return take_row(row, size, &parts) ? -1 : size;
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

/* A line of `kind` and a canonical length.  -> the byte behind it; -1 when there is none, or not all of it. */
static Py_ssize_t
take_length(const char *data, Py_ssize_t at, Py_ssize_t end, char kind, Py_ssize_t *length)
{
    if (at >= end || data[at] != kind)
        return -1;
    Py_ssize_t first = ++at, value = 0;
    if (end - at >= 3 && data[at] >= '0' && data[at] <= '9' && data[at + 1] == '\r' && data[at + 2] == '\n') {
        *length = data[at] - '0';       /* most lengths have one digit */
        return at + 3;
    }
    while (at < end && data[at] >= '0' && data[at] <= '9') {
        if (at - first == MAX_DIGITS)
            return -1;
        value = 10 * value + (data[at++] - '0');
    }
    if (at == first || (data[first] == '0' && at - first > 1))
        return -1;
    if (end - at < 2 || data[at] != '\r' || data[at + 1] != '\n')
        return -1;
    *length = value;
    return at + 2;
}

/* One word.  -> the byte behind it and the two that end it, whatever these are; -1 when it is not all there. */
static Py_ssize_t
take_word(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *start, Py_ssize_t *length)
{
    at = take_length(data, at, end, '$', length);
    if (at < 0 || *length > end - at - 2)
        return -1;
    *start = at;
    return at + *length + 2;
}

/* As `take_word`, of a word that ends as it should. */
static Py_ssize_t
take_closed_word(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *start, Py_ssize_t *length)
{
    at = take_word(data, at, end, start, length);
    return at >= 0 && data[at - 2] == '\r' && data[at - 1] == '\n' ? at : -1;
}

/* The head of a request.  -> the byte behind it; -1 when there is none, or fewer bytes than so many words have. */
static Py_ssize_t
take_head(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t *count)
{
    at = take_length(data, at, end, '*', count);
    return at >= 0 && *count > 0 && *count <= (end - at) / MIN_WORD_BYTES ? at : -1;
}

/* The canonical digits of 64 bits that stand between `start` and `end`.  -> 0, or -1 when they are none. */
static int
parse_half(const char *data, Py_ssize_t start, Py_ssize_t end, uint64_t *half)
{
    uint64_t value = 0;
    if (start == end || end - start > HALF_DIGITS || (data[start] == '0' && end - start > 1))
        return -1;
    for (Py_ssize_t at = start; at < end; at++) {
        if (data[at] < '0' || data[at] > '9')
            return -1;
        uint64_t digit = (uint64_t)(data[at] - '0');
        if (at - start == HALF_DIGITS - 1 && value > (UINT64_MAX - digit) / 10)
            return -1;          /* fewer digits always fit */
        value = 10 * value + digit;
    }
    *half = value;
    return 0;
}

/* `ms-seq`, both of them canonical, or, if `may_be_short`, `ms` for `ms-0`.  -> 0, or -1. */
static int
parse_id(const char *data, Py_ssize_t start, Py_ssize_t length, int may_be_short, ID *id)
{
    const char *dash = length > 0 ? memchr(data + start, '-', (size_t)length) : NULL;
    if (dash == NULL) {
        id->seq = 0;
        return may_be_short ? parse_half(data, start, start + length, &id->ms) : -1;
    }
    Py_ssize_t middle = dash - data;
    return parse_half(data, start, middle, &id->ms) || parse_half(data, middle + 1, start + length, &id->seq) ? -1 : 0;
}

static int
is_above(ID id, ID other)
{
    return id.ms != other.ms ? id.ms > other.ms : id.seq > other.seq;
}

/* Whether a word is `name`, which is in upper case, in upper or lower case. */
static int
is_option(const char *word, Py_ssize_t length, const char *name)
{
    for (Py_ssize_t i = 0; i < length; i++)
        if (name[i] == '\0' || (word[i] & ~0x20) != name[i])
            return 0;
    return name[length] == '\0';
}

/* The threshold of a trim, and what may stand before it: `[= | ~] n | id`.  -> the byte behind it; -1 for anything
   else. */
static Py_ssize_t
take_threshold(const char *data, Py_ssize_t at, Py_ssize_t end, Entry *entry, Py_ssize_t *count)
{
    Py_ssize_t word, length;
    at = take_closed_word(data, at, end, &word, &length);
    if (at >= 0 && length == 1 && (data[word] == '~' || data[word] == '=')) {
        entry->is_approximate = data[word] == '~';
        at = take_closed_word(data, at, end, &word, &length);
        --*count;
    }
    --*count;
    if (at < 0)
        return -1;
    if (entry->trim == MINID)
        return parse_id(data, word, length, 1, &entry->threshold) ? -1 : at;
    return length > MAX_DIGITS || parse_half(data, word, word + length, &entry->threshold.seq) ? -1 : at;
}

/* The ID that a client asks for, and the options before it.  -> the byte behind them; -1 for anything else. */
static Py_ssize_t
take_options(const char *data, Py_ssize_t at, Py_ssize_t end, Entry *entry, Py_ssize_t *count)
{
    Py_ssize_t word, length;
    for (;;) {
        entry->id = at;
        at = take_closed_word(data, at, end, &word, &length);
        --*count;
        if (at < 0)
            return -1;
        if (length == 1 && data[word] == '*') {
            entry->is_auto = 1;
            return at;
        }
        if (is_option(data + word, length, "NOMKSTREAM"))
            continue;
        if (entry->trim != NO_TRIM)
            return parse_id(data, word, length, 1, &entry->wanted) ? -1 : at;
        if (is_option(data + word, length, "MAXLEN"))
            entry->trim = MAXLEN;
        else if (is_option(data + word, length, "MINID"))
            entry->trim = MINID;
        else
            return parse_id(data, word, length, 1, &entry->wanted) ? -1 : at;
        at = take_threshold(data, at, end, entry, count);
        if (at < 0)
            return -1;
    }
}

/* The ID of an XADD in a log, and the trim before it if there is one.  -> as `take_options`. */
static Py_ssize_t
take_logged_id(const char *data, Py_ssize_t at, Py_ssize_t end, Entry *entry, Py_ssize_t *count)
{
    static const char trim[] = "$6\r\nMAXLEN\r\n$1\r\n=\r\n";
    Py_ssize_t word, length, trim_size = (Py_ssize_t)sizeof(trim) - 1;
    if (end - at > trim_size && !memcmp(data + at, trim, (size_t)trim_size)) {
        at = take_closed_word(data, at + trim_size, end, &word, &length);
        if (at < 0 || length > MAX_DIGITS || parse_half(data, word, word + length, &entry->threshold.seq))
            return -1;
        entry->trim = MAXLEN;
        *count -= 3;
    }
    entry->id = at;
    --*count;
    at = take_closed_word(data, at, end, &word, &length);
    return at < 0 || parse_id(data, word, length, 0, &entry->wanted) ? -1 : at;
}

/* The fields and values of an XADD, `count` of them from `at` on.  -> the byte behind them; -1 for anything else. */
static Py_ssize_t
take_fields(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, Entry *entry)
{
    Py_ssize_t word, length;
    if (at < 0 || count < 2 || count % 2)
        return -1;
    entry->fields = at;
    entry->word_count = count;
    for (; count > 0; count--) {
        at = take_closed_word(data, at, end, &word, &length);
        if (at < 0)
            return -1;
    }
    entry->end = at;
    return at;
}

/* An XADD that may be of a run, from its head on.  -> the byte behind it; -1 for anything else. */
static Py_ssize_t
take_xadd(const char *data, Py_ssize_t start, Py_ssize_t end, int runs, Entry *entry)
{
    Py_ssize_t count;
    Py_ssize_t at = take_head(data, start, end, &count);
    if (at < 0 || count < MIN_XADD_WORDS || end - at < 10)
        return -1;
    if (memcmp(data + at, "$4\r\nXADD\r\n", 10) && (runs == LOGGED || memcmp(data + at, "$4\r\nxadd\r\n", 10)))
        return -1;
    memset(entry, 0, sizeof(*entry));
    at = take_closed_word(data, at + 10, end, &entry->key, &entry->key_length);
    if (at < 0)
        return -1;
    count -= 2;
    at = runs == APPENDED ? take_options(data, at, end, entry, &count) : take_logged_id(data, at, end, entry, &count);
    entry->start = start;
    return take_fields(data, at, end, count, entry);
}

/* An XADD of a log that begins as `before` does: with as many words, and a key of the same length.  -> the byte behind
   it; -1 for anything else, for one that trims, and for what `take_xadd` refuses. */
static Py_ssize_t
take_next_xadd(const char *data, Py_ssize_t start, Py_ssize_t end, const Entry *before, Entry *entry)
{
    Py_ssize_t head_size = before->key - before->start, word, length;
    Py_ssize_t key = start + head_size, id = key + before->key_length + 2;
    if (before->trim != NO_TRIM || id > end || memcmp(data + start, data + before->start, (size_t)head_size) ||
        data[id - 2] != '\r' || data[id - 1] != '\n')
        return -1;
    *entry = *before;
    entry->start = start;
    entry->key = key;
    entry->id = id;
    Py_ssize_t at = take_closed_word(data, id, end, &word, &length);
    if (at < 0 || parse_id(data, word, length, 0, &entry->wanted))
        return -1;
    return take_fields(data, at, end, before->word_count, entry);
}

/* The request at `start` as a list of words.  -> the byte behind it; -1 when it is not whole, or odd, or, with an
   exception set, when there is no memory for it.  In a log every word ends as it should. */
static Py_ssize_t
take_words(const char *data, Py_ssize_t start, Py_ssize_t end, int runs, PyObject **words)
{
    Py_ssize_t count, word, length;
    Py_ssize_t first = take_head(data, start, end, &count);
    Py_ssize_t at = first;
    if (first < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        at = take_word(data, at, end, &word, &length);
        if (at < 0 || (runs == LOGGED && (data[at - 2] != '\r' || data[at - 1] != '\n')))
            return -1;
    }
    *words = PyList_New(count);
    if (*words == NULL)
        return -1;
    at = first;
    for (Py_ssize_t i = 0; i < count; i++) {
        at = take_word(data, at, end, &word, &length);
        PyObject *bytes = PyBytes_FromStringAndSize(data + word, length);
        if (bytes == NULL || PyList_SetItem(*words, i, bytes) < 0) {
            Py_CLEAR(*words);
            return -1;
        }
    }
    return at;
}

static Run *
make_run(State *state, PyObject *chunk, const Entry *entries, Py_ssize_t count)
{
    Run *made = (Run *)PyType_GenericAlloc(state->run_type, count);
    if (made != NULL) {
        made->chunk = Py_NewRef(chunk);
        memcpy(made->entries, entries, (size_t)count * sizeof(Entry));
    }
    return made;
}

/* The XADD at `start` of a log and its neighbours, as a run.  -> as `take_words`. */
static Py_ssize_t
take_logged_run(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, PyObject **run)
{
    const char *data = PyBytes_AsString(chunk);
    Entry entries[RUN_ENTRIES];
    Py_ssize_t count = 1, at = take_xadd(data, start, end, LOGGED, &entries[0]);
    if (at < 0)
        return -1;
    while (count < RUN_ENTRIES && at < end) {
        Py_ssize_t found = take_next_xadd(data, at, end, &entries[count - 1], &entries[count]);
        if (found < 0)
            found = take_xadd(data, at, end, LOGGED, &entries[count]);
        if (found < 0)
            break;
        count++;
        at = found;
    }
    *run = (PyObject *)make_run(state, chunk, entries, count);
    return *run == NULL ? -1 : at;
}

/* An XACK of one entry; of the group that `mix` is of, unless it is the first.  -> the byte behind it; -1 for anything
   else. */
static Py_ssize_t
take_xack(const char *data, Py_ssize_t start, Py_ssize_t end, int is_first, Mix *mix, Ack *ack)
{
    Py_ssize_t count, key, key_length, group, group_length, word, length;
    Py_ssize_t at = take_head(data, start, end, &count);
    if (at < 0 || count != XACK_WORDS || end - at < 10)
        return -1;
    if (memcmp(data + at, "$4\r\nXACK\r\n", 10) && memcmp(data + at, "$4\r\nxack\r\n", 10))
        return -1;
    at = take_closed_word(data, at + 10, end, &key, &key_length);
    if (at >= 0)
        at = take_closed_word(data, at, end, &group, &group_length);
    if (at < 0)
        return -1;
    if (is_first) {
        mix->key = key;
        mix->key_length = key_length;
        mix->group = group;
        mix->group_length = group_length;
    } else if (key_length != mix->key_length || group_length != mix->group_length ||
               memcmp(data + key, data + mix->key, (size_t)key_length) ||
               memcmp(data + group, data + mix->group, (size_t)group_length))
        return -1;
    ack->start = start;
    ack->id_word = at;
    ack->end = take_closed_word(data, at, end, &word, &length);
    return ack->end < 0 || parse_id(data, word, length, 0, &ack->id) ? -1 : ack->end;
}

/* The XADD at `start` and its neighbours, as a run, or, if XACKs are among them, as a mix.  A single XACK is neither.
   -> as `take_words`. */
static Py_ssize_t
take_appended(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, PyObject **request)
{
    const char *data = PyBytes_AsString(chunk);
    Entry entries[RUN_ENTRIES];
    Ack acks[RUN_ENTRIES];
    Mix names;                  /* of the first XACK */
    names.key = names.key_length = names.group = names.group_length = 0;
    Py_ssize_t at = start, count = 0, acked = 0;
    while (at < end && count + acked < RUN_ENTRIES) {
        Py_ssize_t found = take_xadd(data, at, end, APPENDED, &entries[count]);
        if (found >= 0)
            count++;
        else {
            found = take_xack(data, at, end, acked == 0, &names, &acks[acked]);
            if (found < 0)
                break;
            acks[acked++].before = count;
        }
        at = found;
    }
    if (count + acked < 1 + (acked > 0))
        return -1;
    Run *adds = count > 0 ? make_run(state, chunk, entries, count) : NULL;
    if (count > 0 && adds == NULL)
        return -1;
    if (acked == 0) {
        *request = (PyObject *)adds;
        return at;
    }
    Mix *made = (Mix *)PyType_GenericAlloc(state->mix_type, acked);
    if (made == NULL) {
        Py_XDECREF((PyObject *)adds);
        return -1;
    }
    made->chunk = Py_NewRef(chunk);
    made->adds = adds;
    made->key = names.key;
    made->key_length = names.key_length;
    made->group = names.group;
    made->group_length = names.group_length;
    memcpy(made->acks, acks, (size_t)acked * sizeof(Ack));
    *request = (PyObject *)made;
    return at;
}

/* Append the requests between `start` and `end` to `requests`.  -> the byte behind them; -1 with an exception set. */
static Py_ssize_t
take_requests(State *state, PyObject *chunk, Py_ssize_t start, Py_ssize_t end, int runs, PyObject *requests)
{
    const char *data = PyBytes_AsString(chunk);
    Py_ssize_t at = start;
    while (at < end) {
        PyObject *request = NULL;
        Py_ssize_t next = -1;
        if (runs != NO_RUNS)
            next = runs == APPENDED ? take_appended(state, chunk, at, end, &request)
                                    : take_logged_run(state, chunk, at, end, &request);
        if (next < 0 && !PyErr_Occurred())
            next = take_words(data, at, end, runs, &request);
        if (next < 0)
            return PyErr_Occurred() ? -1 : at;
        int failed = PyList_Append(requests, request);
        Py_DECREF(request);
        if (failed)
            return -1;
        at = next;
    }
    return at;
}

/* -- formatting --------------------------------------------------------------------------------------------------- */

static char *
put_number(char *to, uint64_t number)
{
    char digits[HALF_DIGITS];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count)
        *to++ = digits[--count];
    return to;
}

static char *
put_bytes(char *to, const char *from, Py_ssize_t size)
{
    memcpy(to, from, (size_t)size);
    return to + size;
}

static char *
put_big_endian(char *to, uint64_t number)
{
    for (int shift = 56; shift >= 0; shift -= 8)
        *to++ = (char)(number >> shift);
    return to;
}

/* `*n\r\n`  -> its length. */
static Py_ssize_t
format_head(char *to, Py_ssize_t count)
{
    char *at = to;
    *at++ = '*';
    at = put_number(at, (uint64_t)count);
    at = put_bytes(at, "\r\n", 2);
    return at - to;
}

/* The last ID that was formatted: the next one most likely has the same millisecond. */
typedef struct {
    uint64_t ms;
    char head[HALF_DIGITS + 1];         /* `ms-` */
    Py_ssize_t head_size;
} Millisecond;

/* An ID as a bulk string.  `ms` is zero at first.  -> its length. */
static Py_ssize_t
format_id(char *to, Millisecond *ms, ID id)
{
    if (ms->head_size == 0 || ms->ms != id.ms) {
        char *end = put_number(ms->head, id.ms);
        *end++ = '-';
        ms->head_size = end - ms->head;
        ms->ms = id.ms;
    }
    char digits[HALF_DIGITS];
    Py_ssize_t seq_size = put_number(digits, id.seq) - digits;
    char *at = to;
    *at++ = '$';
    at = put_number(at, (uint64_t)(ms->head_size + seq_size));
    at = put_bytes(at, "\r\n", 2);
    at = put_bytes(at, ms->head, ms->head_size);
    at = put_bytes(at, digits, seq_size);
    at = put_bytes(at, "\r\n", 2);
    return at - to;
}

static uint64_t
get_big_endian(const char *from)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number << 8 | (unsigned char)from[i];
    return number;
}

static ID
get_id(const char *from)
{
    return (ID){get_big_endian(from), get_big_endian(from + HALF_BYTES)};
}

static char *
put_id(char *to, ID id)
{
    return put_big_endian(put_big_endian(to, id.ms), id.seq);
}

static PyObject *
id_bytes(ID id)
{
    char bytes[ID_BYTES];
    put_id(bytes, id);
    return PyBytes_FromStringAndSize(bytes, sizeof(bytes));
}

/* The row of an entry: its ID, the head of its fields, these as they were sent, and the seal. */
static char *
put_row(char *to, const char *prefix, const char *id, Py_ssize_t id_size, const char *head, Py_ssize_t head_size,
        const char *data, const Entry *entry)
{
    char *begin = to;
    to = put_bytes(to, id, id_size);
    to = put_bytes(to, head, head_size);
    to = put_bytes(to, data + entry->fields, entry->end - entry->fields);
    return put_seal(to, add_crc(add_crc(CRC_BEGIN, prefix, PREFIX_BYTES), begin, to - begin));
}

static PyObject *
make_row(const char *prefix, const char *id, Py_ssize_t id_size, const char *data, const Entry *entry)
{
    char head[HEAD_BYTES];
    Py_ssize_t head_size = format_head(head, entry->word_count);
    Py_ssize_t size = entry->end - entry->fields;
    PyObject *row = PyBytes_FromStringAndSize(NULL, id_size + head_size + size + SEAL_BYTES);
    if (row != NULL)
        put_row(PyBytes_AsString(row), prefix, id, id_size, head, head_size, data, entry);
    return row;
}

/* Append an object, which may be NULL with an exception set, and forget it.  -> 0, or -1. */
static int
append_new(PyObject *list, PyObject *item)
{
    int failed = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

/* (key, row); takes both, which may be NULL.  -> NULL with an exception set. */
static PyObject *
make_pair(PyObject *key, PyObject *row)
{
    PyObject *pair = key == NULL || row == NULL ? NULL : PyTuple_Pack(2, key, row);
    Py_XDECREF(key);
    Py_XDECREF(row);
    return pair;
}

/* How many entries of `run` from `at` on, `most` of them, have less than `room` bytes of fields together. */
static Py_ssize_t
count_fitting(const Run *run, Py_ssize_t at, Py_ssize_t most, Py_ssize_t room, Py_ssize_t *size)
{
    Py_ssize_t left = run->ob_base.ob_size - at, made = 0;
    if (most > left)
        most = left;
    *size = 0;
    for (; made < most; made++) {
        Py_ssize_t body = run->entries[at + made].end - run->entries[at + made].fields;
        if (body >= room - *size)
            break;
        *size += body;
    }
    return made;
}

/* -- buffers ------------------------------------------------------------------------------------------------------- */

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

/* -- arguments ---------------------------------------------------------------------------------------------------- */

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

/* -- rows of streams ---------------------------------------------------------------------------------------------- */

/* A row is a mark, a checksum of the key and of what follows, and nine values as msgpack: the stream's number, nil, its
   length, how many entries were added, its deadline, seven IDs, how many groups it has, an array of four numbers, nil.
   Where the first nil is a long key, or the second one settings, Python reads it. */
enum { STREAM_NO, LENGTH, ADDED, EXPIRE_MS, GROUP_COUNT, NODE_COUNT, TAIL_TOTAL, TAIL_DEAD, TAIL_SIZE, NUMBERS };
enum { FIRST_ID, LAST_ID, LAST_LIVE_ID, MAX_DELETED_ID, FLOOR_ID, TAIL_FIRST_ID, TAIL_LAST_ID, IDS };

typedef struct {
    uint64_t numbers[NUMBERS];
    ID ids[IDS];
} StreamRow;

/* The values of a row in Python, beside the IDs and the nils; -1 for these. */
static int
number_at(int place)
{
    static const signed char numbers[STREAM_VALUES] = {
        STREAM_NO, -1, LENGTH, ADDED, EXPIRE_MS, -1, -1, -1, -1, -1, -1, -1, GROUP_COUNT, NODE_COUNT, TAIL_TOTAL, TAIL_DEAD,
        TAIL_SIZE, -1,
    };
    return numbers[place];
}

/* The one byte that must stand there.  -> the byte behind it; NULL when it does not. */
static const char *
take_byte(const char *at, const char *end, char wanted)
{
    return at != NULL && at < end && *at == wanted ? at + 1 : NULL;
}

/* So many numbers of msgpack, which are not negative.  -> the byte behind them; NULL when they are others. */
static const char *
take_numbers(const char *at, const char *end, uint64_t *numbers, int count)
{
    for (; at != NULL && count > 0; count--, numbers++) {
        if (at >= end)
            return NULL;
        unsigned char kind = (unsigned char)*at++;
        *numbers = kind;
        if (kind <= MAX_FIXINT)
            continue;
        int size = kind >= UINT8_KIND && kind < UINT8_KIND + 4 ? 1 << (kind - UINT8_KIND) : -1;
        if (size < 0 || size > end - at)
            return NULL;
        for (*numbers = 0; size > 0; size--)
            *numbers = *numbers << 8 | (unsigned char)*at++;
    }
    return at;
}

static char *
put_numbers(char *to, const uint64_t *numbers, int count)
{
    for (; count > 0; count--, numbers++) {
        if (*numbers > MAX_FIXINT) {
            int power = (*numbers > UINT8_MAX) + (*numbers > UINT16_MAX) + (*numbers > UINT32_MAX);
            *to++ = (char)(UINT8_KIND + power);
            for (int shift = 8 * ((1 << power) - 1); shift > 0; shift -= 8)
                *to++ = (char)(*numbers >> shift);
        }
        *to++ = (char)*numbers;
    }
    return to;
}

/* Take a row apart that is bound to its key.  -> 0; -1 when it is another one, or has a long key or settings. */
static int
take_stream(const char *key, Py_ssize_t key_size, const char *row, Py_ssize_t size, StreamRow *stream)
{
    if (size < ROW_HEAD_BYTES || row[0] != ROW_MARK)
        return -1;
    const char *at = row + ROW_HEAD_BYTES, *end = row + size;
    if (get_u32(row + 1) != ~add_crc(add_crc(CRC_BEGIN, key, key_size), at, end - at))
        return -1;
    at = take_numbers(take_byte(at, end, STREAM_ARRAY), end, stream->numbers, 1);
    at = take_numbers(take_byte(at, end, NIL), end, stream->numbers + LENGTH, EXPIRE_MS - LENGTH + 1);
    at = take_byte(take_byte(at, end, BIN8), end, STREAM_IDS_BYTES);
    if (at == NULL || end - at < STREAM_IDS_BYTES)
        return -1;
    for (int i = 0; i < IDS; i++, at += ID_BYTES)
        stream->ids[i] = get_id(at);
    at = take_numbers(at, end, stream->numbers + GROUP_COUNT, 1);
    at = take_numbers(take_byte(at, end, NODES_ARRAY), end, stream->numbers + NODE_COUNT, NUMBERS - NODE_COUNT);
    return take_byte(at, end, NIL) == end ? 0 : -1;
}

static PyObject *
make_stream_row(const char *key, Py_ssize_t key_size, const StreamRow *stream)
{
    char row[MAX_STREAM_BYTES], *to = row + ROW_HEAD_BYTES;
    *to++ = STREAM_ARRAY;
    to = put_numbers(to, stream->numbers, 1);
    *to++ = NIL;
    to = put_numbers(to, stream->numbers + LENGTH, EXPIRE_MS - LENGTH + 1);
    *to++ = BIN8;
    *to++ = STREAM_IDS_BYTES;
    for (int i = 0; i < IDS; i++)
        to = put_id(to, stream->ids[i]);
    to = put_numbers(to, stream->numbers + GROUP_COUNT, 1);
    *to++ = NODES_ARRAY;
    to = put_numbers(to, stream->numbers + NODE_COUNT, NUMBERS - NODE_COUNT);
    *to++ = NIL;
    const char *begin = row + ROW_HEAD_BYTES;
    row[0] = ROW_MARK;
    put_u32(row + 1, ~add_crc(add_crc(CRC_BEGIN, key, key_size), begin, to - begin));
    return PyBytes_FromStringAndSize(row, to - row);
}

/* An ID as a number of Python. */
static PyObject *
id_number(ID id)
{
    PyObject *low = PyLong_FromUnsignedLongLong(id.seq);
    if (id.ms == 0 || low == NULL)
        return low;
    PyObject *high = PyLong_FromUnsignedLongLong(id.ms), *bits = PyLong_FromLong(8 * HALF_BYTES), *number = NULL;
    PyObject *shifted = high == NULL || bits == NULL ? NULL : PyNumber_Lshift(high, bits);
    if (shifted != NULL)
        number = PyNumber_Or(shifted, low);
    Py_XDECREF(shifted);
    Py_XDECREF(bits);
    Py_XDECREF(high);
    Py_DECREF(low);
    return number;
}

/* -> 0, or -1 with an exception set. */
static int
get_id_number(PyObject *number, ID *id)
{
    id->seq = PyLong_AsUnsignedLongLongMask(number);
    if (id->seq == UINT64_MAX && PyErr_Occurred())
        return -1;
    PyObject *bits = PyLong_FromLong(8 * HALF_BYTES), *high = bits == NULL ? NULL : PyNumber_Rshift(number, bits);
    Py_XDECREF(bits);
    id->ms = high == NULL ? 0 : PyLong_AsUnsignedLongLong(high);
    Py_XDECREF(high);
    return PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(open_stream_doc,
"open_stream(key, row) -> (stream_no, None, length, ...), or None\n\n"
"The values of a stream's row; None when it is not bound to its key, or has a long key or settings.");

static PyObject *
open_stream(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_stream", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], -1), *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    StreamRow stream;
    if (take_stream(key, PyBytes_Size(args[0]), row, PyBytes_Size(args[1]), &stream))
        return Py_NewRef(Py_None);
    PyObject *values = PyTuple_New(STREAM_VALUES);
    for (int i = 0; values != NULL && i < STREAM_VALUES; i++) {
        int number = number_at(i), id = i - FIRST_ID_AT;
        PyObject *value;
        if (number >= 0)
            value = PyLong_FromUnsignedLongLong(stream.numbers[number]);
        else if (id < 0 || id >= IDS)
            value = Py_NewRef(Py_None);
        else {
            int same = 0;       /* most IDs of a stream are those of its first and its last entry */
            while (stream.ids[same].seq != stream.ids[id].seq || stream.ids[same].ms != stream.ids[id].ms)
                same++;
            value = same == id ? id_number(stream.ids[id]) : Py_NewRef(PyTuple_GetItem(values, FIRST_ID_AT + same));
        }
        if (value == NULL || PyTuple_SetItem(values, i, value))
            Py_CLEAR(values);
    }
    return values;
}

PyDoc_STRVAR(pack_stream_doc,
"pack_stream(key, values) -> row, or None\n\n"
"The row under `key` with the values that `open_stream` returns; None when there is a long key or settings.");

static PyObject *
pack_stream(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("pack_stream", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], -1);
    if (key == NULL)
        return NULL;
    if (!PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != STREAM_VALUES) {
        PyErr_SetString(PyExc_TypeError, "the values of a stream's row are needed");
        return NULL;
    }
    StreamRow stream;
    for (int i = 0; i < STREAM_VALUES; i++) {
        PyObject *value = PyTuple_GetItem(args[1], i);
        int number = number_at(i), id = i - FIRST_ID_AT;
        if (number < 0 && (id < 0 || id >= IDS)) {
            if (value != Py_None)
                return Py_NewRef(Py_None);
            continue;
        }
        if (!PyLong_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "a number is needed");
            return NULL;
        }
        if (number >= 0)
            stream.numbers[number] = PyLong_AsUnsignedLongLong(value);
        else if (id > 0 && value == PyTuple_GetItem(args[1], i - 1))
            stream.ids[id] = stream.ids[id - 1];
        else if (get_id_number(value, &stream.ids[id]))
            return NULL;
        if (PyErr_Occurred())
            return NULL;
    }
    return make_stream_row(key, PyBytes_Size(args[0]), &stream);
}

/* -- functions ---------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(parse_doc,
"parse(runs, chunk, start=0, end=len(chunk)) -> requests, or None\n\n"
"The requests between two bytes of `chunk`; None when there is anything but whole plain requests.");

static PyObject *
parse(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int runs;
    if (!has_count("parse", count, count == 2 ? 2 : 4) || !runs_argument(args[0], &runs) ||
        bytes_argument(args[1], -1) == NULL)
        return NULL;
    PyObject *chunk = args[1];
    Py_ssize_t start = 0, end = PyBytes_Size(chunk);
    if (count == 4) {
        end = position_argument(args[3], end);
        if (end < 0)
            return NULL;
        start = position_argument(args[2], end);
        if (start < 0)
            return NULL;
    }
    PyObject *requests = PyList_New(0);
    if (requests == NULL)
        return NULL;
    Py_ssize_t at = take_requests(PyModule_GetState(module), chunk, start, end, runs, requests);
    if (at == end && end > start)
        return requests;
    Py_DECREF(requests);
    return at < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(parse_front_doc,
"parse_front(runs, chunk, requests) -> where they end\n\n"
"Append the whole plain requests at the front of `chunk` to `requests`.");

static PyObject *
parse_front(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int runs;
    if (!has_count("parse_front", count, 3) || !runs_argument(args[0], &runs) || bytes_argument(args[1], -1) == NULL ||
        !list_argument(args[2]))
        return NULL;
    Py_ssize_t at = take_requests(PyModule_GetState(module), args[1], 0, PyBytes_Size(args[1]), runs, args[2]);
    return at < 0 ? NULL : PyLong_FromSsize_t(at);
}

/* The arguments that say which entries of a run are meant. */
static int
entries_argument(PyObject *const *args, const Run *run, Py_ssize_t *at, Py_ssize_t *most, Py_ssize_t *room)
{
    *at = position_argument(args[0], run->ob_base.ob_size);
    if (*at < 0)
        return 0;
    *most = position_argument(args[1], PY_SSIZE_T_MAX);
    if (*most < 0)
        return 0;
    *room = position_argument(args[2], PY_SSIZE_T_MAX);
    return *room >= 0;
}

/* How many entries of the stream, with this one in it, the trim of an entry removes.  -> -1 when that is not known, or
   not to be left for later. */
static int
count_trimmed(const Tail *tail, const Entry *entry)
{
    if (entry->trim == NO_TRIM)
        return 0;
    if (entry->trim == MINID)
        return is_above(entry->threshold, entry->is_approximate ? tail->node_end : tail->oldest) ? -1 : 0;
    Py_ssize_t threshold = (Py_ssize_t)entry->threshold.seq, excess = tail->length + 1 - threshold;
    if (excess <= 0)
        return 0;
    if (threshold == 0)
        return -1;
    if (entry->is_approximate)
        return excess < tail->node_live ? 0 : -1;
    return excess <= MAX_TRIMMED - tail->trimmed ? (int)excess : -1;
}

/* Whether the open node takes an entry of `size` bytes. */
static int
has_room(const Tail *tail, Py_ssize_t size)
{
    return tail->count < tail->most && size < tail->room - tail->size;
}

/* Whether the tail takes an entry as it is, with which ID, and how many entries are trimmed for it. */
static int
takes(const Tail *tail, const Entry *entry, ID now, ID *id, int *trimmed)
{
    Py_ssize_t size = entry->end - entry->fields;
    if (!has_room(tail, size) && (tail->nodes_left == 0 || size >= tail->max_bytes))
        return 0;
    *id = entry->is_auto ? now : entry->wanted;
    if (!is_above(*id, tail->last)) {
        *id = tail->last;
        if (!entry->is_auto || (++id->seq == 0 && ++id->ms == 0))
            return 0;
    }
    *trimmed = count_trimmed(tail, entry);
    return *trimmed >= 0;
}

/* (count, size, first ID, last ID) of the open node. */
static PyObject *
show_node(const Tail *tail)
{
    char first[ID_BYTES], last[ID_BYTES];
    put_id(first, tail->first);
    put_id(last, tail->count ? tail->last : tail->first);
    return Py_BuildValue("nny#y#", tail->count, tail->size, first, (Py_ssize_t)sizeof(first), last,
                         (Py_ssize_t)sizeof(last));
}

/* Close the open node, and open another.  -> 0, or -1 with an exception set. */
static int
open_node(Tail *tail)
{
    if (tail->closed == NULL)
        tail->closed = PyList_New(0);
    if (tail->closed == NULL || append_new(tail->closed, show_node(tail)))
        return -1;
    tail->most = tail->max_entries;
    tail->room = tail->max_bytes;
    tail->nodes_left--;
    tail->count = tail->size = 0;
    return 0;
}

/* Add an entry to its tail.  -> 0, or -1 with an exception set. */
static int
add_entry(Tail *tail, const Entry *entry, const char *data, ID id, const char *bulk, Py_ssize_t bulk_size)
{
    Py_ssize_t size = entry->end - entry->fields;
    if (!has_room(tail, size) && open_node(tail))
        return -1;
    char head[HEAD_BYTES];
    Py_ssize_t head_size = format_head(head, entry->word_count);
    RowHead row = {id, bulk_size + head_size + size + SEAL_BYTES};
    char *to = make_room(&tail->rows, sizeof(row) + (size_t)row.size);
    if (to == NULL)
        return -1;
    to = put_bytes(to, (const char *)&row, sizeof(row));
    to = put_row(to, tail->prefix, bulk, bulk_size, head, head_size, data, entry);
    tail->rows.size = (size_t)(to - tail->rows.data);
    tail->rows_size += KEY_BYTES + row.size;
    if (tail->count == 0)
        tail->first = id;
    tail->last = id;
    tail->count++;
    tail->length++;
    tail->size += size;
    return 0;
}

/* Note that the first entries are to be removed. */
static void
trim(Tail *tail, int count)
{
    tail->trimmed += count;
    tail->rows_size += TRIMMED_BYTES * count;
    tail->length -= count;
    tail->node_live = tail->node_live > count ? tail->node_live - count : 0;
}

/* The line of the log up to the ID: `*n XADD key`, and `MAXLEN = threshold` if entries are trimmed. */
static char *
put_log_head(char *to, const char *data, const Entry *entry, int trimmed)
{
    Py_ssize_t key_at = entry->key - 1;
    while (data[key_at] != '$')
        key_at--;
    to += format_head(to, entry->word_count + (trimmed ? 6 : 3));
    to = put_bytes(to, "$4\r\nXADD\r\n", 10);
    to = put_bytes(to, data + key_at, entry->key + entry->key_length + 2 - key_at);
    if (!trimmed)
        return to;
    char threshold[HALF_DIGITS];
    Py_ssize_t size = put_number(threshold, entry->threshold.seq) - threshold;
    to = put_bytes(to, "$6\r\nMAXLEN\r\n$1\r\n=\r\n$", 20);
    to = put_number(to, (uint64_t)size);
    to = put_bytes(to, "\r\n", 2);
    to = put_bytes(to, threshold, size);
    return put_bytes(to, "\r\n", 2);
}

/* The tail of an entry's stream, which is that of the entry before if they have the same key.  -> borrowed; NULL when
   there is none, or with an exception set. */
static Tail *
find_tail(State *state, const char *data, const Entry *entry, const Entry *before, Tail *found, PyObject *const *dicts)
{
    if (before != NULL && before->key_length == entry->key_length &&
        !memcmp(data + before->key, data + entry->key, (size_t)entry->key_length))
        return found;
    PyObject *key = PyBytes_FromStringAndSize(data + entry->key, entry->key_length), *tail = NULL;
    if (key == NULL)
        return NULL;
    if (PyDict_Size(dicts[1]) == 0 || PyDict_GetItemWithError(dicts[1], key) == NULL)
        tail = PyErr_Occurred() ? NULL : PyDict_GetItemWithError(dicts[0], key);
    Py_DECREF(key);
    if (tail == NULL || Py_IS_TYPE(tail, state->tail_type))
        return (Tail *)tail;
    PyErr_SetString(PyExc_TypeError, "tails are needed");
    return NULL;
}

/* The tails of entries from `at` on, up to one that has none, or the same as that before it, which is `tail`.  They are
   found a few at once, so that the processor waits for the memory of all of them together: of a thousand streams this
   takes a quarter off the time of appending.  -> how many; an exception may be set. */
static int
find_tails(State *state, const Run *run, Py_ssize_t at, Py_ssize_t first, Tail *tail, PyObject *const *dicts,
           Tail **tails)
{
    const char *data = PyBytes_AsString(run->chunk);
    int count = 0;
    for (; at < run->ob_base.ob_size && count < TAILS_AT_ONCE; at++) {
        const Entry *entry = &run->entries[at];
        Tail *before = tail;
        tail = find_tail(state, data, entry, at > first ? entry - 1 : NULL, before, dicts);
        if (tail == NULL)
            return PyErr_Occurred() ? 0 : count;
        tails[count++] = tail;
        if (tail == before)
            break;
        prefetch(tail);
    }
    for (int i = 1; i < count; i++)
        prefetch(tails[i]->rows.data + tails[i]->rows.size);
    return count;
}

/* Append entries of a run from `first` on to their tails, until one of them is not so simple.  What the log is given,
   and the replies, are put where `log` and `replies` point; these may be NULL for a run of a log, whose entries keep
   their IDs as they stand there.  -> behind the last one; an exception may be set. */
static Py_ssize_t
append_entries(State *state, const Run *run, Py_ssize_t first, PyObject *const *dicts, ID now, char **log,
               char **replies, Py_ssize_t *size)
{
    const char *data = PyBytes_AsString(run->chunk);
    Py_ssize_t at = first;
    Tail *tails[TAILS_AT_ONCE], *tail = NULL;
    int used = 0, found = 0;
    Millisecond ms = {0};
    ID id;
    int trimmed;
    for (;; at++) {
        if (used == found) {
            found = find_tails(state, run, at, first, tail, dicts, tails);
            used = 0;
            if (found == 0)
                break;
        }
        const Entry *entry = &run->entries[at];
        tail = tails[used++];
        if (!takes(tail, entry, now, &id, &trimmed))
            break;
        const char *bulk = log == NULL ? data + entry->id : *replies;
        Py_ssize_t bulk_size = log == NULL ? entry->fields - entry->id : format_id(*replies, &ms, id);
        Py_ssize_t before = tail->rows_size;
        if (add_entry(tail, entry, data, id, bulk, bulk_size))
            break;
        trim(tail, trimmed);
        *size += tail->rows_size - before;
        if (log != NULL) {
            *log = put_log_head(*log, data, entry, trimmed);
            *log = put_bytes(*log, bulk, bulk_size);
            *log = put_bytes(*log, data + entry->fields, entry->end - entry->fields);
            *replies += bulk_size;
        }
    }
    return at;
}

/* The arguments that say from which entry on a run is appended, and to what. */
static int
tails_argument(PyObject *const *args, const Run *run, Py_ssize_t *first)
{
    *first = run == NULL ? -1 : position_argument(args[0], run->ob_base.ob_size);
    if (*first < 0)
        return 0;
    if (PyDict_Check(args[1]) && PyDict_Check(args[2]))
        return 1;
    PyErr_SetString(PyExc_TypeError, "dicts are needed");
    return 0;
}

PyDoc_STRVAR(append_doc,
"append(run, at, tails, watched, now_ms) -> (count, size, log, replies)\n\n"
"Append the entries of `run` from `at` on to the tails of their keys, up to the first one that is not so simple.");

static PyObject *
append(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("append", count, 5))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    Py_ssize_t first, size = 0;
    Py_ssize_t now_ms = tails_argument(args + 1, run, &first) ? position_argument(args[4], PY_SSIZE_T_MAX) : -1;
    if (now_ms < 0)
        return NULL;
    Py_ssize_t left = run->ob_base.ob_size - first;
    if (left == 0)
        return Py_BuildValue("nny#y#", left, size, "", (Py_ssize_t)0, "", (Py_ssize_t)0);
    /* No line of the log is longer than the request, an ID, `=`, and a digit for the number of words. */
    char replies[RUN_ENTRIES * ID_BULK_BYTES], *reply_to = replies;
    Py_ssize_t most_log = run->entries[first + left - 1].end - run->entries[first].start + left * MORE_LOG_BYTES;
    char *log = PyMem_Malloc((size_t)most_log), *log_to = log;
    if (log == NULL)
        return PyErr_NoMemory();
    ID now = {(uint64_t)now_ms, 0};
    Py_ssize_t at = append_entries(PyModule_GetState(module), run, first, args + 2, now, &log_to, &reply_to, &size);
    PyObject *result = NULL;
    if (!PyErr_Occurred())
        result = Py_BuildValue("nny#y#", at - first, size, log, log_to - log, replies, reply_to - replies);
    PyMem_Free(log);
    return result;
}

PyDoc_STRVAR(load_doc,
"load(run, at, tails, watched) -> (count, size)\n\n"
"As `append`, for a run out of a log.");

static PyObject *
load(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("load", count, 4))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    Py_ssize_t first, size = 0;
    if (!tails_argument(args + 1, run, &first))
        return NULL;
    ID now = {0, 0};
    Py_ssize_t at = append_entries(PyModule_GetState(module), run, first, args + 2, now, NULL, NULL, &size);
    return PyErr_Occurred() ? NULL : Py_BuildValue("nn", at - first, size);
}

/* A tail that nothing was appended to; `limits` are those of the open node, then those of further ones.  -> NULL with an
   exception set. */
static Tail *
new_tail(PyObject *module, const char *prefix, ID last, Py_ssize_t length, const Py_ssize_t *limits)
{
    State *state = PyModule_GetState(module);
    Tail *tail = (Tail *)PyType_GenericAlloc(state->tail_type, 0);
    if (tail == NULL)
        return NULL;
    memcpy(tail->prefix, prefix, PREFIX_BYTES);
    tail->last = last;
    tail->length = length;
    tail->most = limits[0];
    tail->room = limits[1];
    tail->max_entries = limits[2];
    tail->max_bytes = limits[3];
    tail->nodes_left = limits[4];
    return tail;
}

PyDoc_STRVAR(open_tail_doc,
"open_tail(last_key, oldest, node_end, length, node_live, most, room, max_entries, max_bytes, nodes) -> Tail\n\n"
"What may be appended to a stream, as `reference/` says.");

static PyObject *
open_tail(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_tail", count, 10))
        return NULL;
    const char *last = bytes_argument(args[0], KEY_BYTES);
    const char *oldest = last == NULL ? NULL : bytes_argument(args[1], ID_BYTES);
    const char *node_end = oldest == NULL ? NULL : bytes_argument(args[2], ID_BYTES);
    if (node_end == NULL)
        return NULL;
    Py_ssize_t numbers[7];
    for (int i = 0; i < 7; i++) {
        numbers[i] = position_argument(args[3 + i], PY_SSIZE_T_MAX / (i == 0 ? 2 : 1));
        if (numbers[i] < 0)
            return NULL;
    }
    Tail *tail = new_tail(module, last, get_id(last + PREFIX_BYTES), numbers[0], numbers + 2);
    if (tail != NULL) {
        tail->oldest = get_id(oldest);
        tail->node_end = get_id(node_end);
        tail->node_live = numbers[1];
    }
    return (PyObject *)tail;
}

PyDoc_STRVAR(open_tail_by_row_doc,
"open_tail_by_row(key, row, max_entries, max_bytes, nodes) -> Tail, or None\n\n"
"What may be appended to the stream of a row, as `reference/` says.");

static PyObject *
open_tail_by_row(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_tail_by_row", count, 5))
        return NULL;
    const char *key = bytes_argument(args[0], -1), *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Py_ssize_t limits[5] = {0};         /* of the open node, and of the further ones */
    for (int i = 2; i < 5; i++) {
        limits[i] = position_argument(args[i], PY_SSIZE_T_MAX);
        if (limits[i] < 0)
            return NULL;
    }
    StreamRow stream;
    if (take_stream(key, PyBytes_Size(args[0]), row, PyBytes_Size(args[1]), &stream) || stream.numbers[EXPIRE_MS])
        return Py_NewRef(Py_None);
    for (int i = 0; i < NUMBERS; i++)
        if (i != STREAM_NO && stream.numbers[i] > MAX_COUNT)
            return Py_NewRef(Py_None);
    Py_ssize_t total = (Py_ssize_t)stream.numbers[TAIL_TOTAL], size = (Py_ssize_t)stream.numbers[TAIL_SIZE];
    if (total > 0) {
        limits[0] = total < limits[2] ? limits[2] - total : 0;
        limits[1] = size < limits[3] ? limits[3] - size : 0;
    }
    char prefix[PREFIX_BYTES];
    put_big_endian(prefix, stream.numbers[STREAM_NO]);
    Tail *tail = new_tail(module, prefix, stream.ids[LAST_ID], (Py_ssize_t)stream.numbers[LENGTH], limits);
    if (tail != NULL) {
        tail->key = Py_NewRef(args[0]);
        tail->row = Py_NewRef(args[1]);
    }
    return (PyObject *)tail;
}

PyDoc_STRVAR(expand_one_doc,
"expand_one(run, key, log_head) -> (row, size, log, reply)\n\n"
"The first entry of `run` with the ID in `key`, whatever it asks for.");

static PyObject *
expand_one(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("expand_one", count, 3))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    const char *key = run == NULL ? NULL : bytes_argument(args[1], KEY_BYTES);
    const char *log_head = key == NULL ? NULL : bytes_argument(args[2], -1);
    if (log_head == NULL)
        return NULL;

    const char *data = PyBytes_AsString(run->chunk);
    const Entry *entry = &run->entries[0];
    Py_ssize_t log_head_size = PyBytes_Size(args[2]), size = entry->end - entry->fields;
    char id[ID_BULK_BYTES];
    Millisecond ms = {0};
    Py_ssize_t id_size = format_id(id, &ms, get_id(key + PREFIX_BYTES));
    if (log_head_size > PY_SSIZE_T_MAX - id_size - size)
        return PyErr_NoMemory();
    PyObject *log = PyBytes_FromStringAndSize(NULL, log_head_size + id_size + size);
    PyObject *reply = PyBytes_FromStringAndSize(id, id_size);
    PyObject *row = make_row(key, id, id_size, data, entry);
    if (log == NULL || reply == NULL || row == NULL) {
        Py_XDECREF(log);
        Py_XDECREF(reply);
        Py_XDECREF(row);
        return NULL;
    }
    char *to = put_bytes(put_bytes(PyBytes_AsString(log), log_head, log_head_size), id, id_size);
    put_bytes(to, data + entry->fields, size);
    return Py_BuildValue("NnNN", row, size, log, reply);
}

PyDoc_STRVAR(load_xadds_doc,
"load_xadds(run, at, most, room, last_key, rows) -> (count, size, last_key)\n\n"
"The rows of a run out of a log, with the IDs that stand there, as long as they ascend and nothing is trimmed.");

static PyObject *
load_xadds(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t at, most, room;
    if (!has_count("load_xadds", count, 6))
        return NULL;
    const Run *run = run_argument(module, args[0]);
    if (run == NULL || !entries_argument(args + 1, run, &at, &most, &room))
        return NULL;
    const char *before = bytes_argument(args[4], KEY_BYTES);
    if (before == NULL || !list_argument(args[5]))
        return NULL;

    const char *data = PyBytes_AsString(run->chunk);
    char last[KEY_BYTES], key[KEY_BYTES];
    Py_ssize_t size, made = 0, loaded = 0, fitting = count_fitting(run, at, most, room, &size);
    memcpy(last, before, KEY_BYTES);
    memcpy(key, before, KEY_BYTES);
    for (; made < fitting; made++) {
        const Entry *entry = &run->entries[at + made];
        put_id(key + PREFIX_BYTES, entry->wanted);
        if (memcmp(key, last, KEY_BYTES) <= 0 || entry->trim != NO_TRIM ||
            entry->key_length != run->entries[0].key_length ||
            memcmp(data + entry->key, data + run->entries[0].key, (size_t)entry->key_length))
            break;
        PyObject *row = make_row(key, data + entry->id, entry->fields - entry->id, data, entry);
        if (append_new(args[5], make_pair(PyBytes_FromStringAndSize(key, KEY_BYTES), row)))
            return NULL;
        memcpy(last, key, KEY_BYTES);
        loaded += entry->end - entry->fields;
    }
    return Py_BuildValue("nny#", made, loaded, last, (Py_ssize_t)KEY_BYTES);
}

/* -- IDs ---------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(packed_id_doc, "packed_id(text) -> the 16 bytes of a canonical `ms-seq`; None for anything else");

static PyObject *
packed_id(PyObject *Py_UNUSED(module), PyObject *text)
{
    const char *data = bytes_argument(text, -1);
    if (data == NULL)
        return NULL;
    ID id;
    return parse_id(data, 0, PyBytes_Size(text), 0, &id) ? Py_NewRef(Py_None) : id_bytes(id);
}

/* Where an ID begins among ascending ones of `size` bytes, -1 if it does not. */
static Py_ssize_t
place_of(const char *ids, Py_ssize_t size, const char *wanted)
{
    Py_ssize_t low = 0, high = size / ID_BYTES;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        int order = memcmp(ids + middle * ID_BYTES, wanted, ID_BYTES);
        if (order == 0)
            return middle * ID_BYTES;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

PyDoc_STRVAR(find_id_doc, "find_id(packed_ids, packed_id) -> where an ID begins among ascending ones, -1 if it does not");

static PyObject *
find_id(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("find_id", count, 2))
        return NULL;
    const char *ids = bytes_argument(args[0], -1);
    const char *wanted = ids == NULL ? NULL : bytes_argument(args[1], ID_BYTES);
    if (wanted == NULL)
        return NULL;
    return PyLong_FromSsize_t(place_of(ids, PyBytes_Size(args[0]), wanted));
}

/* -- pending entries ---------------------------------------------------------------------------------------------- */

/* The size of a run without its checksum.  `begin` is the checksum of the keys' prefix.  -> -1 with an exception set. */
static Py_ssize_t
pending_size(uint32_t begin, const char *row, Py_ssize_t size)
{
    if (size > RUN_HEAD_BYTES && (size - RUN_HEAD_BYTES) % ID_BYTES == CHECKSUM_BYTES) {
        size -= CHECKSUM_BYTES;
        /* that without a prefix is of format version 3 */
        if (get_u32(row + size) != ~add_crc(begin, row, size) &&
            get_u32(row + size) != ~add_crc(CRC_BEGIN, row, size))
            size = 0;
    }
    if (size >= RUN_HEAD_BYTES && (size - RUN_HEAD_BYTES) % ID_BYTES == 0)
        return size;
    PyErr_SetString(PyExc_ValueError, "this is no run");
    return -1;
}

/* Append the IDs of one run, `most` of them, that are between `first` and `last`.  -> how many; -1 with an exception. */
static Py_ssize_t
show_run(Buffer *buffer, const char *row, Py_ssize_t size, const char *first, const char *last, PyObject *owner,
         long long idle_ms, Py_ssize_t most)
{
    char tail[2 * HALF_DIGITS + 8], *end = tail;
    *end++ = ':';
    if (idle_ms < 0)
        end = put_bytes(end, "-1", 2);
    else
        end = put_number(end, (uint64_t)idle_ms);
    end = put_bytes(end, "\r\n:", 3);
    end = put_number(end, get_big_endian(row + RUN_COUNT_AT));
    end = put_bytes(end, "\r\n", 2);
    const char *name = PyBytes_AsString(owner);
    Py_ssize_t name_size = PyBytes_Size(owner), shown = 0;
    Millisecond ms = {0};
    for (const char *id = row + RUN_HEAD_BYTES; id < row + size && shown < most; id += ID_BYTES) {
        if (memcmp(id, first, ID_BYTES) < 0 || memcmp(id, last, ID_BYTES) > 0)
            continue;
        char *start = make_room(buffer, (size_t)(4 + ID_BULK_BYTES + name_size + (end - tail))), *at = start;
        if (start == NULL)
            return -1;
        at = put_bytes(at, "*4\r\n", 4);
        at += format_id(at, &ms, get_id(id));
        at = put_bytes(at, name, name_size);
        at = put_bytes(at, tail, end - tail);
        buffer->size += (size_t)(at - start);
        shown++;
    }
    return shown;
}

/* The delivery time in the moment of an entry that has an owner. */
static uint64_t
time_of(uint64_t moment)
{
    return moment & (((uint64_t)1 << TURN_AT) - 1);
}

/* Append what is asked for of `rows`.  -> how many entries; -1 with an exception set. */
static Py_ssize_t
show_runs(Buffer *buffer, const char *prefix, PyObject *rows, const char *first, const char *last, PyObject *owners, long long now_ms,
          long long until_ms, Py_ssize_t most)
{
    Py_ssize_t shown = 0;
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    for (Py_ssize_t i = 0; i < PyList_Size(rows) && shown < most; i++) {
        PyObject *item = PyList_GetItem(rows, i);
        const char *row = bytes_argument(item, -1);
        Py_ssize_t size = row == NULL ? 0 : PyBytes_Size(item);
        if (row == NULL)
            return -1;
        size = pending_size(begin, row, size);
        if (size < 0)
            return -1;
        uint32_t number = get_u32(row);
        PyObject *key = PyLong_FromUnsignedLong(number);
        PyObject *owner = key == NULL ? NULL : PyDict_GetItemWithError(owners, key);
        Py_XDECREF(key);
        if (owner == NULL) {
            if (PyErr_Occurred())
                return -1;
            continue;
        }
        if (bytes_argument(owner, -1) == NULL)
            return -1;
        long long idle_ms = -1;
        if (number) {
            long long time_ms = (long long)time_of(get_big_endian(row + RUN_MOMENT_AT));
            if (time_ms > until_ms)
                continue;
            idle_ms = now_ms > time_ms ? now_ms - time_ms : 0;
        }
        Py_ssize_t more = show_run(buffer, row, size, first, last, owner, idle_ms, most - shown);
        if (more < 0)
            return -1;
        shown += more;
    }
    return shown;
}

PyDoc_STRVAR(show_pending_doc, "show_pending(prefix, rows, first, last, owners, now_ms, until_ms, most) -> (RESP, count)");

static PyObject *
show_pending(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("show_pending", count, 8) || !list_argument(args[1]))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    const char *first = prefix == NULL ? NULL : bytes_argument(args[2], ID_BYTES);
    const char *last = first == NULL ? NULL : bytes_argument(args[3], ID_BYTES);
    if (last == NULL)
        return NULL;
    if (!PyDict_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "a dict is needed");
        return NULL;
    }
    long long now_ms = PyLong_AsLongLong(args[5]);
    long long until_ms = now_ms == -1 && PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[6]);
    Py_ssize_t most = until_ms == -1 && PyErr_Occurred() ? -1 : position_argument(args[7], PY_SSIZE_T_MAX);
    if (most < 0)
        return NULL;
    Buffer buffer = {NULL, 0, 0};
    Py_ssize_t shown = show_runs(&buffer, prefix, args[1], first, last, args[4], now_ms, until_ms, most);
    PyObject *found = NULL;
    if (shown >= 0)
        found = Py_BuildValue("y#n", buffer.data == NULL ? "" : buffer.data, (Py_ssize_t)buffer.size, shown);
    PyMem_Free(buffer.data);
    return found;
}

/* What the entries of a run have in common: its owner, when they were delivered, and how often. */
typedef struct {
    uint32_t owner;
    uint64_t moment, count;
} Delivery;

/* A run: what its entries have in common, and where its IDs are in a buffer. */
typedef struct {
    Delivery delivery;
    size_t begin, size;
    const char *last;           /* the last ID of a run of the table, which is in no buffer */
} Piece;

static int
is_like(const Delivery *one, const Delivery *other)
{
    return one->owner == other->owner && one->moment == other->moment && one->count == other->count;
}

static Piece *
piece_at(const Buffer *pieces, size_t at)
{
    return (Piece *)pieces->data + at;
}

static size_t
count_pieces(const Buffer *pieces)
{
    return pieces->size / sizeof(Piece);
}

/* -> 0, or -1 with an exception set. */
static int
add_piece(Buffer *pieces, Piece piece)
{
    char *to = make_room(pieces, sizeof(piece));
    if (to == NULL)
        return -1;
    memcpy(to, &piece, sizeof(piece));
    pieces->size += sizeof(piece);
    return 0;
}

/* Have the last piece join the one before, if they differ in their IDs only; those before `first` are no neighbours. */
static void
join_last(Buffer *pieces, size_t first, Py_ssize_t most)
{
    size_t count = count_pieces(pieces);
    if (count < first + 2)
        return;
    Piece *last = piece_at(pieces, count - 1), *before = last - 1;
    if (last->delivery.owner && is_like(&before->delivery, &last->delivery) &&
        (before->size + last->size) / ID_BYTES <= (size_t)most) {
        before->size += last->size;
        pieces->size -= sizeof(Piece);
    }
}

/* (owner, moment, delivery count); None is an acknowledged entry.  -> 1, 0 for None, -1 with an exception set. */
static int
take_delivery(PyObject *item, Delivery *delivery)
{
    if (Py_IsNone(item))
        return 0;
    if (!PyTuple_Check(item) || PyTuple_Size(item) != 3) {
        PyErr_SetString(PyExc_TypeError, "a delivery is needed");
        return -1;
    }
    unsigned long long numbers[3];
    for (int i = 0; i < 3; i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(item, i));
        if (numbers[i] == (unsigned long long)-1 && PyErr_Occurred())
            return -1;
    }
    if (numbers[0] > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too large for a run");
        return -1;
    }
    *delivery = (Delivery){(uint32_t)numbers[0], numbers[1], numbers[2]};
    return 1;
}

/* Cut a run whose entries change into pieces, which are appended to `new`, and itself to `old`; `at` counts the changes.
   -> 0, or -1 with an exception set. */
static int
cut_run(const char *row, Py_ssize_t size, PyObject *order, PyObject *changed, Py_ssize_t *at, Py_ssize_t most,
        Buffer *ids, Buffer *old, Buffer *new, size_t first)
{
    Delivery own = {get_u32(row), get_big_endian(row + RUN_MOMENT_AT), get_big_endian(row + RUN_COUNT_AT)};
    Piece *open = NULL;
    int is_own = 0;             /* the open piece keeps the delivery of the run */
    PyObject *wanted = NULL;    /* the next ID that changes */
    const char *packed = NULL;
    if (make_room(ids, (size_t)size) == NULL)
        return -1;
    for (const char *id = row + RUN_HEAD_BYTES; id < row + size; id += ID_BYTES) {
        if (packed == NULL && *at < PyList_Size(order)) {
            wanted = PyList_GetItem(order, *at);
            packed = bytes_argument(wanted, ID_BYTES);
            if (packed == NULL)
                return -1;
        }
        Delivery delivery = own;
        int stays = 1, changes = packed != NULL && !memcmp(id, packed, ID_BYTES);
        if (changes) {
            PyObject *item = PyDict_GetItemWithError(changed, wanted);
            if (item == NULL) {
                if (!PyErr_Occurred())
                    PyErr_SetObject(PyExc_KeyError, wanted);
                return -1;
            }
            stays = take_delivery(item, &delivery);
            if (stays < 0)
                return -1;
            (*at)++;
            packed = NULL;
        }
        if (!stays)
            continue;
        memcpy(ids->data + ids->size, id, ID_BYTES);
        if (open == NULL || is_own == changes || !is_like(&open->delivery, &delivery)) {
            join_last(new, first, most);
            if (add_piece(new, (Piece){delivery, ids->size, 0, NULL}))
                return -1;
            open = piece_at(new, count_pieces(new) - 1);
            is_own = !changes;
        }
        ids->size += ID_BYTES;
        open->size += ID_BYTES;
    }
    join_last(new, first, most);
    return add_piece(old, (Piece){own, 0, 0, row + size - ID_BYTES});
}

/* The rows of a run in the three tables have its last ID in their keys. */
enum { BY_ID, BY_OWNER, BY_TIME, INDEXES };

/* -> where the key ends. */
static char *
put_key(char *to, int table, const char *prefix, const Delivery *delivery, const char *last)
{
    to = put_bytes(to, prefix, PREFIX_BYTES);
    if (table == BY_OWNER)
        to = put_u32(to, delivery->owner);
    if (table != BY_TIME)
        return put_bytes(to, last, ID_BYTES);
    if (!delivery->owner)
        return put_big_endian(put_big_endian(put_big_endian(to, 0), 0), delivery->moment);
    to = put_big_endian(to, time_of(delivery->moment) + 1);
    uint64_t turn = delivery->moment >> TURN_AT;
    if (turn) {                 /* behind all IDs of the first turn, whose keys name none */
        memset(to, 0xff, ID_BYTES);
        to += ID_BYTES;
        *to++ = (char)(turn >> 8);
        *to++ = (char)turn;
    }
    return put_bytes(to, last, ID_BYTES);
}

/* Whether a row that is put under the same last ID would be the one that is there. */
static int
stays(int table, const Delivery *was, const Delivery *is)
{
    if (table == BY_OWNER)
        return was->owner == is->owner;
    return table == BY_TIME && was->moment == is->moment && !was->owner == !is->owner;
}

static PyObject *
make_key(int table, const char *prefix, const Delivery *delivery, const char *last)
{
    char key[PREFIX_BYTES + HALF_BYTES + ID_BYTES + TURN_BYTES + ID_BYTES];
    return PyBytes_FromStringAndSize(key, put_key(key, table, prefix, delivery, last) - key);
}

static PyObject *
make_value(int table, uint32_t begin, const Piece *piece, const char *ids)
{
    const Delivery *delivery = &piece->delivery;
    if (table == BY_OWNER || (table == BY_TIME && delivery->owner))
        return PyBytes_FromStringAndSize(NULL, 0);
    if (table == BY_TIME)
        return PyBytes_FromStringAndSize(ids + piece->begin + piece->size - ID_BYTES, ID_BYTES);
    Py_ssize_t size = (Py_ssize_t)piece->size;
    PyObject *row = PyBytes_FromStringAndSize(NULL, RUN_HEAD_BYTES + size + CHECKSUM_BYTES);
    if (row == NULL)
        return NULL;
    char *start = PyBytes_AsString(row), *to = start;
    to = put_u32(to, delivery->owner);
    to = put_big_endian(put_big_endian(to, delivery->moment), delivery->count);
    to = put_bytes(to, ids + piece->begin, size);
    put_u32(to, ~add_crc(begin, start, to - start));
    return row;
}

/* Where a row of an index belongs among others: by `high`, then by `low`, then by the ID, as pieces ascend. */
typedef struct {
    uint64_t high, low;
    size_t piece;
} Place;

static Place
place_in(int table, const Delivery *delivery, size_t piece)
{
    if (table == BY_ID)
        return (Place){0, 0, piece};
    if (table == BY_OWNER)
        return (Place){delivery->owner, 0, piece};
    if (!delivery->owner)
        return (Place){0, delivery->moment, piece};
    return (Place){time_of(delivery->moment) + 1, delivery->moment >> TURN_AT, piece};
}

static int
is_before(const Place *one, const Place *other)
{
    if (one->high != other->high)
        return one->high < other->high;
    return one->low != other->low ? one->low < other->low : one->piece < other->piece;
}

/* Sort places; `spare` has room for as many.  -> where they are in order, which is one of the two. */
static Place *
sort_places(Place *places, Place *spare, size_t count)
{
    for (size_t width = 1; width < count; width *= 2) {
        Place *to = spare;
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            const Place *left = places + begin, *right = left + (count - begin < width ? count - begin : width);
            const Place *middle = right, *end = left + (count - begin < 2 * width ? count - begin : 2 * width);
            while (left < middle && right < end)
                *to++ = is_before(right, left) ? *right++ : *left++;
            while (left < middle)
                *to++ = *left++;
            while (right < end)
                *to++ = *right++;
        }
        spare = places;
        places = to - count;
    }
    return places;
}

/* Append the rows of these pieces to a list, ascending.  -> 0, or -1 with an exception set. */
static int
append_rows(int table, const char *prefix, const char *ids, const Buffer *new, Place *places, size_t count,
            PyObject *rows)
{
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    const Place *sorted = table == BY_ID ? places : sort_places(places, places + count, count);
    for (size_t i = 0; i < count; i++) {
        const Piece *piece = piece_at(new, sorted[i].piece);
        const char *last = ids + piece->begin + piece->size - ID_BYTES;
        if (append_new(rows, make_pair(make_key(table, prefix, &piece->delivery, last),
                                       make_value(table, begin, piece, ids))))
            return -1;
    }
    return 0;
}

/* Append to the lists of a table which keys are gone, when `new` takes the place of `old`, and which rows are to be put,
   ascending; `places` has room for twice as many as `new` has.  -> 0, or -1 with an exception set. */
static int
compare_runs(int table, const char *prefix, const char *ids, const Buffer *old, const Buffer *new, Place *places,
             PyObject *gone, PyObject *rows)
{
    size_t count = 0;
    size_t at = 0, next = 0, olds = count_pieces(old), news = count_pieces(new);
    while (at < olds || next < news) {
        const Piece *was = at < olds ? piece_at(old, at) : NULL, *is = next < news ? piece_at(new, next) : NULL;
        const char *is_last = is == NULL ? NULL : ids + is->begin + is->size - ID_BYTES;
        int order = was == NULL ? 1 : is == NULL ? -1 : memcmp(was->last, is_last, ID_BYTES);
        int is_same = order == 0 && stays(table, &was->delivery, &is->delivery);
        if (order <= 0) {
            if (!is_same && (order < 0 || table != BY_ID) &&
                append_new(gone, make_key(table, prefix, &was->delivery, was->last)))
                return -1;
            at++;
        }
        if (order >= 0) {
            if (!is_same)
                places[count++] = place_in(table, &is->delivery, next);
            next++;
        }
    }
    return append_rows(table, prefix, ids, new, places, count, rows);
}

/* Cut the runs in `rows`, pairs of key and row, or None where others may be between.  -> 0, or -1 with an exception set. */
static int
cut_runs(const char *prefix, PyObject *rows, PyObject *order, PyObject *changed, Py_ssize_t most, Buffer *ids,
         Buffer *old, Buffer *new)
{
    uint32_t begin = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    const char *before = NULL;
    Py_ssize_t at = 0;
    size_t first = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *pair = PyList_GetItem(rows, i);
        if (Py_IsNone(pair)) {
            first = count_pieces(new);
            continue;
        }
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "pairs are needed");
            return -1;
        }
        const char *key = bytes_argument(PyTuple_GetItem(pair, 0), KEY_BYTES);
        const char *row = key == NULL ? NULL : bytes_argument(PyTuple_GetItem(pair, 1), -1);
        Py_ssize_t size = row == NULL ? -1 : pending_size(begin, row, PyBytes_Size(PyTuple_GetItem(pair, 1)));
        if (size < 0)
            return -1;
        if (size == RUN_HEAD_BYTES || memcmp(key, prefix, PREFIX_BYTES) ||
            memcmp(key + PREFIX_BYTES, row + size - ID_BYTES, ID_BYTES)) {
            PyErr_SetString(PyExc_ValueError, "a run under another key than its own");
            return -1;
        }
        for (const char *id = row + RUN_HEAD_BYTES; id < row + size; before = id, id += ID_BYTES)
            if (before != NULL && memcmp(before, id, ID_BYTES) >= 0) {
                PyErr_SetString(PyExc_ValueError, "the IDs of runs do not ascend");
                return -1;
            }
        if (cut_run(row, size, order, changed, &at, most, ids, old, new, first))
            return -1;
    }
    if (at == PyList_Size(order))
        return 0;
    PyErr_SetString(PyExc_ValueError, "an ID that is in none of these runs");
    return -1;
}

PyDoc_STRVAR(open_run_doc, "open_run(key, row) -> (owner, moment, delivery count, IDs)");

static PyObject *
open_run(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("open_run", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], KEY_BYTES);
    const char *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Py_ssize_t size = pending_size(add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, PyBytes_Size(args[1]));
    if (size < 0)
        return NULL;
    return Py_BuildValue("kKKy#", (unsigned long)get_u32(row), (unsigned long long)get_big_endian(row + RUN_MOMENT_AT),
                         (unsigned long long)get_big_endian(row + RUN_COUNT_AT), row + RUN_HEAD_BYTES,
                         (Py_ssize_t)(size - RUN_HEAD_BYTES));
}

PyDoc_STRVAR(find_delivery_doc,
"find_delivery(key, row, wanted) -> (owner, moment, delivery count)\n\n"
"What a run says of the entry with the last ID in the key `wanted`, None when it does not have it.");

static PyObject *
find_delivery(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("find_delivery", count, 3))
        return NULL;
    int is_known = Py_IsNone(args[0]);
    const char *key = is_known ? "" : bytes_argument(args[0], KEY_BYTES);
    const char *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    const char *wanted = row == NULL ? NULL : bytes_argument(args[2], KEY_BYTES);
    if (wanted == NULL)
        return NULL;
    Py_ssize_t size = PyBytes_Size(args[1]);
    if (is_known && size > RUN_HEAD_BYTES)
        size -= (size - RUN_HEAD_BYTES) % ID_BYTES;
    else
        size = pending_size(is_known ? 0 : add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, size);
    if (size < 0)
        return NULL;
    if (!is_known && (size == RUN_HEAD_BYTES || memcmp(key + PREFIX_BYTES, row + size - ID_BYTES, ID_BYTES))) {
        PyErr_SetString(PyExc_ValueError, "a run under another key than its own");
        return NULL;
    }
    if ((!is_known && memcmp(key, wanted, PREFIX_BYTES)) ||
        place_of(row + RUN_HEAD_BYTES, size - RUN_HEAD_BYTES, wanted + PREFIX_BYTES) < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("kKK", (unsigned long)get_u32(row), (unsigned long long)get_big_endian(row + RUN_MOMENT_AT),
                         (unsigned long long)get_big_endian(row + RUN_COUNT_AT));
}

PyDoc_STRVAR(change_runs_doc,
"change_runs(prefix, rows, order, changed, most) -> (keys that are gone, rows to be put) for each of three tables\n\n"
"What becomes of runs when entries of theirs change.");

static PyObject *
change_runs(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("change_runs", count, 5) || !list_argument(args[1]) || !list_argument(args[2]))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    if (prefix == NULL)
        return NULL;
    if (!PyDict_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "a dict is needed");
        return NULL;
    }
    Py_ssize_t most = position_argument(args[4], PY_SSIZE_T_MAX);
    if (most < 0)
        return NULL;
    Buffer ids = {NULL, 0, 0}, old = {NULL, 0, 0}, new = {NULL, 0, 0};
    PyObject *tables = PyTuple_New(INDEXES);
    Place *places = NULL;
    if (tables != NULL && cut_runs(prefix, args[1], args[2], args[3], most, &ids, &old, &new))
        Py_CLEAR(tables);
    if (tables != NULL && (places = PyMem_Malloc(2 * count_pieces(&new) * sizeof(Place) + 1)) == NULL) {
        PyErr_NoMemory();
        Py_CLEAR(tables);
    }
    for (int table = 0; tables != NULL && table < INDEXES; table++) {
        PyObject *gone = PyList_New(0), *rows = PyList_New(0), *pair = NULL;
        if (gone != NULL && rows != NULL && !compare_runs(table, prefix, ids.data, &old, &new, places, gone, rows))
            pair = PyTuple_Pack(2, gone, rows);
        Py_XDECREF(gone);
        Py_XDECREF(rows);
        if (pair == NULL || PyTuple_SetItem(tables, table, pair))
            Py_CLEAR(tables);
    }
    PyMem_Free(ids.data);
    PyMem_Free(old.data);
    PyMem_Free(new.data);
    PyMem_Free(places);
    return tables;
}

/* -- rows of entries ---------------------------------------------------------------------------------------------- */

/* Take the row of an entry apart.  -> 0; -1 when we would not have written it so. */
static int
take_row(const char *data, Py_ssize_t size, Parts *parts)
{
    Py_ssize_t word, length;
    parts->id_end = take_closed_word(data, 0, size, &word, &length);
    if (parts->id_end < 0)
        return -1;
    Py_ssize_t at = parts->fields = take_head(data, parts->id_end, size, &parts->count);
    if (at < 0 || parts->count % 2)
        return -1;
    for (Py_ssize_t i = 0; i < parts->count; i++) {
        at = take_closed_word(data, at, size, &word, &length);
        if (at < 0)
            return -1;
    }
    return at == size ? 0 : -1;
}

/* The bytes of the fields of a row under its key; -1 when we would not have written the two so. */
static Py_ssize_t
measure_row(const char *key, Py_ssize_t key_size, const char *row, Py_ssize_t row_size)
{
    char id[ID_BULK_BYTES];
    Millisecond ms = {0};
    Parts parts;
    if (key_size != KEY_BYTES)
        return -1;
    row_size = unsealed_size(add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, row_size);
    if (row_size < 0 || take_row(row, row_size, &parts))
        return -1;
    ID of_key = get_id(key + PREFIX_BYTES);
    Py_ssize_t id_size = format_id(id, &ms, of_key);
    if (id_size != parts.id_end || memcmp(id, row, (size_t)id_size))
        return -1;
    return row_size - parts.fields;
}

PyDoc_STRVAR(measure_entries_doc,
"measure_entries(rows, prefix, most) -> (keys, sizes, odd rows)\n\n"
"Take at most `most` rows of entries out of an iterator, whose keys begin with `prefix`.");

static PyObject *
measure_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("measure_entries", count, 3))
        return NULL;
    const char *prefix = bytes_argument(args[1], PREFIX_BYTES);
    Py_ssize_t most = prefix == NULL ? -1 : position_argument(args[2], PY_SSIZE_T_MAX);
    if (most < 0)
        return NULL;
    PyObject *keys = PyList_New(0), *sizes = PyList_New(0), *odd = PyList_New(0), *item = NULL;
    if (keys == NULL || sizes == NULL || odd == NULL)
        goto failed;
    for (; most > 0 && (item = PyIter_Next(args[0])) != NULL; most--) {
        char *key, *row;
        Py_ssize_t key_size, row_size;
        if (!PyTuple_Check(item) || PyTuple_Size(item) != 2) {
            PyErr_SetString(PyExc_TypeError, "pairs are needed");
            goto failed;
        }
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(item, 0), &key, &key_size) ||
            PyBytes_AsStringAndSize(PyTuple_GetItem(item, 1), &row, &row_size))
            goto failed;
        if (key_size < PREFIX_BYTES || memcmp(key, prefix, PREFIX_BYTES)) {
            Py_CLEAR(item);
            break;
        }
        Py_ssize_t size = measure_row(key, key_size, row, row_size);
        if ((size < 0 && PyList_Append(odd, item)) || PyList_Append(keys, PyTuple_GetItem(item, 0)) ||
            append_new(sizes, PyLong_FromSsize_t(size)))
            goto failed;
        Py_CLEAR(item);
    }
    if (!PyErr_Occurred())
        return Py_BuildValue("NNN", keys, sizes, odd);

failed:
    Py_XDECREF(item);
    Py_XDECREF(keys);
    Py_XDECREF(sizes);
    Py_XDECREF(odd);
    return NULL;
}

PyDoc_STRVAR(log_entries_doc,
"log_entries(rows, last_key, head, room) -> (XADDs, count, last_key)\n\n"
"Make XADDs of the rows of entries that an iterator gives, until they have `room` bytes.");

static PyObject *
log_entries(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("log_entries", count, 4))
        return NULL;
    const char *before = bytes_argument(args[1], KEY_BYTES);
    const char *head = before == NULL ? NULL : bytes_argument(args[2], -1);
    Py_ssize_t room = head == NULL ? -1 : position_argument(args[3], PY_SSIZE_T_MAX);
    if (room < 0)
        return NULL;
    char last[KEY_BYTES];
    memcpy(last, before, KEY_BYTES);
    ID last_id = get_id(last + PREFIX_BYTES);
    Py_ssize_t head_size = PyBytes_Size(args[2]), size = 0, held = 0, made = 0;
    uint32_t crc = add_crc(CRC_BEGIN, last, PREFIX_BYTES);
    char *log = NULL;
    PyObject *item = NULL;
    while (size < room && (item = PyIter_Next(args[0])) != NULL) {
        char *row;
        Py_ssize_t row_size;
        Parts parts;
        if (PyBytes_AsStringAndSize(item, &row, &row_size))
            goto failed;
        row_size = unsealed_size(crc, row, row_size);
        if (row_size < 0 || take_row(row, row_size, &parts)) {
            PyErr_SetString(PyExc_ValueError, "this is not the row of an entry");
            goto failed;
        }
        Py_ssize_t word, length;
        ID id;
        if (take_closed_word(row, 0, row_size, &word, &length) < 0 || parse_id(row, word, length, 0, &id) ||
            !is_above(id, last_id)) {
            PyErr_SetString(PyExc_ValueError, "the entries are not in the order of their IDs");
            goto failed;
        }
        last_id = id;
        if (head_size > PY_SSIZE_T_MAX / 4 - HEAD_BYTES - row_size - size) {
            PyErr_NoMemory();
            goto failed;
        }
        Py_ssize_t needed = size + HEAD_BYTES + head_size + row_size;
        if (needed > held) {
            char *grown = PyMem_Realloc(log, (size_t)(2 * needed));
            if (grown == NULL) {
                PyErr_NoMemory();
                goto failed;
            }
            log = grown;
            held = 2 * needed;
        }
        char *at = log + size;
        at += format_head(at, parts.count + 3);
        at = put_bytes(at, head, head_size);
        at = put_bytes(at, row, parts.id_end);
        at = put_bytes(at, row + parts.fields, row_size - parts.fields);
        size = at - log;
        made++;
        Py_CLEAR(item);
    }
    put_id(last + PREFIX_BYTES, last_id);
    PyObject *result = PyErr_Occurred() ? NULL : Py_BuildValue("y#ny#", log == NULL ? "" : log, size, made, last,
                                                               (Py_ssize_t)KEY_BYTES);
    PyMem_Free(log);
    return result;

failed:
    Py_XDECREF(item);
    PyMem_Free(log);
    return NULL;
}

/* -- pages of tables ---------------------------------------------------------------------------------------------- */

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

/* -- seals -------------------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(seal_doc, "seal(prefix, row) -> the row of an entry of the stream with this number, with its seal");

static PyObject *
seal(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("seal", count, 2))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    const char *row = prefix == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Py_ssize_t size = PyBytes_Size(args[1]);
    PyObject *sealed = PyBytes_FromStringAndSize(NULL, size + SEAL_BYTES);
    if (sealed != NULL)
        put_seal(put_bytes(PyBytes_AsString(sealed), row, size),
                 add_crc(add_crc(CRC_BEGIN, prefix, PREFIX_BYTES), row, size));
    return sealed;
}

/* Whether the ID in the key is what the row begins with. */
static int
has_id_of(const char *key, const char *row, Py_ssize_t size, Millisecond *ms)
{
    char id[ID_BULK_BYTES];
    Py_ssize_t id_size = format_id(id, ms, get_id(key + PREFIX_BYTES));
    return id_size <= size && !memcmp(id, row, (size_t)id_size);
}

/* The row without its seal: itself, or a new object; NULL without an exception when it is damaged.

   A row that only the caller has, which LMDB has just copied, is cut in its place: a copy would take four times as
   long.  Its memory keeps its size, which is not looked at when it is freed. */
static PyObject *
cut_seal(uint32_t crc, PyObject *row, int is_shared)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(row, &data, &size))
        return NULL;
    Py_ssize_t left = unsealed_size(crc, data, size);
    if (left < 0)
        return NULL;
    if (left == size)
        return row;
    if (left < 2 || is_shared || Py_REFCNT(row) != 1)
        return PyBytes_FromStringAndSize(data, left);
    data[left] = 0;
    Py_SET_SIZE((PyVarObject *)row, left);
    return row;
}

PyDoc_STRVAR(unseal_one_doc, "unseal_one(key, row) -> the row without its seal; None when it is damaged, or has another key");

static PyObject *
unseal_one(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("unseal_one", count, 2))
        return NULL;
    const char *key = bytes_argument(args[0], KEY_BYTES);
    const char *row = key == NULL ? NULL : bytes_argument(args[1], -1);
    if (row == NULL)
        return NULL;
    Millisecond ms = {0};
    Py_ssize_t size = PyBytes_Size(args[1]);
    Py_ssize_t left = unsealed_size(add_crc(CRC_BEGIN, key, PREFIX_BYTES), row, size);
    if (left < 0 || !has_id_of(key, row, left, &ms))
        Py_RETURN_NONE;
    return left == size ? Py_NewRef(args[1]) : PyBytes_FromStringAndSize(row, left);
}

PyDoc_STRVAR(unseal_doc, "unseal(prefix, rows) -> the index of the first damaged row, -1 without; changes `rows`");

static PyObject *
unseal(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (!has_count("unseal", count, 2))
        return NULL;
    const char *prefix = bytes_argument(args[0], PREFIX_BYTES);
    if (prefix == NULL || !list_argument(args[1]))
        return NULL;
    uint32_t crc = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
    for (Py_ssize_t at = 0, size = PyList_Size(args[1]); at < size; at++) {
        PyObject *row = PyList_GetItem(args[1], at), *cut = cut_seal(crc, row, 0);
        if (cut == NULL)
            return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
        if (cut != row)
            PyList_SetItem(args[1], at, cut);
    }
    return PyLong_FromLong(-1);
}

PyDoc_STRVAR(unseal_pairs_doc,
"unseal_pairs(pairs) -> the index of the first damaged row, -1 without; `pairs` are (key, row), and change");

static PyObject *
unseal_pairs(PyObject *Py_UNUSED(module), PyObject *pairs)
{
    if (!list_argument(pairs))
        return NULL;
    char prefix[PREFIX_BYTES];
    uint32_t crc = 0;
    Millisecond ms = {0};
    for (Py_ssize_t at = 0, size = PyList_Size(pairs); at < size; at++) {
        PyObject *pair = PyList_GetItem(pairs, at);
        if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
            PyErr_SetString(PyExc_TypeError, "pairs are needed");
            return NULL;
        }
        const char *key = bytes_argument(PyTuple_GetItem(pair, 0), KEY_BYTES);
        if (key == NULL)
            return NULL;
        if (at == 0 || memcmp(prefix, key, PREFIX_BYTES)) {
            memcpy(prefix, key, PREFIX_BYTES);
            crc = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
        }
        PyObject *row = PyTuple_GetItem(pair, 1);
        const char *data = bytes_argument(row, -1);
        if (data == NULL)
            return NULL;
        if (!has_id_of(key, data, PyBytes_Size(row), &ms))
            return PyLong_FromSsize_t(at);
        PyObject *cut = cut_seal(crc, row, Py_REFCNT(pair) != 1);
        if (cut == NULL)
            return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
        if (cut != row) {
            PyObject *changed = PyTuple_Pack(2, PyTuple_GetItem(pair, 0), cut);
            Py_DECREF(cut);
            if (changed == NULL)
                return NULL;
            PyList_SetItem(pairs, at, changed);
        }
    }
    return PyLong_FromLong(-1);
}

/* A buffer of `count` numbers of 64 bits, of as many as there are when it is negative.  -> 0, or -1 with an exception set. */
static int
numbers_argument(PyObject *argument, int flags, Py_ssize_t count, Py_buffer *numbers)
{
    if (PyObject_GetBuffer(argument, numbers, flags))
        return -1;
    if (numbers->len % 8 == 0 && (count < 0 || numbers->len / 8 == count))
        return 0;
    PyBuffer_Release(numbers);
    PyErr_SetString(PyExc_ValueError, "not as many numbers of 64 bits");
    return -1;
}

static Py_ssize_t
unseal_places(const Py_buffer *rows, const int64_t *starts, int64_t *ends, const uint64_t *stream_nos, Py_ssize_t count)
{
    char prefix[PREFIX_BYTES];
    uint32_t crc = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (at == 0 || stream_nos[at] != stream_nos[at - 1]) {
            put_big_endian(prefix, stream_nos[at]);
            crc = add_crc(CRC_BEGIN, prefix, PREFIX_BYTES);
        }
        if (starts[at] < 0 || ends[at] < starts[at] || ends[at] > rows->len)
            return at;
        Py_ssize_t size = unsealed_size(crc, (const char *)rows->buf + starts[at], (Py_ssize_t)(ends[at] - starts[at]));
        if (size < 0)
            return at;
        ends[at] = starts[at] + size;
    }
    return -1;
}

PyDoc_STRVAR(unseal_in_doc,
"unseal_in(buffer, starts, ends, stream_nos) -> the index of the first damaged row, -1 without; changes `ends`");

static PyObject *
unseal_in(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer rows, starts, ends, stream_nos;
    PyObject *result = NULL;
    if (!has_count("unseal_in", count, 4) || PyObject_GetBuffer(args[0], &rows, PyBUF_SIMPLE))
        return NULL;
    if (!numbers_argument(args[1], PyBUF_SIMPLE, -1, &starts)) {
        Py_ssize_t many = starts.len / 8;
        if (!numbers_argument(args[2], PyBUF_WRITABLE, many, &ends)) {
            if (!numbers_argument(args[3], PyBUF_SIMPLE, many, &stream_nos)) {
                result = PyLong_FromSsize_t(unseal_places(&rows, starts.buf, ends.buf, stream_nos.buf, many));
                PyBuffer_Release(&stream_nos);
            }
            PyBuffer_Release(&ends);
        }
        PyBuffer_Release(&starts);
    }
    PyBuffer_Release(&rows);
    return result;
}

/* -- values in rows ------------------------------------------------------------------------------------------------ */

/* The number that is written from `at` on, with CR LF behind it, in front of `end`; `at` is behind that then.  -> -1 for none. */
static int64_t
announced_length(const char *data, int64_t *at, int64_t end)
{
    int64_t length = 0, here = *at;
    for (; here < end && here - *at < MAX_DIGITS && data[here] >= '0' && data[here] <= '9'; here++)
        length = 10 * length + (data[here] - '0');
    if (here == *at || end - here < 2 || data[here] != '\r' || data[here + 1] != '\n')
        return -1;
    *at = here + 2;
    return length;
}

/* Where the values of one row are, for each head: begin and end, `stride` numbers apart.  -> whether it has these heads. */
static int
find_in_row(const char *data, int64_t at, int64_t end, const Py_buffer *heads, Py_ssize_t count, int64_t *places,
            Py_ssize_t stride)
{
    for (Py_ssize_t k = 0; k < count; k++, places += 2 * stride) {
        if (heads[k].len > end - at || memcmp(data + at, heads[k].buf, (size_t)heads[k].len))
            return 0;
        at += heads[k].len;
        int64_t length = announced_length(data, &at, end);
        if (length < 0 || length > end - at)
            return 0;
        places[0] = at;
        places[stride] = at += length;
    }
    return 1;
}

PyDoc_STRVAR(find_values_doc,
"find_values(buffer, starts, ends, heads, tail, places, found) -> how many rows have the heads, and end with the tail");

static PyObject *
find_values(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer all[6] = {{0}}, *heads = NULL;        /* buffer, starts, ends, tail, places, found */
    static const int is_numbers[] = {0, 1, 1, 0, 1, 0}, from[] = {0, 1, 2, 4, 5, 6};
    Py_ssize_t held = 0, head_count = 0, taken = 0, matching = 0;
    PyObject *result = NULL;
    if (!has_count("find_values", count, 7) || !list_argument(args[3]))
        return NULL;
    head_count = PyList_Size(args[3]);
    heads = PyMem_Calloc((size_t)head_count + 1, sizeof(Py_buffer));
    if (heads == NULL)
        return PyErr_NoMemory();
    for (; held < 6; held++) {
        Py_ssize_t many = held == 2 ? all[1].len / 8 : held == 4 ? 2 * head_count * (all[1].len / 8) : -1;
        int flags = held < 4 ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (is_numbers[held] ? numbers_argument(args[from[held]], flags, many, &all[held])
                             : PyObject_GetBuffer(args[from[held]], &all[held], flags))
            goto done;
    }
    for (; taken < head_count; taken++) {
        PyObject *head = PyList_GetItem(args[3], taken);
        if (head == NULL || PyObject_GetBuffer(head, &heads[taken], PyBUF_SIMPLE))
            goto done;
    }
    Py_ssize_t rows = all[1].len / 8;
    if (all[5].len != rows) {
        PyErr_SetString(PyExc_ValueError, "not as many flags as rows");
        goto done;
    }
    const char *data = all[0].buf;
    const int64_t *starts = all[1].buf, *ends = all[2].buf;
    char *found = all[5].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t at = starts[row], end = ends[row], *places = (int64_t *)all[4].buf + row;
        int is_there = at >= 0 && at <= end && end <= all[0].len &&
                       find_in_row(data, at, end, heads, head_count, places, rows);
        if (is_there && head_count)
            at = places[(2 * head_count - 1) * rows];
        is_there = is_there && end - at == all[3].len && !memcmp(data + at, all[3].buf, (size_t)all[3].len);
        found[row] = (char)is_there;
        matching += is_there;
    }
    Py_END_ALLOW_THREADS
    result = PyLong_FromSsize_t(matching);
done:
    while (taken > 0)
        PyBuffer_Release(&heads[--taken]);
    while (held > 0)
        PyBuffer_Release(&all[--held]);
    PyMem_Free(heads);
    return result;
}

/* Put pieces of a buffer one behind the other.  -> whether all of them are ASCII, or -1 for places that are none. */
static int
gather_pieces(const Py_buffer *buffer, const int64_t *starts, const int64_t *ends, Py_ssize_t count, int32_t *offsets,
              const Py_buffer *pieces)
{
    uint64_t seen = 0;
    Py_ssize_t size = 0;
    offsets[0] = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        if (starts[at] < 0 || ends[at] < starts[at] || ends[at] > buffer->len || ends[at] - starts[at] > pieces->len - size)
            return -1;
        const char *from = (const char *)buffer->buf + starts[at];
        Py_ssize_t left = (Py_ssize_t)(ends[at] - starts[at]);
        memcpy((char *)pieces->buf + size, from, (size_t)left);
        size += left;
        for (; left > 0; from += 8, left -= 8) {
            uint64_t word = 0;
            memcpy(&word, from, left < 8 ? (size_t)left : 8);
            seen |= word;
        }
        offsets[at + 1] = (int32_t)size;
    }
    return size == pieces->len ? !(seen & UINT64_C(0x8080808080808080)) : -1;
}

PyDoc_STRVAR(gather_doc,
"gather(buffer, starts, ends, offsets, pieces) -> whether all pieces are ASCII; fills `offsets` and `pieces`");

static PyObject *
gather(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Py_buffer all[5];
    Py_ssize_t held = 0;
    int is_ascii = -1;
    if (!has_count("gather", count, 5))
        return NULL;
    for (; held < 5; held++) {
        int flags = held < 3 ? PyBUF_SIMPLE : PyBUF_WRITABLE;
        if (held == 1 || held == 2 ? numbers_argument(args[held], flags, held == 2 ? all[1].len / 8 : -1, &all[held])
                                   : PyObject_GetBuffer(args[held], &all[held], flags))
            goto done;
    }
    Py_ssize_t rows = all[1].len / 8;
    if (all[3].len != 4 * (rows + 1) || all[4].len > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "not as many offsets as pieces, or too many bytes for them");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    is_ascii = gather_pieces(&all[0], all[1].buf, all[2].buf, rows, all[3].buf, &all[4]);
    Py_END_ALLOW_THREADS
    if (is_ascii < 0)
        PyErr_SetString(PyExc_ValueError, "the pieces are not in the buffer, or not as long as the room for them");
done:
    while (held > 0)
        PyBuffer_Release(&all[--held]);
    return is_ascii < 0 ? NULL : PyBool_FromLong(is_ascii);
}

/* -- the types ---------------------------------------------------------------------------------------------------- */

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

/* -- mixes -------------------------------------------------------------------------------------------------------- */

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

static PyObject *
rows_next(PyObject *self)
{
    Rows *rows = (Rows *)self;
    RowHead row;
    char key[KEY_BYTES];
    if (rows->at == rows->rows.size)
        return NULL;
    const char *from = rows->rows.data + rows->at;
    memcpy(&row, from, sizeof(row));
    memcpy(key, rows->prefix, PREFIX_BYTES);
    put_id(key + PREFIX_BYTES, row.id);
    rows->at += sizeof(row) + (size_t)row.size;
    return make_pair(PyBytes_FromStringAndSize(key, KEY_BYTES),
                     PyBytes_FromStringAndSize(from + sizeof(row), row.size));
}

static void
rows_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((Rows *)self)->rows.data);
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
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rows_slots,
};

PyDoc_STRVAR(take_rows_doc, "take_rows() -> an iterator of the rows that were appended since the last call");

static PyObject *
tail_take_rows(PyObject *self, PyTypeObject *type, PyObject *const *Py_UNUSED(args), Py_ssize_t count,
               PyObject *Py_UNUSED(names))
{
    Tail *tail = (Tail *)self;
    State *state = PyType_GetModuleState(type);
    if (state == NULL || !has_count("take_rows", count, 0))
        return NULL;
    Rows *rows = (Rows *)PyType_GenericAlloc(state->rows_type, 0);
    if (rows == NULL)
        return NULL;
    memcpy(rows->prefix, tail->prefix, PREFIX_BYTES);
    rows->rows = tail->rows;
    tail->rows = (Buffer){NULL, 0, 0};
    tail->rows_size = tail->trimmed * TRIMMED_BYTES;
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

/* -- the module --------------------------------------------------------------------------------------------------- */

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
    Py_CLEAR(state->tail_type);
    Py_CLEAR(state->rows_type);
    return 0;
}

static PyMethodDef functions[] = {
    {"parse", (PyCFunction)(void (*)(void))parse, METH_FASTCALL, parse_doc},
    {"parse_front", (PyCFunction)(void (*)(void))parse_front, METH_FASTCALL, parse_front_doc},
    {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL, append_doc},
    {"load", (PyCFunction)(void (*)(void))load, METH_FASTCALL, load_doc},
    {"open_tail", (PyCFunction)(void (*)(void))open_tail, METH_FASTCALL, open_tail_doc},
    {"open_tail_by_row", (PyCFunction)(void (*)(void))open_tail_by_row, METH_FASTCALL, open_tail_by_row_doc},
    {"open_stream", (PyCFunction)(void (*)(void))open_stream, METH_FASTCALL, open_stream_doc},
    {"pack_stream", (PyCFunction)(void (*)(void))pack_stream, METH_FASTCALL, pack_stream_doc},
    {"expand_one", (PyCFunction)(void (*)(void))expand_one, METH_FASTCALL, expand_one_doc},
    {"load_xadds", (PyCFunction)(void (*)(void))load_xadds, METH_FASTCALL, load_xadds_doc},
    {"measure_entries", (PyCFunction)(void (*)(void))measure_entries, METH_FASTCALL, measure_entries_doc},
    {"measure_leaf", (PyCFunction)(void (*)(void))measure_leaf, METH_FASTCALL, measure_leaf_doc},
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
