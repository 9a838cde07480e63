/* A sequence as bytes: a header, the marks of its entry points, and every page in its tables, each with a checksum.
 *
 *     header            save_header
 *     entry points      one byte (ATH_ENTRY_*) per boundary 0 .. length / 128, filled up to a multiple of 8
 *     pages             save_page, then the page's bytes
 *
 * Numbers are those of this machine: the bytes are for the same build on the same kind of machine, and the magic
 * number is another one where the byte order differs. */
#include <string.h>

#include "kv/kv_private.h"

#define SAVE_MAGIC 0x3171657368746121ull /* the last digit is the version */

typedef struct save_header {
    uint64_t magic, shape, length, n_pages, checksum; /* checksum: of the entry points */
} save_header;

typedef struct save_page {
    uint32_t kind, index;
    uint64_t checksum;
} save_page;

static uint64_t mix(uint64_t sum, uint64_t x) {
    sum = (sum ^ x) * 0x9e3779b97f4a7c15ull;
    return sum ^ sum >> 29;
}

/* size: a multiple of 8 */
static uint64_t checksum(uint64_t sum, const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i += 8) {
        uint64_t x;
        memcpy(&x, bytes + i, sizeof x);
        sum = mix(sum, x);
    }
    return sum;
}

/* Everything that says where in a page what is stored in which form. */
static uint64_t shape_checksum(const ath_kv_shape *shape) {
    uint64_t sum = (uint64_t)shape->n_layers;
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) sum = mix(sum, shape->page_bytes[kind]);
    for (int il = 0; il < shape->n_layers; il++) {
        const ath_kv_place *place = &shape->layers[il];
        sum = mix(sum, (uint64_t)place->kind * 2 + place->shared);
        sum = mix(sum, (uint64_t)place->n_kv_heads);
        sum = mix(sum, (uint64_t)place->window);
        sum = mix(sum, place->state_at);
        for (int side = 0; side < 2; side++) {
            const ath_attn_side *attn = &place->side[side].attn;
            sum = mix(sum, (uint64_t)attn->layout.type);
            sum = mix(sum, (uint64_t)attn->layout.head_dim);
            sum = mix(sum, attn->offset);
        }
    }
    return sum;
}

static size_t entry_bytes(int64_t length) {
    return ((size_t)(length / ATH_PAGE_TOKENS) + 1 + 7) / 8 * 8;
}

static int64_t table_end(int kind, int64_t length) {
    int64_t n = ath_kv_pages_for(length);
    return kind == ATH_KV_SINKS && n > 1 ? 1 : n;
}

size_t ath_kv_save_size(const ath_kv *kv, int seq_index) {
    const ath_kv_seq *seq = &kv->seqs[seq_index];
    size_t size = sizeof(save_header) + entry_bytes(seq->length);
    for (int kind = 0; kind < ATH_KV_KINDS; kind++)
        for (int64_t i = 0; i < table_end(kind, seq->length); i++)
            if (seq->page[kind][i]) size += sizeof(save_page) + kv->shape.page_bytes[kind];
    return size;
}

void ath_kv_save(ath_kv *kv, int seq_index, uint8_t *out) {
    ath_kv_seq *seq = &kv->seqs[seq_index];
    ath_kv_encode_rest(kv, seq);
    save_header header = {.magic = SAVE_MAGIC,
                          .shape = shape_checksum(&kv->shape),
                          .length = (uint64_t)seq->length};
    uint8_t *entries = out + sizeof header, *at = entries + entry_bytes(seq->length);
    memset(entries, 0, entry_bytes(seq->length));
    memcpy(entries, seq->entry, (size_t)(seq->length / ATH_PAGE_TOKENS) + 1);
    for (int kind = 0; kind < ATH_KV_KINDS; kind++) {
        size_t bytes = kv->shape.page_bytes[kind];
        for (int64_t i = 0; i < table_end(kind, seq->length); i++) {
            const ath_page *page = seq->page[kind][i];
            if (!page) continue;
            save_page head = {(uint32_t)kind, (uint32_t)i, checksum((uint64_t)i, page->mem, bytes)};
            memcpy(at, &head, sizeof head);
            memcpy(at + sizeof head, page->mem, bytes);
            at += sizeof head + bytes;
            header.n_pages++;
        }
    }
    header.checksum = checksum(header.length, entries, entry_bytes(seq->length));
    memcpy(out, &header, sizeof header);
}

