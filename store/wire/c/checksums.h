/* CRC-32C, by the processor's instruction where it has one. */

#ifdef __GNUC__
#define prefetch(address) __builtin_prefetch(address, 1)
#define prefetch_to_read(address) __builtin_prefetch(address)
#else
#define prefetch(address) ((void)(address))
#define prefetch_to_read(address) ((void)(address))
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