/* ---- load */
static ath_status bad(const char *what, ath_error *err) {
    return ATH_FAIL(err, ATH_ERR_FORMAT, "the saved sequence can't be used: %s", what);
}

static ath_status read_header(const ath_kv *kv, save_header *header, const uint8_t *in, size_t size, ath_error *err) {
    if (size < sizeof *header) return bad("it is cut off", err);
    memcpy(header, in, sizeof *header);
    if (header->magic != SAVE_MAGIC) return bad("it isn't one, or was saved by another version", err);
    if (header->shape != shape_checksum(&kv->shape)) return bad("it is of another model, or of other cache types", err);
    if (header->length > (uint64_t)kv->shape.n_ctx)
        return ATH_FAIL(err, ATH_ERR_CONTEXT,
                        "the saved sequence has %llu tokens and the context takes %lld: make it larger (-c)",
                        (unsigned long long)header->length, (long long)kv->shape.n_ctx);
    size_t entries = entry_bytes((int64_t)header->length);
    if (size - sizeof *header < entries) return bad("it is cut off", err);
    if (checksum(header->length, in + sizeof *header, entries) != header->checksum) return bad("it is damaged", err);
    return ATH_OK;
}

static ath_status read_entries(ath_kv_seq *seq, const uint8_t *in, ath_error *err) {
    for (int64_t i = 0; i <= seq->length / ATH_PAGE_TOKENS; i++) {
        if (in[i] > ATH_ENTRY_MARK) return bad("it is damaged", err);
        seq->entry[i] = in[i];
    }
    return ATH_OK;
}

static ath_status read_page(ath_kv *kv, ath_kv_seq *seq, const uint8_t **in, size_t *size, ath_error *err) {
    save_page head;
    if (*size < sizeof head) return bad("it is cut off", err);
    memcpy(&head, *in, sizeof head);
    if (head.kind >= ATH_KV_KINDS || head.index >= table_end((int)head.kind, seq->length)) return bad("it is damaged", err);
    size_t bytes = kv->shape.page_bytes[head.kind];
    if (bytes == 0 || seq->page[head.kind][head.index]) return bad("it is damaged", err);
    if (*size - sizeof head < bytes) return bad("it is cut off", err);
    const uint8_t *mem = *in + sizeof head;
    if (checksum(head.index, mem, bytes) != head.checksum) return bad("it is damaged", err);
    ath_page *page = ath_page_take(&kv->pool[head.kind]);
    if (!page) return ATH_FAIL(err, ATH_ERR_NOMEM, "no memory for a saved sequence of %lld tokens", (long long)seq->length);
    memcpy(page->mem, mem, bytes);
    ath_kv_set_page(seq, (int)head.kind, head.index, page);
    *in = mem + bytes;
    *size -= sizeof head + bytes;
    return ATH_OK;
}

static ath_status read_pages(ath_kv *kv, ath_kv_seq *seq, uint64_t n_pages, const uint8_t *in, size_t size,
                             ath_error *err) {
    for (uint64_t i = 0; i < n_pages; i++) ATH_TRY(read_page(kv, seq, &in, &size, err));
    bool sinks = seq->length == 0 || kv->shape.page_bytes[ATH_KV_SINKS] == 0 || seq->page[ATH_KV_SINKS][0];
    if (size > 0 || !sinks || !ath_kv_can_enter(kv, seq, seq->length)) return bad("pages are missing, or there are too many", err);
    return ATH_OK;
}

ath_status ath_kv_load(ath_kv *kv, int seq_index, const uint8_t *in, size_t size, ath_error *err) {
    ath_kv_seq *seq = &kv->seqs[seq_index];
    save_header header;
    ath_kv_clear(kv, seq_index);
    ATH_TRY(read_header(kv, &header, in, size, err));
    seq->length = (int64_t)header.length;
    size_t entries = entry_bytes(seq->length);
    in += sizeof header;
    ath_status status = read_entries(seq, in, err);
    if (status == ATH_OK)
        status = read_pages(kv, seq, header.n_pages, in + entries, size - sizeof header - entries, err);
    if (status != ATH_OK) ath_kv_clear(kv, seq_index);
    return status;
}
